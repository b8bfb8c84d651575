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
from numpy.typing import NDArray

from stillhash.collection.storage.schema import get_meta, parse_json, set_meta
from stillhash.collection.storage.store import Store
from stillhash.collection.types import Id
from stillhash.collection.validation import check_ids, input_rows
from stillhash.errors import Conflict, InvalidInput, StillhashError
from stillhash.io import ColumnNames, LazyChunk, has_columns, scan_chunks, source_digest
from stillhash.io.rows import BatchContent
from stillhash.numeric.validation import Mask

RECORD_PREFIX = "import "  # keys of imports in `meta` begin with it
EXISTING_HINT = "Skip what exists, or replace it by `upsert`"
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
            raise Conflict(f"ids: {_first(stored, others)!r} exists, and was not imported from here. {EXISTING_HINT}.")
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
    source = _open_source(store, path, columns, batch, number_rows)
    chunks = source.chunks
    if source.is_new:
        chunks = _read_first(chunks)
        begin = {"name": path.name, "first_row": source.first_row, "first_id": source.first_id}
        with store.change(f"import {path.name}") as change:
            set_meta(change.connection, source.key, json.dumps({**begin, "columns": list(columns)}))
    return add_chunks(add, chunks, source.stored_rows(store, skip_existing), progress)


def check_file(
    store: Store,
    path: Path,
    columns: ColumnNames,
    *,
    batch: int,
    number_rows: bool,
    skip_existing: bool,
    progress: ReportImport | None,
) -> ImportProgress:
    """Read and validate the rows of a file as `import_file` does, and add none; return how many it would add."""
    source = _open_source(store, path, columns, batch, number_rows)
    stored, last = source.stored_rows(store, skip_existing) or StoredRows(store), ImportProgress(0, 0, 0.0)
    hashes = [np.empty(0, np.int64)]  # of all ids, which may be too many to hold
    for chunk in source.chunks:
        with naming(chunk.place):
            ids = chunk.ids or []
            missing = stored.missing(ids)
            if source.is_new and not skip_existing and not missing.all():
                raise Conflict(f"ids: {_select(ids, ~missing)[0]!r} exists. {EXISTING_HINT}.")
            input_rows(store.settings).items(ids, *chunk.read(), None)
        hashes.append(_hash_ids(ids))
        last = ImportProgress(last.rows + chunk.rows, last.added + int(missing.sum()), chunk.progress)
        if progress is not None:
            progress(last)
    counted, times = np.unique(np.concatenate(hashes), return_counts=True)
    if (several := counted[times > 1]).size:
        _refuse_repeated(_open_source(store, path, columns, batch, number_rows).chunks, several)
    return last


def _hash_ids(ids: list[Any]) -> NDArray[np.int64]:
    return np.fromiter(map(hash, ids), np.int64, len(ids))


def _refuse_repeated(chunks: Iterable[LazyChunk], hashes: NDArray[np.int64]) -> None:
    """Raise InvalidInput if an id of these hashes occurs twice; different ids rarely have the same hash."""
    places: dict[Any, str] = {}
    for chunk in chunks:
        ids = chunk.ids or []
        for at in np.flatnonzero(np.isin(_hash_ids(ids), hashes)).tolist():
            if ids[at] in places:
                expected = f"ids: expected each id once, got {ids[at]!r} again, as in {places[ids[at]]}"
                raise InvalidInput(f"{chunk.place}: {expected}")
            places[ids[at]] = chunk.place


class _Source(NamedTuple):
    """A file, and where its import began, or would begin."""

    key: str
    is_new: bool
    first_row: int
    first_id: int
    chunks: Iterator[LazyChunk]

    def stored_rows(self, store: Store, skip_existing: bool) -> StoredRows | None:
        """Return which of its rows to skip; None if each is to be added."""
        if self.is_new and not skip_existing:
            return None
        return StoredRows(store, 0 if skip_existing else self.first_row)


def _open_source(store: Store, path: Path, columns: ColumnNames, batch: int, number_rows: bool) -> _Source:
    key = RECORD_PREFIX + source_digest(path)
    with store.reading() as connection:
        record = get_meta(connection, key)
        first_row, first_id = int(get_meta(connection, "next_row")), int(get_meta(connection, "items"))
    if record is not None:
        began = _check_record(record, columns, path)
        first_row, first_id = began["first_row"], began["first_id"]
    number_from = first_id if number_rows or not has_columns(path) else None
    dim = input_rows(store.settings).row_length
    chunks = scan_chunks(path, batch, dim=dim, columns=columns, first_id=number_from, with_siblings=True)
    return _Source(key, record is None, first_row, first_id, chunks)


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
