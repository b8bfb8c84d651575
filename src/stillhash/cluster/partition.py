"""The items of a segment in files beside it, so that they can be read where there is no store.

    <name>.items      a SQLite database: table items (row, id, labels, metadata) and an index of the ids
    <name>.columns    labels and metadata by column, for filters (collection/storage/column_files.py)

Both are sealed files and never change (sealed_database.py). Items whose labels or metadata changed after their segment
was written are in a patch: another file of items, which counts more than the segments and earlier patches.
"""

import heapq
import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.cluster.manifest import ITEM_SUFFIXES
from stillhash.cluster.sealed_database import check_database, connect_sealed, new_database
from stillhash.collection.column_use import group_blocks
from stillhash.collection.row_groups import GrowingRows, RowGroup
from stillhash.collection.storage.column_files import (
    ColumnFile,
    build_blocks,
    segment_contents,
    segment_identity,
    write_columns,
)
from stillhash.collection.storage.item_contents import ItemRecord, matching_rows, read_records, rows_of_ids
from stillhash.collection.storage.segments import Segment
from stillhash.collection.types import Id
from stillhash.errors import BadState
from stillhash.files.sealed_files import display_name
from stillhash.search.blocks import Bitmap, is_set

ITEMS_SUFFIX, COLUMNS_SUFFIX = ITEM_SUFFIXES
ITEMS_FORMAT = 1
ITEMS_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE items (row INTEGER PRIMARY KEY, id NOT NULL, labels TEXT NOT NULL, metadata TEXT);
"""
NO_SEGMENT = bytes(8)  # the identity in a patch
ITEMS_PER_READ = 1 << 12  # at a time, from each file
PATCH_ROWS = 1 << 17  # of one patch at most

StoredItem = tuple[int, Id, str, str | None]  # row and id, and as JSON texts labels and metadata


def beside(segment: Path, suffix: str) -> Path:
    """Return the path of the items or the columns of a segment."""
    return segment.with_name(segment.name + suffix)


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

        check: verify its checksums, unless that has been done since it was written.
        """
        self.path, self._lock = path, threading.Lock()
        check_database(path, checksums=check)
        try:
            self._connection = connect_sealed(path)
            try:
                meta = dict(self._connection.execute("SELECT key, value FROM meta"))
                if meta["format"] != ITEMS_FORMAT or meta["segment"] != identity:
                    raise BadState(f"{display_name(path)}: of another segment or format")
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


class ItemPartition:
    """The items of one segment: by row, by id, by filter, and by the digests of features in the segment itself."""

    def __init__(self, segment: Segment, items: ItemsFile, columns: Path) -> None:
        self.segment, self.items, self._columns = segment, items, columns
        self.first, self.last = segment.bounds()
        self._groups: list[RowGroup] | None = None

    @classmethod
    def open(
        cls, segment: Segment, items: Path | None = None, columns: Path | None = None, *, check: bool = True
    ) -> "ItemPartition":
        """Open the items of a segment, which are beside it unless other paths are given.

        BadState if they are damaged, or of another segment. Columns need not be there.
        """
        file = ItemsFile(items or beside(segment.path, ITEMS_SUFFIX), segment_identity(segment.path), check=check)
        return cls(segment, file, columns or beside(segment.path, COLUMNS_SUFFIX))

    @property
    def rows(self) -> int:
        return self.segment.rows

    def groups(self, names: Iterable[str]) -> list[RowGroup]:
        """Return groups of rows whose columns of these names can be read; they are built again if the file cannot."""
        if self._groups is None:
            try:
                columns = ColumnFile(self.segment.path, (self.rows, self.first, self.last), self._columns)
                self._groups = self._group(columns.blocks)
            except (BadState, OSError, ValueError):
                self._groups = self._group(self.items.build_columns(self.segment.row_numbers()))
        try:
            for group in self._groups:
                for name in set(names).intersection(group.source.names()):
                    group.source.column(name)
        except BadState:
            self._groups = self._group(self.items.build_columns(self.segment.row_numbers()))
        return self._groups

    def _group(self, blocks: Sequence[Any]) -> list[RowGroup]:
        return group_blocks(self.first, None if self.segment.numbers is None else self.segment.row_numbers(), blocks)

    def live_rows(self, deleted: Bitmap | None) -> NDArray[np.int64]:
        """Return the rows without those that are deleted, by a bitmap of places in the segment."""
        numbers = self.segment.row_numbers()
        return numbers if deleted is None else numbers[~is_set(deleted, np.arange(len(numbers)))]

    def close(self) -> None:
        """Close the file of items, and drop what is mapped."""
        self._groups = None
        self.items.close()


class Patch:
    """Items that changed after their segments were written."""

    def __init__(self, path: Path, *, check: bool = True) -> None:
        self.items = ItemsFile(path, check=check)
        self.numbers = self.items.row_numbers()
        if len(self.numbers) > PATCH_ROWS:
            self.items.close()
            raise BadState(f"{display_name(path)}: expected at most {PATCH_ROWS} rows in a patch")
        self.bitmap_bytes = int(self.numbers[-1]) // 8 + 1 if len(self.numbers) else 0  # of a bitmap with all rows
        self._growing: GrowingRows | None = None

    def groups(self) -> list[RowGroup]:
        """Return the rows with their columns."""
        if self._growing is None:
            growing = GrowingRows(self.items.named)
            for rows in self.items.iterate():
                growing.append([(row, labels, metadata) for row, _, labels, metadata in rows])
            self._growing = growing
        return self._growing.groups()

    def close(self) -> None:
        """Close the file."""
        self._growing = None
        self.items.close()


class LivePartition(NamedTuple):
    """A partition and a bitmap of the places in its segment that are deleted; None if none are."""

    partition: ItemPartition
    deleted: Bitmap | None = None


def write_partition(segment: Segment, rows: Iterable[StoredItem], named: list[str] | None) -> None:
    """Write the items of a segment beside it, and their columns; BadState unless they are the rows of the segment."""
    path, identity = beside(segment.path, ITEMS_SUFFIX), segment_identity(segment.path)
    count = write_items(path, rows, identity, named)
    with closing(ItemsFile(path, identity, check=False)) as items:
        if count != segment.rows or not np.array_equal(items.row_numbers(), segment.row_numbers()):
            path.unlink()
            raise BadState(f"{display_name(path)}: expected the {segment.rows} rows of its segment, got {count} others")
        items.write_columns(segment, beside(segment.path, COLUMNS_SUFFIX))


def merge_partitions(parts: Sequence[LivePartition], patches: Sequence[Patch], segment: Segment) -> None:
    """Write the items of a new segment, which holds the live rows of these partitions; a few rows at a time.

    Of an item that is in patches, the last one counts.
    """
    streams = [live_items(part, patches) for part in parts]
    named = parts[0].partition.items.named if parts else None
    write_partition(segment, heapq.merge(*streams, key=itemgetter(0)), named)


def live_items(part: LivePartition, patches: Sequence[Patch]) -> Iterator[StoredItem]:
    """Yield the items of a partition that are not deleted, as the patches have them."""
    start = 0
    for rows in part.partition.items.iterate():
        numbers = [row[0] for row in rows]
        if part.deleted is not None:
            keep = ~is_set(part.deleted, np.arange(start, start + len(rows)))
            start += len(rows)
            rows = [row for row, live in zip(rows, keep.tolist(), strict=True) if live]
        changed = {record[0]: record for patch in patches for record in patch.items.records(numbers)}
        yield from (_stored(changed.get(row[0])) or row for row in rows)


def _stored(record: ItemRecord | None) -> StoredItem | None:
    """Return a record as it is stored: no metadata in place of null."""
    if record is None:
        return None
    row, name, labels, metadata = record
    return row, name, labels, None if metadata == "null" else metadata
