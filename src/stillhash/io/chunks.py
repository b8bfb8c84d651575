"""Read the rows of any file in chunks, with ids, labels and metadata from other files if need be; and queries."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput
from stillhash.io.arrays import array_rows, open_npy
from stillhash.io.parquet import parquet_rows
from stillhash.io.rows import Row, integer_or_text, parse_json, parse_labels, parse_metadata, read_lines, reading
from stillhash.io.tables import csv_rows, jsonl_rows

ROW_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": jsonl_rows,
    ".csv": csv_rows,
    ".parquet": parquet_rows,
    ".npz": array_rows,
    ".npy": array_rows,
}
ARRAY_SUFFIXES = (".npz", ".npy")
VECTORS = "a JSON array of numbers, or an array of such arrays"


class Chunk(NamedTuple):
    place: str  # of its first and last row
    progress: float  # share of the file read so far
    ids: list[Any] | None
    features: NDArray[Any]  # (n, D) finite numbers
    labels: list[Any]
    metadata: list[Any]


def read_chunks(
    path: Path,
    dim: int,
    chunk_rows: int,
    *,
    ids: Path | None = None,
    labels: Path | None = None,
    metadata: Path | None = None,
    require_ids: bool = False,
    first_id: int | None = None,
) -> Iterator[Chunk]:
    """Yield the rows of a file, `chunk_rows` at a time, each with `dim` features.

    ids, labels, metadata : files for what this file lacks, with one entry per row.
    require_ids : whether every row must have an id.
    first_id : number the rows of .npy and .npz files without ids from here.
    """
    rows = read_rows(path)
    for field, file in (("ids", ids), ("labels", labels), ("metadata", metadata)):
        if file is not None:
            rows = _join(rows, path, field, file)
    pending: list[Row] = []
    for number, row in enumerate(rows):
        where = f"{path.name}, {row.place}"
        if require_ids and row.ids is None:
            if first_id is None or path.suffix.lower() not in ARRAY_SUFFIXES:
                raise InvalidInput(f"{where}: id: expected one for each row, or --ids FILE, got none")
            row = row._replace(ids=first_id + number)
        pending.append(row._replace(features=check_vector(row.features, dim, where)))
        if len(pending) == chunk_rows:
            yield _chunk(pending, path, require_ids)
            pending = []
    if pending:
        yield _chunk(pending, path, require_ids)


def read_features(path: Path, dim: int) -> NDArray[Any]:
    """Return the features (n, dim) of all rows of a file."""
    for chunk in read_chunks(path, dim, sys.maxsize):
        return chunk.features
    raise InvalidInput(f"{path.name}: expected rows, got an empty file")


def read_queries(text: str, dim: int) -> NDArray[Any]:
    """Return queries (m, dim) from JSON itself, from JSON on stdin ('-'), from a .json file, or from a file of rows."""
    path = Path(text)
    if not text.lstrip().startswith("["):
        with reading(path):
            if path.suffix.lower() == ".npy" and (array := open_npy(path)).ndim == 1:
                return check_vector(array, dim, path.name)[None]
            if text != "-" and path.suffix.lower() != ".json":
                return read_features(path, dim)
            text = "".join(line for _, line, _ in read_lines(path))
    vectors: list[Any] = []
    while text := text.strip():  # one array after another, as a program prints them
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"vector: expected {VECTORS}: {error}") from None
        if not isinstance(value, list) or not value:
            raise InvalidInput(f"vector: expected {VECTORS}, got {text[:40]!r}")
        vectors += value if isinstance(value[0], list) else [value]
        text = text[end:]
    if not vectors:
        raise InvalidInput(f"vector: expected {VECTORS}, got nothing")
    return np.stack([check_vector(vector, dim, f"vector {number}") for number, vector in enumerate(vectors)])


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file, as its suffix says; '-' is JSON lines from stdin."""
    suffix = ".jsonl" if str(path) == "-" else path.suffix.lower()
    if suffix not in ROW_READERS:
        known = ", ".join(ROW_READERS)
        raise InvalidInput(f"{path}: expected a file that ends in {known}, or '-' for JSON lines from stdin")
    with reading(path):
        yield from ROW_READERS[suffix](path)


def check_vector(value: Any, dim: int, where: str) -> NDArray[Any]:
    """Return features as a vector of `dim` finite numbers."""
    try:
        vector = np.asarray(value)
    except ValueError:
        vector = np.empty((0, 0))  # nested lists of several lengths
    if vector.ndim != 1 or (vector.size and vector.dtype.kind not in "fiub"):
        raise InvalidInput(f"{where}: features: expected {dim} numbers, got other values")
    if len(vector) != dim:
        raise InvalidInput(f"{where}: features: expected {dim} numbers, got {len(vector)}")
    if not np.isfinite(vector).all():
        at = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise InvalidInput(f"{where}: features[{at}]: expected a finite number, got {vector[at]}")
    return vector


def _chunk(rows: list[Row], path: Path, require_ids: bool) -> Chunk:
    places: dict[Any, str] = {}
    for row in rows if require_ids else ():
        if isinstance(row.ids, (str, int)) and (first := places.setdefault(row.ids, row.place)) != row.place:
            raise InvalidInput(f"{path.name}, {row.place}: id: expected a new one, got {row.ids!r} as in {first}")
    return Chunk(
        f"{path.name}, {rows[0].place}" + (f" to {rows[-1].place}" if len(rows) > 1 else ""),
        rows[-1].progress,
        [row.ids for row in rows] if require_ids else None,
        np.stack([row.features for row in rows]),
        [row.labels for row in rows],
        [row.metadata for row in rows],
    )


def _join(rows: Iterator[Row], path: Path, field: str, file: Path) -> Iterator[Row]:
    """Add one field from another file; both are counted first, since one row too many makes every pair suspect."""
    if str(path) == "-":
        raise InvalidInput(f"--{field}: expected no file with rows from stdin, which carry their own {field}")
    expected, entries = sum(1 for _ in read_rows(path)), sum(1 for _ in _entries(file, field))
    if expected != entries:
        raise InvalidInput(f"{file.name}: expected {expected} entries, one per row of {path.name}, got {entries}")
    for row, value in zip(rows, _entries(file, field), strict=True):
        if getattr(row, field) is not None:
            raise InvalidInput(f"{path.name}, {row.place}: {field}: expected none with --{field}, got some")
        yield row._replace(**{field: value})


def _entries(path: Path, field: str) -> Iterator[Any]:
    """Yield one entry per row: of a .npy array, of JSON lines, or of lines of text."""
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".jsonl", ".txt"):
        expected = ".npy, .jsonl (JSON per line) or .txt (one line per row)"
        raise InvalidInput(f"--{field}: expected {expected}, got {path.name}")
    with reading(path):
        if suffix == ".npy":
            yield from (_entry(value, field, f"{path.name}, row {n}") for n, value in enumerate(open_npy(path)))
            return
        for number, line, _ in read_lines(path):
            where = f"{path.name}, line {number}"
            value = parse_json(line, where) if suffix == ".jsonl" else line.strip()
            yield value if suffix == ".jsonl" and field != "metadata" else _entry(value, field, where)


def _entry(value: Any, field: str, where: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if field == "labels":
        return parse_labels(value, where)
    if field == "metadata":
        return parse_metadata(value, where)
    if isinstance(value, np.ndarray) or value == "":
        raise InvalidInput(f"{where}: id: expected one for each row, got none")
    return integer_or_text(value) if isinstance(value, str) else value
