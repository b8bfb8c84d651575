"""The names of the columns of a file, without its rows."""

import csv
import zipfile
from itertools import islice
from pathlib import Path

from stillhash.io.parquet import parquet_columns
from stillhash.io.rows import parse_json, read_lines


def list_columns(path: Path) -> list[str]:
    """Return the columns of a file of rows: of its header, its schema, its arrays or its first object."""
    match path.suffix.lower():
        case ".parquet":
            return parquet_columns(path)
        case ".csv":
            lines = (line for _, line, _ in read_lines(path))
            return [name.strip() for name in next(csv.reader(lines, skipinitialspace=True), [])]
        case ".npz":
            with zipfile.ZipFile(path) as archive:
                return [name.removesuffix(".npy") for name in archive.namelist()]
        case ".jsonl":
            first = islice((line for _, line, _ in read_lines(path) if line.strip()), 1)
            return [str(key) for line in first for key in parse_json(line, path.name)]
        case _:
            return []
