"""Add a file or a table to a collection chunk by chunk, and go on with an import that was interrupted.

A chunk is one transaction, so after an interruption the collection has whole chunks. To go on, the ids of each chunk
are looked up: rows that exist are skipped, and the others are added. The table `meta` holds for each file, by its
content, where its import began: the next row number, and the first id of numbered rows. An item with a lower row number
was there before, so an id of the file that it has is a conflict and not a row to skip.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stillhash.collection.storage.schema import get_meta, parse_json, set_meta
from stillhash.collection.storage.store import Store
from stillhash.collection.types import Id
from stillhash.collection.validation import check_ids
from stillhash.errors import Conflict, InvalidInput, StillhashError
from stillhash.io import ColumnNames, LazyChunk, has_columns, scan_chunks, source_digest
from stillhash.io.arrow_batches import BatchContent
from stillhash.numeric.validation import Mask

RECORD_PREFIX = "import "  # of the keys in `meta`
AddRows = Callable[[list[Any], Any, Any, Any], int]  # ids, features, labels, metadata


class ImportProgress(NamedTuple):
    """How far an import is."""

    rows: int  # read so far, those that exist included
    added: int
    share: float  # of all rows; 0 if their number is not known


ReportImport = Callable[[ImportProgress], object]


class StoredRows:
    """Which rows of an import are stored already. Each stored row may be met once: no id occurs twice in a source."""

    def __init__(self, store: Store, first_row: int = 0) -> None:
        """Look up items with this row number or a higher one; others are not of this import."""
        self._store, self._first_row = store, first_row
        with store.reading() as connection:
            self._next_row = int(get_meta(connection, "next_row"))
            self._unmet = store.items.count_from(connection, first_row)
        self._met = np.zeros((self._next_row - first_row + 7) // 8, np.uint8)  # bitmap of row numbers

    def missing(self, ids: list[Any]) -> Mask:
        """Return which of the next ids are not stored."""
        names = check_ids(ids)
        if not self._unmet:  # all of them were met, so an id that exists is a conflict, which adding it raises
            return np.ones(len(names), bool)
        with self._store.reading() as connection:
            stored = self._store.items.rows_of(connection, names)
        self._meet(stored)
        if len(stored) == len(names):
            return np.zeros(len(names), bool)
        return np.array([name not in stored for name in names], bool)

    def _meet(self, stored: dict[Id, int]) -> None:
        rows = np.fromiter(stored.values(), np.int64, len(stored))
        if (others := rows < self._first_row).any():
            hint = "Skip what exists, or replace it by `upsert`"
            raise Conflict(f"ids: {_first(stored, others)!r} exists, and was not imported from here. {hint}.")
        places = rows - self._first_row
        again = rows >= self._next_row  # added since
        again[~again] = self._met[places[~again] >> 3] >> (places[~again] & 7) & 1
        if again.any():
            raise InvalidInput(f"ids: expected each id once, got {_first(stored, again)!r} again")
        np.bitwise_or.at(self._met, places >> 3, (1 << (places & 7)).astype(np.uint8))
        self._unmet -= len(stored)


def add_chunks(
    add: AddRows, chunks: Iterable[LazyChunk], stored: StoredRows | None, progress: ReportImport | None
) -> int:
    """Add the rows of chunks, or those that are not stored; return how many were added."""
    rows = added = 0
    for chunk in chunks:
        with naming(chunk.place):
            missing = None if stored is None else stored.missing(chunk.ids or [])
        if missing is None or missing.any():
            ids, content = chunk.ids or [], chunk.read()
            if missing is not None and not missing.all():
                ids, content = _select(ids, missing), BatchContent(*(_select(part, missing) for part in content))
            with naming(chunk.place):
                added += add(ids, *content)
        rows += chunk.rows
        if progress is not None:
            progress(ImportProgress(rows, added, chunk.progress))
    return added


def import_file(
    store: Store,
    add: AddRows,
    path: Path,
    columns: ColumnNames,
    *,
    batch: int,
    number_rows: bool,
    skip_existing: bool,
    progress: ReportImport | None,
) -> int:
    """Add the rows of a file that are missing; return how many. The same call goes on after an interruption."""
    key = RECORD_PREFIX + source_digest(path)
    with store.reading() as connection:
        record = get_meta(connection, key)
        first_row, first_id = get_meta(connection, "next_row"), get_meta(connection, "items")
    if record is not None:
        record = _check_record(record, columns, path)
        first_row, first_id = record["first_row"], record["first_id"]
    number_from = first_id if number_rows or not has_columns(path) else None
    dim = store.settings["dim"]
    chunks = scan_chunks(path, batch, dim=dim, columns=columns, first_id=number_from, with_siblings=True)
    if record is None:
        chunks = _read_first(chunks)
        begin = {"name": path.name, "first_row": first_row, "first_id": first_id, "columns": list(columns)}
        with store.change(f"import {path.name}") as change:
            set_meta(change.connection, key, json.dumps(begin))
    stored = None if record is None and not skip_existing else StoredRows(store, 0 if skip_existing else first_row)
    return add_chunks(add, chunks, stored, progress)


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Name the place in our errors."""
    try:
        yield
    except StillhashError as error:
        raise type(error)(f"{place}: {error}") from error


def _check_record(text: str, columns: ColumnNames, path: Path) -> dict[str, Any]:
    """Return where an import began; Conflict if other columns were named then."""
    record: dict[str, Any] = parse_json(text, dict, "import")
    chosen = json.loads(json.dumps(list(columns)))
    if record["columns"] != chosen:
        pairs = zip(ColumnNames._fields, record["columns"], chosen, strict=True)
        name, before, now = next(pair for pair in pairs if pair[1] != pair[2])
        raise Conflict(f"{path.name}: {name}: expected {before!r}, as when its import began, got {now!r}")
    return record


def _read_first(chunks: Iterator[LazyChunk]) -> Iterator[LazyChunk]:
    """Read the first chunk now, so that a file that cannot be read changes nothing."""
    first = next(chunks, None)
    if first is None:
        return chunks
    content = first.read()
    return chain([first._replace(read=lambda: content)], chunks)


def _first(stored: dict[Id, int], chosen: Mask) -> Id:
    return list(stored)[int(np.flatnonzero(chosen)[0])]


def _select(values: Any, keep: Mask) -> Any:
    """Return the entries of these rows, of a list or an array; None stays None."""
    if values is None or hasattr(values, "dtype"):
        return values if values is None else values[keep]
    return [value for value, chosen in zip(values, keep.tolist(), strict=True) if chosen]
