"""Documents from tables: .jsonl, .csv and .parquet files with a column of texts."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from stillhash.errors import InvalidInput
from stillhash.io.arrow_batches import plain
from stillhash.io.columns import ID_NAMES, LABELS_NAMES
from stillhash.io.parquet import open_parquet
from stillhash.io.rows import integer_or_text, is_missing, number_or_text, parse_json, parse_labels, reading
from stillhash.texts.decoding import MAX_TEXT_BYTES
from stillhash.texts.documents import BrokenDocument, Document, DocumentStream

TEXT_TABLE_SUFFIXES = (".jsonl", ".csv", ".parquet")
TEXT_COLUMN = "text"
OWN_FIELDS = ("text", "document", "chunk", "chunks", "start", "end", "content")  # indexing writes these
PARQUET_ROWS = 100  # read at a time


class TextColumns(NamedTuple):
    """The columns of a table: None for those that are recognised by usual names."""

    text: str = TEXT_COLUMN
    id: str | None = None
    labels: tuple[str, ...] | None = None
    metadata: tuple[str, ...] | None = None  # None for all others
    separator: str = ","  # between labels in one text


class _Record(NamedTuple):
    """A row of a table before its columns are chosen; `values` is an error where it cannot be read."""

    place: str
    number: int
    progress: float
    values: dict[str, Any] | str


def table_documents(
    path: Path,
    *,
    text: str = TEXT_COLUMN,
    id: str | None = None,
    label: str | Sequence[str] | None = None,
    metadata: Sequence[str] | None = None,
    separator: str = ",",
    max_bytes: int = MAX_TEXT_BYTES,
) -> DocumentStream:
    """Yield the rows of a .jsonl, .csv or .parquet file as documents.

    text : the column of texts.
    id : the column of ids; by default one with a usual name, such as id, or else the number of the line or row.
    label : the column of labels, or several: a list, or a text with `separator` between. By default labels or label.
    metadata : columns to store as metadata; by default all others.
    max_bytes : of a line. A longer line, and a row without a text, is a BrokenDocument.
    """
    if path.suffix.lower() not in TEXT_TABLE_SUFFIXES:
        expected = f"a file that ends in {', '.join(TEXT_TABLE_SUFFIXES)}"
        raise InvalidInput(f"{path.name}: expected {expected}")
    if not separator:
        raise InvalidInput("separator: expected a text, got an empty one")
    labels = label if label is None else tuple([label] if isinstance(label, str) else label)
    columns = TextColumns(text, id, labels, None if metadata is None else tuple(metadata), separator)
    if columns.metadata is not None:
        _check_names(columns.metadata, path)
    return _documents(path, columns, max_bytes)


def _documents(path: Path, columns: TextColumns, max_bytes: int) -> DocumentStream:
    readers = {".jsonl": _json_records, ".csv": _csv_records, ".parquet": _parquet_records}
    with reading(path):
        for record in readers[path.suffix.lower()](path, columns, max_bytes):
            yield _document(record, columns, path)


def _document(record: _Record, columns: TextColumns, path: Path) -> Document | BrokenDocument:
    place, values = f"{path.name}, {record.place}", record.values
    if isinstance(values, str):
        return BrokenDocument(place, values, record.progress)
    body = values.get(columns.text)
    if not isinstance(body, str):
        got = "none" if body is None else type(body).__name__
        return BrokenDocument(place, f"{columns.text}: expected a text, got {got}", record.progress)
    id_column = columns.id or next((name for name in ID_NAMES if name in values), None)
    name = record.number if id_column is None else values.get(id_column)
    if isinstance(name, bool) or not isinstance(name, str | int):
        return BrokenDocument(place, f"{id_column}: expected a text or an integer, got {name!r}", record.progress)
    label_columns = columns.labels
    if label_columns is None:
        label_columns = tuple(each for each in LABELS_NAMES if each in values)[:1]
    present = [each for each in label_columns if each in values]
    labels = [label for each in present for label in parse_labels(values[each], place, columns.separator, each)]
    stored = columns.metadata
    if stored is None:
        used = {columns.text, id_column, *label_columns}
        stored = tuple(each for each in values if each not in used)
        _check_names(stored, path)
    metadata = {each: values[each] for each in stored if not is_missing(values.get(each))}
    return Document(name, body, labels, metadata, progress=record.progress)


def _check_names(names: Sequence[str], path: Path) -> None:
    if taken := [name for name in names if name in OWN_FIELDS]:
        hint = "Name the columns to store as metadata."
        expected = f"expected other names than {', '.join(OWN_FIELDS)}, got {taken[0]!r}"
        raise InvalidInput(f"{path.name}: columns: {expected}. {hint}")


def _check_columns(header: Sequence[str], columns: TextColumns, path: Path) -> None:
    needed = [columns.text, *([columns.id] if columns.id else []), *(columns.labels or ()), *(columns.metadata or ())]
    if missing := [name for name in needed if name not in header]:
        listed = ", ".join(list(header)[:20]) or "none"
        raise InvalidInput(f"{path.name}: columns: expected {missing[0]!r}, got {listed}")


def _json_records(path: Path, columns: TextColumns, max_bytes: int) -> Iterator[_Record]:
    """Yield the objects of a .jsonl file; a line that is no object ends the stream with an error."""
    checked = False
    for number, line, progress in _bounded_lines(path, max_bytes):
        if line is None:
            reason = f"expected at most {max_bytes:,} bytes in a line, got more"
            yield _Record(f"line {number}", number, progress, reason)
            continue
        content = _decode_line(line, f"{path.name}, line {number}")
        if not content.strip():
            continue
        values = parse_json(content, f"{path.name}, line {number}")
        if not isinstance(values, dict):
            raise InvalidInput(f"{path.name}, line {number}: expected an object, got {type(values).__name__}")
        if not checked:
            _check_columns([*values, *(columns.labels or ()), *(columns.metadata or ())], columns, path)
            checked = True
        yield _Record(f"line {number}", number, progress, values)


def _csv_records(path: Path, columns: TextColumns, max_bytes: int) -> Iterator[_Record]:
    """Yield the rows under a header. Ids and numbers are parsed as elsewhere in CSV; a text is as it stands."""
    csv.field_size_limit(2**31 - 1)  # lines are bounded
    progress, start, header = 0.0, 1, list[str]()

    def lines() -> Iterator[str]:
        nonlocal progress
        for number, line, progress in _bounded_lines(path, max_bytes):  # noqa: B007
            if line is None:
                raise InvalidInput(f"{path.name}, line {number}: expected at most {max_bytes:,} bytes, got more")
            yield _decode_line(line, f"{path.name}, line {number}")

    reader = csv.reader(_bounded_cells(lines(), max_bytes, path), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_columns(header, columns, path)
        for cells in reader:
            number, start = start + 1, reader.line_num
            if not cells:
                continue
            if len(cells) != len(header):
                yield _Record(f"line {number}", number, progress, f"expected {len(header)} cells, got {len(cells)}")
                continue
            values: dict[str, Any] = dict(zip(header, cells, strict=True))
            yield _Record(f"line {number}", number, progress, _typed_cells(values, columns))
    except csv.Error as error:
        raise InvalidInput(f"{path.name}, line {reader.line_num}: expected CSV: {error}") from None


def _typed_cells(values: dict[str, str], columns: TextColumns) -> dict[str, Any]:
    id_column = columns.id or next((name for name in ID_NAMES if name in values), None)
    plain = {columns.text, *(columns.labels or LABELS_NAMES)}
    typed: dict[str, Any] = {}
    for name, cell in values.items():
        if name in plain:
            typed[name] = cell
        elif name == id_column:
            typed[name] = integer_or_text(cell.strip()) if cell.strip() else None
        elif cell:
            typed[name] = number_or_text(cell)
    return typed


def _bounded_cells(lines: Iterator[str], max_bytes: int, path: Path) -> Iterator[str]:
    """Pass lines on, unless a quote stays open over too many of them."""
    open_quote, characters = False, 0
    for line in lines:
        open_quote ^= bool(line.count('"') % 2)
        characters = characters + len(line) if open_quote else 0
        if characters > max_bytes:
            raise InvalidInput(f"{path.name}: expected rows of at most {max_bytes:,} bytes, got a quote without an end")
        yield line


def _parquet_records(path: Path, columns: TextColumns, max_bytes: int) -> Iterator[_Record]:
    with open_parquet(path) as file:
        _check_columns(file.schema_arrow.names, columns, path)
        number, rows = 0, max(1, file.metadata.num_rows)
        for batch in file.iter_batches(batch_size=PARQUET_ROWS):
            for row in batch.to_pylist():
                values: dict[str, Any] | str = plain(row)
                if isinstance(body := row.get(columns.text), str) and len(body) > max_bytes:
                    values = f"{columns.text}: expected at most {max_bytes:,} characters, got {len(body):,}"
                yield _Record(f"row {number}", number, (number + 1) / rows, values)
                number += 1


def _bounded_lines(path: Path, max_bytes: int) -> Iterator[tuple[int, bytes | None, float]]:
    """Yield the number and bytes of each line, and the share read so far; None for a line that is longer."""
    size = max(1, path.stat().st_size)
    with path.open("rb") as file:
        number = 0
        while line := file.readline(max_bytes + 1):
            number += 1
            longer = len(line) > max_bytes and not line.endswith(b"\n")
            if longer:
                _skip_line(file, max_bytes)
            yield number, None if longer or len(line) > max_bytes else line, min(1.0, file.tell() / size)


def _decode_line(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(f"{where}: expected UTF-8 text") from None


def _skip_line(file: BinaryIO, max_bytes: int) -> None:
    while (rest := file.readline(max_bytes + 1)) and not rest.endswith(b"\n"):
        pass
