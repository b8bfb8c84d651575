"""Text files: CSV, whose columns Parquet files share, and JSON lines."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stillhash.errors import InvalidInput
from stillhash.io.rows import Row, integer_or_text, number_or_text, parse_json, parse_labels, parse_metadata, read_lines


class Columns:
    """Which columns of a table hold features and metadata."""

    def __init__(self, header: list[str], path: Path) -> None:
        numbered = [name for name in header if re.fullmatch(r"f\d+", name, re.ASCII)]
        self.numbered = [f"f{number}" for number in range(len(numbered))]
        if len(set(header)) != len(header):
            twice = next(name for name in header if header.count(name) > 1)
            raise InvalidInput(f"{path.name}: columns: expected different names, got {twice!r} twice")
        if set(numbered) != set(self.numbered):
            missing = next(name for name in self.numbered if name not in numbered)
            raise InvalidInput(f"{path.name}: columns: expected f0, f1, ... without a gap; {missing} is missing")
        if bool(numbered) == ("features" in header):
            names = ", ".join(header) or "none"
            raise InvalidInput(f"{path.name}: columns: expected either f0, f1, ... or features, got {names}")
        self.others = [name for name in header if name not in ("id", "features", "labels", *numbered)]

    def features(self, record: dict[str, str], where: str) -> Any:
        """Parse the features of a row of texts."""
        if not self.numbered:
            return parse_json(record["features"], f"{where}: features")
        try:
            return np.array([record[name] for name in self.numbered], np.float64)
        except ValueError:
            name = next(name for name in self.numbered if not _is_number(record[name]))
            raise InvalidInput(f"{where}: {name}: expected a number, got {record[name]!r}") from None

    def metadata(self, record: dict[str, Any], where: str) -> dict[str, Any] | None:
        """Merge the column metadata, an object, with all other columns."""
        if not self.others:
            return None
        whole = parse_metadata(record.get("metadata"), where) or {}
        return whole | {name: record[name] for name in self.others if name in record and name != "metadata"} or None


def csv_rows(path: Path) -> Iterator[Row]:
    """Yield the rows under a header: id, labels as 'cat|dog', f0 f1 ... or features, metadata in all other columns."""
    csv.field_size_limit(2**31 - 1)  # features of thousands of dimensions are long cells
    progress, start = 0.0, 1

    def lines() -> Iterator[str]:
        nonlocal progress
        for _, line, progress in read_lines(path):  # noqa: B007
            yield line

    reader = csv.reader(lines(), strict=True, skipinitialspace=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        columns = Columns(header, path)
        for cells in reader:
            place, start = f"line {start + 1}", reader.line_num
            where = f"{path.name}, {place}"
            if not cells:
                continue
            if len(cells) != len(header):
                raise InvalidInput(f"{where}: expected {len(header)} cells, as the header has, got {len(cells)}")
            record = dict(zip(header, cells, strict=True))
            id_ = integer_or_text(record["id"].strip()) if record.get("id", "").strip() else None
            labels = parse_labels(record["labels"], where) if "labels" in record else None
            metadata = columns.metadata({k: number_or_text(v) for k, v in record.items() if v != ""}, where)
            yield Row(place, progress, id_, columns.features(record, where), labels, metadata)
    except csv.Error as error:
        raise InvalidInput(f"{path.name}, line {reader.line_num}: expected CSV: {error}") from None


def jsonl_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a .jsonl file; empty lines are skipped."""
    for number, line, progress in read_lines(path):
        if not line.strip():
            continue
        where = f"{path.name}, line {number}"
        record = parse_json(line, where)
        if not isinstance(record, dict) or "features" not in record:
            raise InvalidInput(f"{where}: expected an object with features, and perhaps id, labels and metadata")
        if unknown := [key for key in record if key not in ("id", "features", "labels", "metadata")]:
            raise InvalidInput(f"{where}: expected the keys id, features, labels, metadata, got {unknown[0]!r}")
        labels = record.get("labels")
        if labels is not None and not isinstance(labels, list):
            labels = [labels]
        metadata = parse_metadata(record.get("metadata"), where)
        yield Row(f"line {number}", progress, record.get("id"), record["features"], labels, metadata)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
