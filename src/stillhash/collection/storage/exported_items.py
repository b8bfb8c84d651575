"""Read the items of one commit in order of their rows, a batch at a time, and insert such batches under their rows."""

import json
from collections.abc import Iterator
from sqlite3 import Connection, IntegrityError
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.items import RowNumbers
from stillhash.collection.storage.lexical import index_words
from stillhash.collection.storage.row_arrays import FEATURES, RESCORING, find_lost
from stillhash.collection.storage.schema import batches, get_meta, is_fitted, parsing, set_meta
from stillhash.collection.storage.segments import PLACES_PART, Segment
from stillhash.collection.storage.store import Store
from stillhash.collection.types import Id
from stillhash.collection.validation import JSON_ENCODER, json_text
from stillhash.errors import BadState
from stillhash.numeric.codes import width
from stillhash.numeric.feature_digests import NO_DIGEST
from stillhash.numeric.kernels import read_tiles
from stillhash.numeric.validation import Codes, Floats

BATCH_ROWS = 4096
MAX_BATCH_BYTES = 1 << 25  # of a batch with more than one item
BITMAP_PART = 1 << 13  # bytes of a bitmap of rows that are listed at a time
NUMBER_TEXT_BYTES = 32  # of a feature, about, as a Python number or as text
COLUMNS = "row, id, labels, COALESCE(metadata, 'null'), code, features, feature_digest, data"


class ItemBatch(NamedTuple):
    """Items in ascending order of their rows. Texts are JSON as `add` stores it."""

    rows: RowNumbers
    ids: list[Id]
    labels: list[str]
    metadata: list[str | None]
    pictures: list[bytes | None]
    codes: Codes | None  # None while items wait for hash functions
    digests: NDArray[np.int64] | None  # of features; NO_DIGEST where they were never known
    features: Floats | None  # None once there are hash functions, unless they are kept; NaN where they are lost
    rescoring: Codes | None = None  # None where there are none; all bytes 0xFF where they are lost


class SealedRows(NamedTuple):
    """Rows of segments."""

    numbers: RowNumbers
    codes: Codes
    digests: NDArray[np.int64]
    arrays: list[NDArray[Any]]  # of each table of `Store.row_arrays`


class Segments:
    """The segments of a commit, mapped, so that they can be read after another commit has replaced them."""

    def __init__(self, store: Store, connection: Connection) -> None:
        self._segments = list(store.codes.segments(connection))
        self._tables = [(table, table.mapped(connection)) for table in store.row_arrays]
        self._bits = store.settings["bits"]

    def read(self, rows: RowNumbers) -> SealedRows:
        """Return those of these ascending rows that are sealed."""
        parts = [self._part(rows[:0], None)]
        for number, segment in enumerate(self._segments):
            first, last = segment.bounds()
            parts.append(self._part(rows[np.searchsorted(rows, first) : np.searchsorted(rows, last, "right")], number))
        numbers, codes, digests, arrays = zip(*parts, strict=True)
        joined = [np.concatenate(each) for each in zip(*arrays, strict=True)]
        return SealedRows(np.concatenate(numbers), np.concatenate(codes), np.concatenate(digests), joined)

    def _part(self, rows: RowNumbers, number: int | None) -> SealedRows:
        """Return those of these rows, between the first and the last one of a segment, that it holds."""
        if number is None or not len(rows):
            codes, arrays = np.empty((0, width(self._bits)), np.uint8), [table.lost(0) for table, _ in self._tables]
            return SealedRows(rows[:0], codes, np.empty(0, np.int64), arrays)
        segment = self._segments[number]
        places = rows - segment.first if segment.numbers is None else np.searchsorted(segment.numbers, rows)
        if segment.numbers is not None:
            held = segment.numbers[places] == rows
            rows, places = rows[held], places[held]
        arrays = []
        for table, mapped in self._tables:
            stored = mapped[number]
            arrays.append(table.lost(len(rows)) if stored is None else stored[places])
        return SealedRows(rows, read_tiles(segment.tiles, places), _digests(segment, places), arrays)


def _digests(segment: Segment, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the digests of ascending places. They are stored by digest, so all are compared, a part at a time."""
    digests = np.full(len(places), NO_DIGEST, np.int64)
    for start in range(0, len(segment.places) if len(places) else 0, PLACES_PART):
        stored = segment.places[start : start + PLACES_PART]
        chosen = np.flatnonzero((stored >= places[0]) & (stored <= places[-1]))
        at = np.searchsorted(places, stored[chosen])
        known = places[at] == stored[chosen]
        digests[at[known]] = segment.digests[start : start + PLACES_PART][chosen[known]]
    return digests


class ExportedItems:
    """The items of one commit: of the rows in a bitmap, or all. The transaction must stay open while they are read."""

    def __init__(self, store: Store, connection: Connection, allowed: NDArray[np.uint8] | None) -> None:
        self._store, self._connection, self._allowed = store, connection, allowed
        self._sealed, self._fitted = Segments(store, connection), is_fitted(connection)
        self._numbers = 0 if self._fitted and store.features is None else store.settings["dim"]  # in each row

    def batches(self) -> Iterator[ItemBatch]:
        """Yield all items, in batches of at most BATCH_ROWS rows and about MAX_BATCH_BYTES."""
        batch: list[tuple[Any, ...]] = []
        size = 0
        for row in self._stored_rows():
            row_bytes = sum(len(value) for value in row if isinstance(value, (str, bytes)))
            row_bytes += NUMBER_TEXT_BYTES * self._numbers
            if batch and (len(batch) == BATCH_ROWS or size + row_bytes > MAX_BATCH_BYTES):
                yield self._parse(batch)
                batch, size = [], 0
            batch.append(row)
            size += row_bytes
        if batch:
            yield self._parse(batch)

    def _stored_rows(self) -> Iterator[tuple[Any, ...]]:
        tables = f"SELECT {COLUMNS} FROM items LEFT JOIN pictures USING (row)"
        if self._allowed is None:
            yield from self._connection.execute(f"{tables} ORDER BY row")
            return
        for start in range(0, len(self._allowed), BITMAP_PART):
            part = np.unpackbits(self._allowed[start : start + BITMAP_PART], bitorder="little")
            for marks, rows in batches((8 * start + np.flatnonzero(part)).tolist()):
                yield from self._connection.execute(f"{tables} WHERE row IN ({marks}) ORDER BY row", rows)

    @parsing("items")
    def _parse(self, stored: list[tuple[Any, ...]]) -> ItemBatch:
        numbers, ids, labels, metadata, codes, features, digests, pictures = map(list, zip(*stored, strict=True))
        lists, objects = (json.loads(f"[{','.join(texts)}]") for texts in (labels, metadata))
        kinds = set(map(type, ids)), set(map(type, lists)), set(map(type, objects)), set(map(type, pictures))
        if not all(own <= {*allowed} for own, allowed in zip(kinds, STORED_KINDS, strict=True)):
            raise BadState("items: expected ids, labels, metadata and pictures, got others")
        rows = np.array(numbers, np.int64)
        texts = list(map(JSON_ENCODER.encode, lists)), [None if one is None else json_text(one) for one in objects]
        if self._fitted:
            packed, known_digests, vectors, rescoring = self._coded(rows, codes, digests)
            return ItemBatch(rows, ids, *texts, pictures, packed, known_digests, vectors, rescoring)
        X = np.frombuffer(b"".join(features), np.float32).reshape(len(rows), self._store.settings["dim"])
        return ItemBatch(rows, ids, *texts, pictures, None, None, X)

    def _coded(
        self, rows: RowNumbers, blobs: list[Any], digests: list[Any]
    ) -> tuple[Codes, NDArray[np.int64], Floats | None, Codes | None]:
        """Return codes, digests and, where there are such, features and rescoring codes of rows, sealed or not."""
        codes = np.zeros((len(rows), width(self._store.settings["bits"])), np.uint8)
        numbers, known = np.full(len(rows), NO_DIGEST, np.int64), np.zeros(len(rows), bool)
        for place, blob in enumerate(blobs):
            if blob is not None:
                codes[place], known[place] = np.frombuffer(blob, np.uint8), True
                numbers[place] = digests[place] or NO_DIGEST
        sealed = self._sealed.read(rows[~known])
        places = np.searchsorted(rows, sealed.numbers)
        arrays = {}
        for table, stored in zip(self._store.row_arrays, sealed.arrays, strict=True):
            values = table.lost(len(rows)).astype(table.kind.read)
            values[known] = table.read(self._connection, rows[known])[0]
            values[places] = stored
            if table is self._store.features:
                values[find_lost(values)] = np.nan  # the same bytes for all that are lost
            arrays[table.kind] = values
        codes[places], numbers[places], known[places] = sealed.codes, sealed.digests, True
        if not known.all():
            raise BadState(f"items: {int((~known).sum())} items have no code, the first in row {rows[~known][0]}")
        return codes, numbers, arrays.get(FEATURES), arrays.get(RESCORING)


STORED_KINDS = (int, str), (list,), (dict, type(None)), (bytes, type(None))


def insert_items(store: Store, connection: Connection, batch: ItemBatch) -> None:
    """Insert items under their own rows, which must ascend from batch to batch, and count them.

    Their codes are in a segment that is written later.
    """
    waiting: list[bytes | None] = [None] * len(batch.ids)
    if batch.features is not None and batch.codes is None:
        waiting = [row.tobytes() for row in batch.features]
    columns = batch.rows.tolist(), batch.ids, batch.labels, batch.metadata, waiting
    sql = "INSERT INTO items (row, id, labels, metadata, features) VALUES (?, ?, ?, ?, ?)"
    try:
        connection.executemany(sql, zip(*columns, strict=True))
    except IntegrityError as error:
        raise BadState(f"items: expected each id and each row once: {error}") from error
    index_words(connection, columns[0], batch.metadata)
    pictures = ((row, data) for row, data in zip(columns[0], batch.pictures, strict=True) if data is not None)
    connection.executemany("INSERT INTO pictures VALUES (?, ?)", pictures)
    values = {FEATURES: batch.features, RESCORING: batch.rescoring}
    for table in store.row_arrays if batch.codes is not None else ():
        array = values[table.kind]
        assert array is not None
        known = ~find_lost(array)
        table.add(connection, batch.rows[known], array[known])
    set_meta(connection, "items", get_meta(connection, "items") + len(batch.ids))
