"""The items of a segment in files beside it, so that they can be read where there is no store.

    <name>.items      a SQLite database: table items (row, id, labels, metadata) and an index of the ids
    <name>.columns    labels and metadata by column, for filters (collection/storage/column_files.py)

Both are sealed files (files/sealed_files.py) and never change. SQLite reads the first as it is, since its header says
where the database ends; a page of it is a block with a checksum. Items whose labels or metadata changed after their
segment was written are in a patch: another file of items, which counts more than the segments and earlier patches.
"""

import heapq
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.column_use import group_blocks
from stillhash.collection.row_groups import GrowingRows, RowGroup
from stillhash.collection.storage.column_files import (
    ColumnFile,
    build_blocks,
    segment_contents,
    segment_identity,
    write_columns,
)
from stillhash.collection.storage.connections import restrict, sqlite_uri
from stillhash.collection.storage.item_contents import ItemRecord, matching_rows, read_records, rows_of_ids
from stillhash.collection.storage.segments import Segment
from stillhash.collection.types import Id
from stillhash.errors import BadState, StoreFailed
from stillhash.files.checksums import BLOCK_SIZE
from stillhash.files.sealed_files import check_sealed, content_size, create_private, display_name, write_sealed
from stillhash.search.blocks import Bitmap, is_set

ITEMS_FORMAT = 1
ITEMS_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE items (row INTEGER PRIMARY KEY, id NOT NULL, labels TEXT NOT NULL, metadata TEXT);
"""
NO_SEGMENT = bytes(8)  # the identity in a patch
COPY_BYTES = 1 << 22  # at a time
READ_ROWS = 1 << 12  # at a time, from each file
PATCH_ROWS = 1 << 17  # of one patch at most

StoredItem = tuple[int, Id, str, str | None]  # row and id, and as JSON texts labels and metadata


def write_items(
    path: Path, rows: Iterable[StoredItem], identity: bytes = NO_SEGMENT, named: list[str] | None = None
) -> int:
    """Write a file of items with ascending rows, of the segment of this identity or of none; return how many.

    named: the setting `filter_fields` of the collection.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.db")
    try:
        with closing(sqlite3.connect(create_private(unfinished), isolation_level=None)) as connection:
            for pragma in (f"page_size = {BLOCK_SIZE}", "journal_mode = OFF", "synchronous = OFF"):
                connection.execute(f"PRAGMA {pragma}")
            connection.executescript(ITEMS_SCHEMA)
            connection.execute("BEGIN")
            meta = {"format": ITEMS_FORMAT, "segment": identity, "filter_fields": json.dumps(named)}
            connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
            count = connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows).rowcount
            connection.execute("CREATE INDEX items_by_id ON items (id)")
            connection.execute("COMMIT")
        with unfinished.open("rb") as file:
            write_sealed(path, iter(lambda: file.read(COPY_BYTES), b""))
    except (sqlite3.OperationalError, OSError) as error:
        raise StoreFailed(f"{display_name(path)}: could not be written: {error}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return max(0, count)


class ItemsFile:
    """A file of items, open for reading by any number of threads."""

    def __init__(self, path: Path, identity: bytes = NO_SEGMENT, *, check: bool = True) -> None:
        """Open the file of the segment with this identity; BadState if it is damaged, or of another one.

        check: verify its checksums, unless that has been done since it was written.
        """
        self.path, self._lock = path, threading.Lock()
        if check:
            check_sealed(path)
        elif content_size(path) < BLOCK_SIZE:
            raise BadState(f"{display_name(path)}: not a file of items")
        try:
            self._connection = self._connect()
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

    def _connect(self) -> sqlite3.Connection:
        uri = f"{sqlite_uri(self.path.absolute())}?mode=ro&immutable=1"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        restrict(connection)
        return connection

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
        with closing(self._connect()) as connection:
            return np.sort(matching_rows(connection, condition))

    def row_numbers(self) -> NDArray[np.int64]:
        """Return all rows, ascending."""
        with self._lock:
            rows = self._connection.execute("SELECT row FROM items ORDER BY row").fetchall()
        return np.array(rows, np.int64).reshape(-1)

    def iterate(self) -> Iterator[list[StoredItem]]:
        """Yield all items by row, some at a time."""
        with closing(self._connect()) as connection:
            cursor = connection.execute("SELECT row, id, labels, metadata FROM items ORDER BY row")
            while rows := cursor.fetchmany(READ_ROWS):
                yield rows

    def build_columns(self, numbers: NDArray[np.int64]) -> list[Any]:
        """Return blocks of columns of these rows, built from the items."""
        with closing(self._connect()) as connection:
            return [builder.freeze() for builder in build_blocks(segment_contents(connection, numbers), self.named)]

    def write_columns(self, segment: Segment) -> None:
        """Write the columns of all items, which are those of a segment; failures are ignored."""
        with closing(self._connect()) as connection:
            contents = segment_contents(connection, segment.row_numbers())
            write_columns(segment.path, contents, (segment.rows, *segment.bounds()), 0, self.named)


class ItemPartition:
    """The items of one segment: by row, by id, by filter, and by the digests of features in the segment itself."""

    def __init__(self, segment: Segment, items: ItemsFile) -> None:
        self.segment, self.items = segment, items
        self.first, self.last = segment.bounds()
        self._groups: list[RowGroup] | None = None

    @classmethod
    def open(cls, segment: Segment, *, check: bool = True) -> "ItemPartition":
        """Open the items beside a segment; BadState if they are damaged, or of another segment."""
        path = segment.path.with_suffix(".items")
        return cls(segment, ItemsFile(path, segment_identity(segment.path), check=check))

    @property
    def rows(self) -> int:
        return self.segment.rows

    def groups(self, names: Iterable[str]) -> list[RowGroup]:
        """Return groups of rows whose columns of these names can be read; they are built again if the file cannot."""
        if self._groups is None:
            try:
                columns = ColumnFile(self.segment.path, (self.rows, self.first, self.last))
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
    path = segment.path.with_suffix(".items")
    identity = segment_identity(segment.path)
    count = write_items(path, rows, identity, named)
    with closing(ItemsFile(path, identity, check=False)) as items:
        if count != segment.rows or not np.array_equal(items.row_numbers(), segment.row_numbers()):
            path.unlink()
            raise BadState(f"{display_name(path)}: expected the {segment.rows} rows of its segment, got {count} others")
        items.write_columns(segment)


def merge_partitions(parts: Sequence[LivePartition], patches: Sequence[Patch], segment: Segment) -> None:
    """Write the items of a new segment, which holds the live rows of these partitions; a few rows at a time.

    Of an item that is in patches, the last one counts.
    """
    streams = [_live_items(part, patches) for part in parts]
    named = parts[0].partition.items.named if parts else None
    write_partition(segment, heapq.merge(*streams, key=itemgetter(0)), named)


def _live_items(part: LivePartition, patches: Sequence[Patch]) -> Iterator[StoredItem]:
    """Yield the items of a partition that are not deleted, as the patches have them."""
    start = 0
    for rows in part.partition.items.iterate():
        numbers = [row[0] for row in rows]
        if part.deleted is not None:
            keep = ~is_set(part.deleted, np.arange(start, start + len(rows)))
            start += len(rows)
            rows = [row for row, kept in zip(rows, keep.tolist(), strict=True) if kept]
        changed = {record[0]: record for patch in patches for record in patch.items.records(numbers)}
        yield from (_stored(changed.get(row[0])) or row for row in rows)


def _stored(record: ItemRecord | None) -> StoredItem | None:
    """Return a record as it is stored: no metadata in place of null."""
    if record is None:
        return None
    row, name, labels, metadata = record
    return row, name, labels, None if metadata == "null" else metadata
