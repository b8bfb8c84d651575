"""The items of all segments of a shard, at one manifest: what a search needs of them besides their codes."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from stillhash.cluster.items_file import ItemsFile
from stillhash.cluster.manifest import PatchEntry, SegmentEntry
from stillhash.cluster.partition import (
    COLUMNS_SUFFIX,
    ITEMS_SUFFIX,
    MAX_SHARD_FILTERS,
    RESCORING_SUFFIX,
    ItemPartition,
    LivePartition,
    Patch,
    beside,
)
from stillhash.cluster.segment_cache import SegmentCache
from stillhash.collection.filters.language import Condition
from stillhash.collection.storage.bitmaps import count_bits, set_rows
from stillhash.collection.storage.items import ITEM_BYTES, ItemContent, ItemRecord, read_contents
from stillhash.collection.storage.segments import Segment
from stillhash.collection.types import Id
from stillhash.errors import BadState, NotFound, TooLarge
from stillhash.search.blocks import Bitmap, IdArray, is_set


class ShardItems:
    """Items as the last patch has them, without deleted ones. Rows of other shards are not here, and match nothing."""

    def __init__(self, parts: Sequence[LivePartition], patches: Sequence[Patch] = ()) -> None:
        self._parts, self._patches = list(parts), list(patches)
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, Bitmap] = OrderedDict()

    @cached_property
    def live(self) -> Bitmap:
        """Return the rows that are here and not deleted, as a bitmap."""
        last = max((part.partition.last for part in self._parts), default=-1)
        bitmap = np.zeros(last // 8 + 1, np.uint8)
        for partition, deleted in self._parts:
            partition.live_bits(deleted).add_to(bitmap)
        return bitmap

    def existing(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of these rows that are here and not deleted, in their order."""
        known = rows[(rows >= 0) & (rows < 8 * len(self.live))]
        return known[is_set(self.live, known)]

    def records(self, rows: Iterable[int], max_bytes: int | None = None) -> list[ItemRecord]:
        """Return the records of those of these rows that are here, in any order; TooLarge if they take more bytes."""
        numbers = np.unique(self.existing(np.fromiter(rows, np.int64)))
        by_row: dict[int, ItemRecord] = {}
        left = max_bytes
        for some, items in self._sources(numbers):
            records = items.records(some.tolist())
            by_row |= {record[0]: record for record in records}
            if left is not None:
                left -= sum(len(record[2]) + len(record[3]) + ITEM_BYTES for record in records)
                if left < 0:
                    raise TooLarge(f"answer: expected at most {max_bytes} bytes, got more. Request fewer items.")
        if len(by_row) != len(numbers):
            raise BadState(f"items: expected {len(numbers)} rows in the files of the shard, got {len(by_row)}")
        return list(by_row.values())

    def labels(self, rows: IdArray) -> dict[int, str]:
        """Return the labels of these rows, which are here, as JSON texts."""
        labels: dict[int, str] = {}
        for some, items in self._sources(np.sort(rows)):
            labels |= items.labels(some.tolist())
        if len(labels) != len(rows):
            raise BadState(f"items: expected {len(rows)} rows in the files of the shard, got {len(labels)}")
        return labels

    def _sources(self, numbers: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], ItemsFile]]:
        """Yield which files hold these ascending rows, each row once: its last patch, or else its partition."""
        for patch in reversed(self._patches):
            changed = np.isin(numbers, patch.numbers, assume_unique=True)
            if changed.any():
                yield numbers[changed], patch.items
                numbers = numbers[~changed]
        for partition, _ in self._parts:
            start, end = np.searchsorted(numbers, [partition.first, partition.last + 1])
            if start < end:
                yield numbers[start:end], partition.items

    def contents(self, rows: Iterable[int], max_bytes: int | None = None) -> dict[int, ItemContent]:
        """Return id, labels and metadata of those of these rows that are here, as `ItemTable.contents` does."""
        return read_contents(lambda distinct: [self.records(distinct)], rows, max_bytes)

    def rows_of(self, ids: list[Id]) -> dict[Id, int]:
        """Return the rows of those of these ids that are here."""
        rows: dict[Id, int] = {}
        for partition, _ in self._parts:
            some = partition.items.rows_of(ids)
            live = set(self.existing(np.fromiter(some.values(), np.int64)).tolist())
            rows |= {name: row for name, row in some.items() if row in live}
        return rows

    def repeats(self, digests: Iterable[int]) -> list[IdArray]:
        """Return for each digest of features the rows that have it, ascending."""
        repeats = []
        for digest in digests:
            rows = [row for part in self._parts for row in part.partition.segment.rows_with(digest)]
            repeats.append(np.sort(self.existing(np.array(rows, np.int64))))
        return repeats

    def list_ids(self, condition: Condition | None, after: Id | None, limit: int) -> list[tuple[Id, int]]:
        """Return the first ids past one, integers and then texts, with their rows; only of items that match."""
        allowed = self.live if condition is None else self.matching(condition)
        listed: list[tuple[Id, int]] = []
        for partition, _ in self._parts:
            ordered = ((name, row) for some in partition.items.iterate_ids(after) for name, row in some)
            live = (
                pair for pair in ordered if pair[1] < 8 * len(allowed) and allowed[pair[1] >> 3] >> (pair[1] & 7) & 1
            )
            listed += islice(live, limit)
        return sorted(listed, key=lambda pair: (isinstance(pair[0], str), pair[0]))[:limit]

    def count(self, condition: Condition | None = None) -> int:
        """Return how many items there are, or how many meet a condition."""
        return count_bits(self.live if condition is None else self.matching(condition))

    def matching(self, condition: Condition) -> Bitmap:
        """Return the rows that meet a condition, as a bitmap; TooLarge if SQL must answer, and takes too long."""
        with self._lock:
            if (cached := self._cache.get(condition.key)) is not None:
                self._cache.move_to_end(condition.key)
                return cached
        bitmap = np.zeros(max([len(self.live), *(patch.bitmap_bytes for patch in self._patches)]), np.uint8)
        for partition, _ in self._parts:
            partition.matching(condition).add_to(bitmap)
        for patch in self._patches:
            set_rows(bitmap, patch.numbers, patch.matching(condition))
        bitmap = bitmap[: len(self.live)] & self.live
        bitmap.setflags(write=False)
        with self._lock:
            self._cache[condition.key] = bitmap
            if len(self._cache) > MAX_SHARD_FILTERS:
                self._cache.popitem(last=False)
        return bitmap


def open_partition(cache: SegmentCache, entry: SegmentEntry, segment: Segment) -> ItemPartition:
    """Open the items of a segment, or copies of them; BadState if they are not those that the manifest names.

    Columns that are absent or damaged are built again from the items.
    """
    items = cache.fetch(entry.name + ITEMS_SUFFIX, entry.items_checksum)
    try:
        columns = cache.fetch(entry.name + COLUMNS_SUFFIX, entry.columns_checksum)
    except (BadState, NotFound):
        columns = beside(items, COLUMNS_SUFFIX)  # a file that does not exist
    rescoring = None
    if entry.rescoring_checksum:
        rescoring = cache.fetch(entry.name + RESCORING_SUFFIX, entry.rescoring_checksum)
    return ItemPartition.open(segment, items, columns, rescoring)


def open_patch(cache: SegmentCache, entry: PatchEntry) -> Patch:
    """Open a patch, or a copy of it."""
    return Patch(cache.fetch(entry.name, entry.checksum))
