"""Read the items of one commit in order of their rows, a batch at a time, and insert such batches under their rows."""

import json
from collections.abc import Iterable, Iterator
from sqlite3 import Connection, IntegrityError
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.items import RowNumbers
from stillhash.collection.storage.schema import batches, get_meta, is_fitted, parsing, set_meta
from stillhash.collection.storage.segments import Segment
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
PLACES_PART = 1 << 20  # digests that are compared at a time
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
    features: Floats | None  # None once there are hash functions


class SealedCodes:
    """The segments of a commit, mapped, so that they can be read after another commit has replaced them."""

    def __init__(self, segments: Iterable[Segment], bits: int) -> None:
        self._segments, self._bits = list(segments), bits

    def read(self, rows: RowNumbers) -> tuple[RowNumbers, Codes, NDArray[np.int64]]:
        """Return which of these ascending rows are sealed, with their codes and digests."""
        sealed = [np.empty(0, np.int64)], [np.empty((0, width(self._bits)), np.uint8)], [np.empty(0, np.int64)]
        for segment in self._segments:
            first, last = segment.bounds()
            numbers = rows[np.searchsorted(rows, first) : np.searchsorted(rows, last, "right")]
            places = numbers - first if segment.numbers is None else np.searchsorted(segment.numbers, numbers)
            if segment.numbers is not None:
                known = segment.numbers[places] == numbers
                numbers, places = numbers[known], places[known]
            if len(numbers):
                sealed[0].append(numbers)
                sealed[1].append(read_tiles(segment.tiles, places))
                sealed[2].append(_digests(segment, places))
        return np.concatenate(sealed[0]), np.concatenate(sealed[1]), np.concatenate(sealed[2])


def _digests(segment: Segment, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the digests of ascending places. They are stored by digest, so all are compared, a part at a time."""
    digests = np.full(len(places), NO_DIGEST, np.int64)
    for start in range(0, len(segment.places), PLACES_PART):
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
        self._sealed = SealedCodes(store.codes.segments(connection), store.settings["bits"])
        self.fitted = is_fitted(connection)

    def batches(self) -> Iterator[ItemBatch]:
        """Yield all items, in batches of at most BATCH_ROWS rows and about MAX_BATCH_BYTES."""
        batch: list[tuple[Any, ...]] = []
        size = 0
        for row in self._stored_rows():
            row_bytes = sum(len(value) for value in row if isinstance(value, (str, bytes)))
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
        if self.fitted:
            return ItemBatch(rows, ids, *texts, pictures, *self._codes(rows, codes, digests), None)
        X = np.frombuffer(b"".join(features), np.float32).reshape(len(rows), self._store.settings["dim"])
        return ItemBatch(rows, ids, *texts, pictures, None, None, X)

    def _codes(self, rows: RowNumbers, blobs: list[Any], digests: list[Any]) -> tuple[Codes, NDArray[np.int64]]:
        """Return the codes and digests of rows, sealed or not."""
        codes = np.zeros((len(rows), width(self._store.settings["bits"])), np.uint8)
        numbers, known = np.full(len(rows), NO_DIGEST, np.int64), np.zeros(len(rows), bool)
        for place, blob in enumerate(blobs):
            if blob is not None:
                codes[place], known[place] = np.frombuffer(blob, np.uint8), True
                numbers[place] = digests[place] or NO_DIGEST
        sealed, sealed_codes, sealed_digests = self._sealed.read(rows[~known])
        places = np.searchsorted(rows, sealed)
        codes[places], numbers[places], known[places] = sealed_codes, sealed_digests, True
        if not known.all():
            raise BadState(f"items: {int((~known).sum())} items have no code, the first in row {rows[~known][0]}")
        return codes, numbers


STORED_KINDS = (int, str), (list,), (dict, type(None)), (bytes, type(None))


def insert_items(connection: Connection, batch: ItemBatch) -> None:
    """Insert items under their own rows, which must ascend from batch to batch, and count them.

    Their codes are in a segment that is written later.
    """
    features: list[bytes | None] = [None] * len(batch.ids)
    if batch.features is not None:
        features = [row.tobytes() for row in batch.features]
    columns = batch.rows.tolist(), batch.ids, batch.labels, batch.metadata, features
    sql = "INSERT INTO items (row, id, labels, metadata, features) VALUES (?, ?, ?, ?, ?)"
    try:
        connection.executemany(sql, zip(*columns, strict=True))
    except IntegrityError as error:
        raise BadState(f"items: expected each id and each row once: {error}") from error
    pictures = ((row, data) for row, data in zip(columns[0], batch.pictures, strict=True) if data is not None)
    connection.executemany("INSERT INTO pictures VALUES (?, ?)", pictures)
    set_meta(connection, "items", get_meta(connection, "items") + len(batch.ids))
