"""The items of a segment in files beside it, so that they can be read where there is no store.

    <name>.items      a SQLite database: table items (row, id, labels, metadata) and an index of the ids
    <name>.columns    labels and metadata by column, for filters (collection/storage/columns.py)
    <name>.rescoring  the rescoring codes, if the collection has some (collection/storage/row_arrays.py)

All are sealed files and never change (sealed_database.py). Items whose labels or metadata changed after their segment
was written are in a patch: another file of items, which replace those of the segments and of earlier patches.
"""

import heapq
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.cluster.items_file import ItemsFile, StoredItem, write_items
from stillhash.cluster.manifest import ITEM_SUFFIXES, SegmentEntry
from stillhash.collection.filters.columns import (
    ColumnUse,
    NotInColumns,
    RowGroup,
    column_names,
    column_tree,
    group_blocks,
    match_groups,
)
from stillhash.collection.filters.language import Condition
from stillhash.collection.storage.bitmaps import set_rows, set_span
from stillhash.collection.storage.columns import (
    ColumnFile,
    segment_identity,
)
from stillhash.collection.storage.items import ItemRecord
from stillhash.collection.storage.row_arrays import RESCORING, ROWS_PER_PART, array_header, map_array
from stillhash.collection.storage.segments import Segment
from stillhash.errors import BadState
from stillhash.files import display_name, file_checksum, write_sealed
from stillhash.numeric.validation import Codes, Mask
from stillhash.search.blocks import Bitmap, clear, is_set

ITEMS_SUFFIX, COLUMNS_SUFFIX, RESCORING_SUFFIX = ITEM_SUFFIXES
PATCH_ROWS = 1 << 17  # of one patch at most
MAX_SHARD_FILTERS = 16  # the latest filters, whose rows a segment and a shard remember


def beside(segment: Path, suffix: str) -> Path:
    """Return the path of the items, the columns or the rescoring codes of a segment."""
    return segment.with_name(segment.name + suffix)


class RowBits(NamedTuple):
    """A bitmap of the rows from 8 * start on."""

    start: int
    bitmap: Bitmap

    @classmethod
    def empty(cls, first: int, last: int) -> "RowBits":
        """Return one without any row, with space for the rows from `first` to `last`."""
        return cls(first // 8, np.zeros(last // 8 - first // 8 + 1, np.uint8))

    def add_to(self, bitmap: Bitmap) -> None:
        """Set these rows in a bitmap of all rows."""
        bitmap[self.start : self.start + len(self.bitmap)] |= self.bitmap


class ItemPartition:
    """The items of one segment: by row, by id, by filter, and by the digests of features in the segment itself."""

    def __init__(self, segment: Segment, items: ItemsFile, columns: Path, rescoring: Codes | None = None) -> None:
        self.segment, self.items, self._columns = segment, items, columns
        self.rescoring = rescoring  # (rows, width), mapped; None without rescoring codes
        self.first, self.last = segment.bounds()
        self._groups: list[RowGroup] | None = None
        self._lock, self._use = threading.Lock(), ColumnUse()
        self._cache: OrderedDict[str, RowBits] = OrderedDict()

    @classmethod
    def open(
        cls,
        segment: Segment,
        items: Path | None = None,
        columns: Path | None = None,
        rescoring: Path | None = None,
        *,
        check: bool = True,
    ) -> "ItemPartition":
        """Open the items of a segment, which are beside it unless other paths are given.

        BadState if they are damaged, or of another segment. Columns need not be there. rescoring: None if the
        collection has no rescoring codes.
        """
        codes = None if rescoring is None else map_array(rescoring, RESCORING, segment.rows)
        file = ItemsFile(items or beside(segment.path, ITEMS_SUFFIX), segment_identity(segment.path), check=check)
        return cls(segment, file, columns or beside(segment.path, COLUMNS_SUFFIX), codes)

    @property
    def rows(self) -> int:
        return self.segment.rows

    def _readable_groups(self, names: Iterable[str]) -> list[RowGroup]:
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
        start = self.first // 8 * 8  # of the bitmaps that the groups set bits of
        numbers = None if self.segment.numbers is None else np.asarray(self.segment.numbers) - start
        return group_blocks(self.first - start, numbers, blocks)

    @cached_property
    def row_bits(self) -> RowBits:
        """Which rows the segment has."""
        bits = RowBits.empty(self.first, self.last)
        numbers = self.segment.numbers
        rows = self.rows if numbers is None else np.asarray(numbers) - 8 * bits.start
        if isinstance(rows, int):
            set_span(bits.bitmap, self.first % 8, np.ones(rows, bool))
        else:
            set_rows(bits.bitmap, rows, np.ones(len(rows), bool))
        return bits

    def live_bits(self, deleted: Bitmap | None) -> RowBits:
        """Return which rows are not deleted, by a bitmap of deleted places in the segment."""
        if deleted is None:
            return self.row_bits
        bits = RowBits(self.row_bits.start, self.row_bits.bitmap.copy())
        places = np.flatnonzero(np.unpackbits(deleted, count=self.rows, bitorder="little"))
        numbers = self.first + places if self.segment.numbers is None else np.asarray(self.segment.numbers)[places]
        clear(bits.bitmap, numbers - 8 * bits.start)
        return bits

    def live_rows(self, deleted: Bitmap | None) -> NDArray[np.int64]:
        """Return the rows that are not deleted, as `live_bits` does."""
        numbers = self.segment.row_numbers()
        return numbers if deleted is None else numbers[~is_set(deleted, np.arange(len(numbers)))]

    def matching(self, condition: Condition) -> RowBits:
        """Return which rows meet a condition, as their segment was written; TooLarge if SQL takes too long."""
        with self._lock:
            if (cached := self._cache.get(condition.key)) is not None:
                self._cache.move_to_end(condition.key)
                return cached
        bits = RowBits.empty(self.first, self.last)
        if not self._match_by_columns(condition, bits):
            rows = self.items.matching(condition.sql) - 8 * bits.start
            set_rows(bits.bitmap, rows, np.ones(len(rows), bool))
        bits.bitmap.setflags(write=False)
        with self._lock:
            self._cache[condition.key] = bits
            if len(self._cache) > MAX_SHARD_FILTERS:
                self._cache.popitem(last=False)
        return bits

    def _match_by_columns(self, condition: Condition, bits: RowBits) -> bool:
        """Set the rows that match; return False if columns cannot answer."""
        names = column_names(condition.tree)
        with self._lock:
            try:
                tree = column_tree(condition.tree)
                columns = self._use.columns_of(self._readable_groups(names), names)
            except (NotInColumns, BadState, OSError, RecursionError):
                return False
        match_groups(columns, tree, bits.bitmap)
        return True

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

    def matching(self, condition: Condition) -> Mask:
        """Return which of its rows meet a condition."""
        matches = self.items.matching(condition.sql)
        return np.isin(self.numbers, matches, assume_unique=True)

    def close(self) -> None:
        """Close the file."""
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


def with_items(entry: SegmentEntry, segment: Path) -> SegmentEntry:
    """Return an entry with the checksums of the files of items that were written beside a segment."""
    files = (beside(segment, suffix) for suffix in ITEM_SUFFIXES)
    items, columns, rescoring = (file_checksum(file) if file.exists() else "" for file in files)
    return entry._replace(items=True, items_checksum=items, columns_checksum=columns, rescoring_checksum=rescoring)


def merge_partitions(parts: Sequence[LivePartition], patches: Sequence[Patch], segment: Segment) -> None:
    """Write the items of a new segment, which holds the live rows of these partitions; a few rows at a time.

    Of an item that is in patches, the last one counts.
    """
    streams = [live_items(part, patches) for part in parts]
    named = parts[0].partition.items.named if parts else None
    write_partition(segment, heapq.merge(*streams, key=itemgetter(0)), named)
    located = [(one.segment.row_numbers(), one.rescoring) for one, _ in parts if one.rescoring is not None]
    if located:
        write_sealed(beside(segment.path, RESCORING_SUFFIX), _rescoring_parts(located, segment.row_numbers()))


def _rescoring_parts(located: Sequence[tuple[NDArray[np.int64], Codes]], numbers: NDArray[np.int64]) -> Iterator[bytes]:
    """Yield the content of a file with the rescoring codes of these rows, given those of some segments."""
    width = located[0][1].shape[1]
    yield array_header(RESCORING, width, len(numbers))
    for start in range(0, len(numbers), ROWS_PER_PART):
        some = numbers[start : start + ROWS_PER_PART]
        codes = np.full((len(some), width), 0xFF, np.uint8)  # lost
        for rows, stored in located:
            places = np.minimum(np.searchsorted(rows, some), len(rows) - 1)
            held = rows[places] == some
            codes[held] = stored[places[held]]
        yield codes.tobytes()


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
