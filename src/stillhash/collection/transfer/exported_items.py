"""Read the items of one commit in order of their rows, a batch at a time."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from sqlite3 import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.database import committed_seq, connect
from stillhash.collection.storage.items import RowNumbers
from stillhash.collection.storage.row_arrays import find_lost
from stillhash.collection.storage.schema import batches, is_fitted, parsing
from stillhash.collection.storage.store import Store
from stillhash.collection.types import Id
from stillhash.errors import BadState
from stillhash.numeric.codes import width
from stillhash.numeric.kernels import read_tiles
from stillhash.numeric.validation import Codes, Floats

BATCH_ROWS = 4096
MAX_BATCH_BYTES = 1 << 25  # of a batch with more than one item
BITMAP_PART = 1 << 13  # bytes of a bitmap of rows that are listed at a time
NUMBER_TEXT_BYTES = 32  # of a feature, about, as a Python number or as text
COLUMNS = "row, id, labels, COALESCE(metadata, 'null'), code, features"


class ItemBatch(NamedTuple):
    """Items in ascending order of their rows."""

    ids: list[Id]
    labels: list[list[Any]]
    metadata: list[dict[str, Any] | None]
    codes: Codes | None  # None while items wait for hash functions
    features: Floats | None  # None once there are hash functions, unless they are kept; NaN where they are lost


@contextmanager
def pinned_commit(store: Store) -> Iterator[Connection]:
    """Read in one transaction of a connection of its own, so that this thread can read later commits meanwhile."""
    with store.reading():
        pass  # Closed if the store is closed, BadState if it is damaged
    try:
        with closing(connect(store.path, "ro")) as connection:
            connection.execute("BEGIN")
            committed_seq(connection)  # the commit that a transaction sees is that of its first read
            yield connection
    except sqlite3.DatabaseError as error:
        raise BadState(f"{store.path.name}: cannot be read: {error}") from error


class ExportedItems:
    """The items of one commit: of the rows in a bitmap, or all. The transaction must stay open while they are read.

    Segments are mapped at once, so that they can be read after another commit has replaced them.
    """

    def __init__(self, store: Store, connection: Connection, allowed: NDArray[np.uint8] | None) -> None:
        self._store, self._connection, self._allowed = store, connection, allowed
        self._fitted = is_fitted(connection)
        self._segments = list(store.codes.segments(connection))
        self._features = [] if store.features is None else store.features.mapped(connection)
        self._code_bytes, self._dim = width(store.settings["bits"]), store.settings["dim"]
        self.has_codes, self.has_features = self._fitted, not self._fitted or store.features is not None

    def batches(self) -> Iterator[ItemBatch]:
        """Yield all items, in batches of at most BATCH_ROWS rows and about MAX_BATCH_BYTES."""
        batch: list[tuple[Any, ...]] = []
        size = 0
        for row in self._stored_rows():
            row_bytes = sum(len(value) for value in row if isinstance(value, (str, bytes)))
            row_bytes += NUMBER_TEXT_BYTES * self._dim * self.has_features
            if batch and (len(batch) == BATCH_ROWS or size + row_bytes > MAX_BATCH_BYTES):
                yield self._parse(batch)
                batch, size = [], 0
            batch.append(row)
            size += row_bytes
        if batch:
            yield self._parse(batch)

    def _stored_rows(self) -> Iterator[tuple[Any, ...]]:
        if self._allowed is None:
            yield from self._connection.execute(f"SELECT {COLUMNS} FROM items ORDER BY row")
            return
        for start in range(0, len(self._allowed), BITMAP_PART):
            part = np.unpackbits(self._allowed[start : start + BITMAP_PART], bitorder="little")
            for marks, rows in batches((8 * start + np.flatnonzero(part)).tolist()):
                sql = f"SELECT {COLUMNS} FROM items WHERE row IN ({marks}) ORDER BY row"
                yield from self._connection.execute(sql, rows)

    @parsing("items")
    def _parse(self, stored: list[tuple[Any, ...]]) -> ItemBatch:
        numbers, ids, labels, metadata, codes, features = map(list, zip(*stored, strict=True))
        lists, objects = (json.loads(f"[{','.join(texts)}]") for texts in (labels, metadata))
        kinds = ((ids, (int, str)), (lists, (list,)), (objects, (dict, type(None))))
        if not all(type(value) in allowed for values, allowed in kinds for value in values):
            raise BadState("items: expected ids, labels and metadata, got others")
        if self._fitted:
            return ItemBatch(ids, lists, objects, *self._coded(np.array(numbers, np.int64), codes))
        X = np.frombuffer(b"".join(features), np.float32).reshape(len(ids), self._dim)
        return ItemBatch(ids, lists, objects, None, X)

    def _coded(self, rows: RowNumbers, blobs: list[Any]) -> tuple[Codes, Floats | None]:
        """Return codes and, where they are kept, features of ascending rows, sealed or not."""
        codes, known = np.zeros((len(rows), self._code_bytes), np.uint8), np.zeros(len(rows), bool)
        for place, blob in enumerate(blobs):
            if blob is not None:
                codes[place], known[place] = np.frombuffer(blob, np.uint8), True
        features = None
        if self._store.features is not None:
            features = self._store.features.lost(len(rows)).astype(np.float32)
            features[known] = self._store.features.read(self._connection, rows[known])[0]
        for number, segment in enumerate(self._segments):
            first, last = segment.bounds()
            inside = np.flatnonzero((rows >= first) & (rows <= last) & ~known)
            places = rows[inside] - segment.first
            if segment.numbers is not None:
                places = np.searchsorted(segment.numbers, rows[inside])
                held = segment.numbers[places] == rows[inside]
                inside, places = inside[held], places[held]
            if len(inside):
                codes[inside], known[inside] = read_tiles(segment.tiles, places), True
                if features is not None:
                    features[inside] = self._features[number][places]
        if not known.all():
            raise BadState(f"items: {int((~known).sum())} items have no code, the first in row {rows[~known][0]}")
        if features is not None:
            features[find_lost(features)] = np.nan
        return codes, features
