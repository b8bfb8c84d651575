"""JSON lines: one object with id, features, labels and metadata per line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stillhash.errors import InvalidInput
from stillhash.io.rows import Row, parse_json, parse_metadata, read_lines


def jsonl_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a .jsonl file; empty lines are skipped."""
    for number, line, progress in read_lines(path):
        if not line.strip():
            continue
        where = f"{path.name}, line {number}"
        record = parse_json(line, where)
        if not isinstance(record, dict) or "features" not in record:
            raise InvalidInput(f"{where}: expected an object with features, and perhaps id, labels and metadata")
        for key in record:
            if key not in ("id", "features", "labels", "metadata"):
                raise InvalidInput(f"{where}: expected the keys id, features, labels, metadata, got {key!r}")
        labels = record.get("labels")
        if labels is not None and not isinstance(labels, list):
            labels = [labels]
        metadata = parse_metadata(record.get("metadata"), where)
        yield Row(f"line {number}", progress, record.get("id"), record["features"], labels, metadata)
