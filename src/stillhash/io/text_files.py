"""Text files: CSV, whose columns Parquet files share, and JSON lines."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stillhash.errors import InvalidInput
from stillhash.io.rows import (
    CODE_NAME,
    USUAL_NAMES,
    ColumnNames,
    Columns,
    Row,
    integer_or_text,
    merge_metadata,
    number_or_text,
    parse_json,
    read_lines,
)


def csv_rows(path: Path, names: ColumnNames = USUAL_NAMES) -> Iterator[Row]:
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
        columns = Columns(header, path.name, names)
        for cells in reader:
            place, start = f"line {start + 1}", reader.line_num
            where = f"{path.name}, {place}"
            if not cells:
                continue
            if len(cells) != len(header):
                raise InvalidInput(f"{where}: expected {len(header)} cells, as the header has, got {len(cells)}")
            record = dict(zip(header, cells, strict=True))
            text = record[columns.id].strip() if columns.id is not None else ""
            labels = columns.row_labels(record, where, columns.separator or "|")
            others = {name: number_or_text(record[name]) for name in columns.others if record[name] != ""}
            metadata = columns.row_metadata(others, where)
            features = _parse_features(record, columns, where)
            yield Row(place, progress, integer_or_text(text) if text else None, features, labels, metadata)
    except csv.Error as error:
        raise InvalidInput(f"{path.name}, line {reader.line_num}: expected CSV: {error}") from None


def jsonl_rows(path: Path, names: ColumnNames = USUAL_NAMES) -> Iterator[Row]:
    """Yield the rows of a .jsonl file; empty lines are skipped. The keys of the first object are the columns."""
    columns: Columns | None = None
    for number, line, progress in read_lines(path):
        if not line.strip():
            continue
        where = f"{path.name}, line {number}"
        record = parse_json(line, where)
        if not isinstance(record, dict):
            raise InvalidInput(f"{where}: expected an object with features, and perhaps id, labels and metadata")
        if columns is None:
            columns = _json_columns(record, where, names)
        yield _json_row(record, columns, names, (f"line {number}", progress), path)


def _json_columns(record: dict[str, Any], where: str, names: ColumnNames) -> Columns:
    """Choose the keys by the first object, which may lack all but the vector; others have their usual names."""
    optional = [name for name in (names.id, *(names.labels or ()), *_listed(names)) if name is not None]
    columns = Columns(list(dict.fromkeys([*record, *optional])), where, names, strict=True)
    if columns.vector is None:
        raise InvalidInput(f"{where}: expected one key for the vector, got {', '.join(columns.numbered)}")
    columns.id = columns.id or "id"
    if names.labels is None:
        columns.labels = columns.labels or ["labels"]
    if names.metadata is None:
        columns.others = ["metadata"]
    return columns


def _json_row(
    record: dict[str, Any], columns: Columns, names: ColumnNames, place: tuple[str, float], path: Path
) -> Row:
    where = f"{path.name}, {place[0]}"
    if columns.vector not in record:
        raise InvalidInput(f"{where}: expected an object with {columns.vector}, got {', '.join(record) or 'none'}")
    present = {key: value for key, value in record.items() if value is not None}
    used = {columns.id, columns.vector, *columns.labels, CODE_NAME}
    others = [key for key in record if key not in used and key not in columns.others]
    if others and names.metadata is None:
        known = ", ".join(map(str, [columns.id, columns.vector, *columns.labels, *columns.others]))
        hint = "Name it as a metadata column, or name those to store."
        raise InvalidInput(f"{where}: expected the keys {known}, got {others[0]!r}. {hint}")
    fields = [*columns.others, *others] if names.metadata == "all" else columns.others
    labels = columns.row_labels(present, where, columns.separator)
    metadata = merge_metadata(present, fields, where)
    return Row(*place, record.get(columns.id or ""), record[columns.vector or ""], labels, metadata)


def _listed(names: ColumnNames) -> tuple[str, ...]:
    return names.metadata if isinstance(names.metadata, tuple) else ()


def _parse_features(record: dict[str, str], columns: Columns, where: str) -> Any:
    """Parse the features of a row of texts."""
    if columns.vector is not None:
        return parse_json(record[columns.vector], f"{where}: {columns.vector}")
    try:
        return np.array([record[name] for name in columns.numbered], np.float64)
    except ValueError:
        name = next(name for name in columns.numbered if not _is_number(record[name]))
        raise InvalidInput(f"{where}: {name}: expected a number, got {record[name]!r}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
