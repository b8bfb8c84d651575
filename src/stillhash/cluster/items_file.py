"""Files of items: sealed SQLite databases with a table items (row, id, labels, metadata) and an index of the ids."""

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.cluster.sealed_database import check_database, connect_sealed, new_database
from stillhash.collection.storage.columns import (
    build_blocks,
    segment_contents,
    write_columns,
)
from stillhash.collection.storage.items import ItemRecord, matching_rows, read_records, rows_of_ids
from stillhash.collection.storage.schema import batches
from stillhash.collection.storage.segments import Segment
from stillhash.collection.types import Id
from stillhash.errors import BadState
from stillhash.files import display_name

ITEMS_FORMAT = 1
ITEMS_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE items (row INTEGER PRIMARY KEY, id NOT NULL, labels TEXT NOT NULL, metadata TEXT);
"""
NO_SEGMENT = bytes(8)  # the identity in a patch
ITEMS_PER_READ = 1 << 12  # at a time, from each file

StoredItem = tuple[int, Id, str, str | None]  # row and id, and as JSON texts labels and metadata


def write_items(
    path: Path, rows: Iterable[StoredItem], identity: bytes = NO_SEGMENT, named: list[str] | None = None
) -> int:
    """Write a file of items with ascending rows, of the segment of this identity or of none; return how many.

    named: the setting `filter_fields` of the collection.
    """
    with new_database(path, ITEMS_SCHEMA) as connection:
        meta = {"format": ITEMS_FORMAT, "segment": identity, "filter_fields": json.dumps(named)}
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        count = connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows).rowcount
        connection.execute("CREATE INDEX items_by_id ON items (id)")
    return max(0, count)


class ItemsFile:
    """A file of items, open for reading by any number of threads."""

    def __init__(self, path: Path, identity: bytes = NO_SEGMENT, *, check: bool = True) -> None:
        """Open the file of the segment with this identity; BadState if it is damaged, or of another one.

        check: verify its checksums.
        """
        self.path, self._lock = path, threading.Lock()
        check_database(path, checksums=check)
        try:
            self._connection = connect_sealed(path)
            try:
                meta = dict(self._connection.execute("SELECT key, value FROM meta"))
                if meta["format"] != ITEMS_FORMAT or meta["segment"] != identity:
                    raise BadState(
                        f"{display_name(path)}: expected items of format {ITEMS_FORMAT} of its segment, got others"
                    )
                self.named: list[str] | None = json.loads(meta["filter_fields"])
            except BaseException:
                self._connection.close()
                raise
        except (sqlite3.DatabaseError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, BadState):
                raise
            raise BadState(f"{display_name(path)}: not a file of items: {error}") from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def records(self, rows: list[int]) -> list[ItemRecord]:
        """Return the records of those of these rows that are here."""
        with self._lock:
            return [record for batch in read_records(self._connection, rows) for record in batch]

    def labels(self, rows: list[int]) -> dict[int, str]:
        """Return the labels of those of these rows that are here, as JSON texts."""
        labels: dict[int, str] = {}
        with self._lock:
            for marks, batch in batches(rows):
                labels.update(self._connection.execute(f"SELECT row, labels FROM items WHERE row IN ({marks})", batch))
        return labels

    def rows_of(self, ids: list[Id]) -> dict[Id, int]:
        """Return the rows of those of these ids that are here."""
        with self._lock:
            return rows_of_ids(self._connection, ids)

    def matching(self, condition: tuple[str, list[Any]]) -> NDArray[np.int64]:
        """Return the rows that meet a condition in SQL, ascending; other threads do not wait for it."""
        with closing(connect_sealed(self.path)) as connection:
            return np.sort(matching_rows(connection, condition))

    def row_numbers(self) -> NDArray[np.int64]:
        """Return all rows, ascending."""
        with self._lock:
            rows = self._connection.execute("SELECT row FROM items ORDER BY row").fetchall()
        return np.array(rows, np.int64).reshape(-1)

    def iterate(self) -> Iterator[list[StoredItem]]:
        """Yield all items by row, some at a time."""
        with closing(connect_sealed(self.path)) as connection:
            cursor = connection.execute("SELECT row, id, labels, metadata FROM items ORDER BY row")
            while rows := cursor.fetchmany(ITEMS_PER_READ):
                yield rows

    def iterate_ids(self, after: Id | None) -> Iterator[list[tuple[Id, int]]]:
        """Yield ids past one in order, integers and then texts, with their rows, some at a time."""
        condition, values = ("1", []) if after is None else ("id > ?", [after])
        with closing(connect_sealed(self.path)) as connection:
            cursor = connection.execute(f"SELECT id, row FROM items WHERE {condition} ORDER BY id", values)
            while pairs := cursor.fetchmany(ITEMS_PER_READ):
                yield pairs

    def build_columns(self, numbers: NDArray[np.int64]) -> list[Any]:
        """Return blocks of columns of these rows, built from the items."""
        with closing(connect_sealed(self.path)) as connection:
            return [builder.freeze() for builder in build_blocks(segment_contents(connection, numbers), self.named)]

    def write_columns(self, segment: Segment, path: Path) -> None:
        """Write the columns of all items, which are those of a segment; failures are ignored."""
        with closing(connect_sealed(self.path)) as connection:
            contents = segment_contents(connection, segment.row_numbers())
            write_columns(segment.path, contents, (segment.rows, *segment.bounds()), 0, self.named, path)
