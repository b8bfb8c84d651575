"""Keep an index on storage small: join small segments, drop deleted rows, and delete files that no manifest names.

Everything is written before the commit that names it, one group of segments at a time, so searches and writes go on. A
group that was changed meanwhile is left for the next time.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

from stillhash.cluster.compaction import Compaction, MergeItems, compact_group, plan_compaction, with_compaction
from stillhash.cluster.garbage import collect_garbage
from stillhash.cluster.manifest import ITEM_SUFFIXES, ClusterManifest, SegmentEntry
from stillhash.cluster.partition import LivePartition, beside, merge_partitions, with_items
from stillhash.cluster.segment_cache import SegmentCache
from stillhash.cluster.shard_items import open_partition, open_patch
from stillhash.errors import Conflict, StillhashError
from stillhash.search.blocks import Bitmap

LOG = logging.getLogger("stillhash.cluster")
UPKEEP_SECONDS = 10.0  # between two looks at the segments
GARBAGE_SECONDS = 600.0  # between two looks for files that no manifest names
MANY_SEGMENTS = 8  # small ones, which are joined without a call of `compact`

CompactionProgress = Callable[[int, int], object]  # rows done, and rows in all


class CompactedIndex(Protocol):
    """What a compaction needs of the writer."""

    @property
    def manifest(self) -> ClusterManifest: ...
    @property
    def cache(self) -> SegmentCache: ...
    def commit_change(self, change: Callable[[ClusterManifest], ClusterManifest]) -> ClusterManifest: ...


def compact_index(index: CompactedIndex, progress: CompactionProgress = lambda done, rows: None, least: int = 1) -> int:
    """Rewrite the segments of all shards that are due, and return how many files of codes are fewer.

    least : segments that are joined at least, unless rows of them are deleted.
    """
    manifest, saved, done = index.manifest, 0, 0
    groups = [group for shard in manifest.shards for group in plan_compaction(manifest, shard)]
    groups = [group for group in groups if len(group) >= least or any(entry.deleted for entry in group)]
    rows = sum(entry.live for group in groups for entry in group)
    for group in groups:
        added = compact_group(index.cache, manifest, group, _item_merger(index.cache, manifest))
        compaction = Compaction(tuple(group), tuple(added))
        try:
            index.commit_change(lambda current, change=compaction: with_compaction(current, change))  # type: ignore[misc]
            saved += len(group) - len(added)
        except Conflict:  # rows were deleted or moved meanwhile; garbage collection deletes what was written
            LOG.info("compaction: a group of %d segments changed meanwhile, and is left as it is", len(group))
        done += sum(entry.live for entry in group)
        progress(done, rows)
    return saved


def _item_merger(cache: SegmentCache, manifest: ClusterManifest) -> MergeItems:
    """Return the function that writes the items of a new segment from those of the old ones."""

    def merge(old: Sequence[tuple[SegmentEntry, Bitmap]], new: SegmentEntry) -> SegmentEntry:
        segment = cache.open(new, manifest.bits)
        with ExitStack() as opened:
            parts = []
            for entry, deleted in old:
                partition = open_partition(cache, entry, cache.open(entry, manifest.bits))
                opened.callback(partition.close)
                parts.append(LivePartition(partition, deleted))
            patches = [open_patch(cache, entry) for entry in manifest.patches]
            for patch in patches:
                opened.callback(patch.close)
            merge_partitions(parts, patches, segment)
        if cache.storage is not None and cache.storage.local_path(new.name) is None:
            for suffix in ITEM_SUFFIXES:
                if (file := beside(segment.path, suffix)).exists():
                    cache.storage.put_file(file, new.name + suffix)
        return with_items(new, segment.path)

    return merge


class Upkeep:
    """Compacts and collects garbage in a thread of the writer."""

    def __init__(self, index: CompactedIndex) -> None:
        self._index, self._stopped, self._collected = index, threading.Event(), time.monotonic()
        self.failure: StillhashError | None = None  # of the last round
        self._thread = threading.Thread(target=self._run, name="stillhash-upkeep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop after the group that is being rewritten."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(UPKEEP_SECONDS):
            try:
                if not self._index.manifest.source:  # else its publisher joins segments
                    compact_index(self._index, least=MANY_SEGMENTS)
                if time.monotonic() - self._collected > GARBAGE_SECONDS and self._index.cache.storage is not None:
                    self._collected = time.monotonic()
                    collect_garbage(self._index.cache.storage)
                self.failure = None
            except StillhashError as error:  # tried again
                self.failure = error
                LOG.warning("upkeep: %s: %s", type(error).__name__, error)
