"""A shard: an index over the codes of some segments, in a process that Ray starts, monitors and restarts.

Shards are passive; the coordinator assigns versions. A request names the version it is about, and is answered from
that version or not at all. A restarted shard has no version: it replies None, and then gets a spec to load.
"""

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray

from stillhash.cluster.segment_cache import CACHE_BYTES, SegmentCache
from stillhash.cluster.segment_refs import SegmentRef
from stillhash.collection.storage.segments import Segment
from stillhash.numeric.validation import Codes, Floats
from stillhash.search import Hits, Index
from stillhash.search.blocks import Bitmap, IdArray

OLD_VERSIONS, OLD_VERSION_SECONDS = 8, 5.0  # that requests under way may still name


class ShardSegment(NamedTuple):
    """A segment, and the ids that were deleted from it."""

    ref: SegmentRef
    deleted: IdArray


class ShardSpec(NamedTuple):
    """Everything that a shard should hold."""

    version: int
    bits: int
    segments: list[ShardSegment]


class ShardChange(NamedTuple):
    """A version of a shard as a change of the version before it."""

    version: int
    base: int
    new_segments: list[SegmentRef]
    deleted: IdArray


class ShardRequest(NamedTuple):
    """Queries of one kind: the k best hits of each or, with thresholds, all hits from there up."""

    weights: Floats  # (m, bits)
    k: int
    thresholds: NDArray[np.float64] | None
    bitmap: int | None  # which of the bitmaps says what is allowed


class ShardReply(NamedTuple):
    """Hits for each request: one Hits (m, k) or, with thresholds, one for each query."""

    hits: list[list[Hits]]
    seconds: float


class ShardStatus(NamedTuple):
    """Where a shard runs and what it holds."""

    node: str
    pid: int
    version: int
    rows: int = 0
    segments: int = 0
    nbytes: int = 0
    plan: str = "scan"
    merging: bool = False  # rows are being merged into tables


class Shard:
    """The actor class. `threads` limits the threads of one search."""

    def __init__(self, cache: str | None = None, cache_bytes: int = CACHE_BYTES, threads: int | None = None) -> None:
        self.cache, self.threads = SegmentCache(None, cache, cache_bytes), threads
        self.version = -1
        self._segments: dict[SegmentRef, Segment] = {}
        self._indexes: dict[int, Index] = {}  # by version
        self._old_versions: list[tuple[float, int]] = []  # since when, which version

    def load(self, version: int, bits: int, segments: list[ShardSegment]) -> ShardStatus:
        """Load exactly these segments, in order, each without its deleted ids."""
        if version != self.version:
            index, opened = Index(bits, threads=self.threads), {}
            for ref, deleted in segments:
                opened[ref] = self._open(ref, bits)
                _apply(index, [opened[ref]], deleted)
            self._segments = opened
            self._enter(version, index)
        return self.status()

    def change(self, version: int, base: int, new_segments: list[SegmentRef], deleted: IdArray) -> ShardStatus | None:
        """Add segments to the version `base` and delete ids from it; None if that is not the current version."""
        if version == self.version:
            return self.status()
        if base != self.version:
            return None
        index = self._indexes[base]
        opened = {ref: self._open(ref, index.bits) for ref in new_segments}  # may fail, so before anything changes
        # Blocks are never changed, only replaced: the copy keeps the old ones.
        self._indexes[base] = index.frozen()
        _apply(index, opened.values(), deleted)
        self._segments.update(opened)
        self._enter(version, index)
        return self.status()

    def search(self, version: int, requests: list[ShardRequest], *bitmaps: Bitmap) -> ShardReply | None:
        """Answer requests from this version; None if the shard does not have it."""
        began = time.perf_counter()
        self._drop_old_versions()
        index = self._indexes.get(version)
        if index is None:
            return None
        hits = []
        for weights, k, thresholds, bitmap in requests:
            allowed = None if bitmap is None else bitmaps[bitmap]
            if thresholds is None:
                hits.append([index.search(weights, max(1, min(k, len(index))), allowed=allowed)])
            else:
                hits.append(index.range_search(weights, thresholds, allowed=allowed))
        return ShardReply(hits, time.perf_counter() - began)

    def codes(self, version: int, ids: IdArray) -> Codes | None:
        """Return the codes of these ids in this version; None if the shard does not have it."""
        index = self._indexes.get(version)
        return None if index is None else index.codes(ids)

    def status(self) -> ShardStatus:
        """Report where the shard runs and what it holds."""
        self._drop_old_versions()
        index = self._indexes.get(self.version)
        node = str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""
        if index is None:
            return ShardStatus(node, os.getpid(), self.version)
        index.merge_if_due()  # rows that came while tables were being built
        content = len(index), len(self._segments), index.nbytes, index.plan, index.merging
        return ShardStatus(node, os.getpid(), self.version, *content)

    def _open(self, ref: SegmentRef, bits: int) -> Segment:
        segment = self._segments.get(ref)
        return self.cache.open(ref, bits) if segment is None or segment.bits != bits else segment

    def _enter(self, version: int, index: Index) -> None:
        if self.version in self._indexes:
            self._old_versions.append((time.monotonic(), self.version))
        self._indexes[version], self.version = index, version
        self._drop_old_versions()

    def _drop_old_versions(self) -> None:
        oldest = time.monotonic() - OLD_VERSION_SECONDS
        while self._old_versions and (len(self._old_versions) > OLD_VERSIONS or self._old_versions[0][0] < oldest):
            self._indexes.pop(self._old_versions.pop(0)[1], None)


def _apply(index: Index, segments: Iterable[Segment], deleted: IdArray) -> None:
    """Add segments to an index, then remove ids from it."""
    for segment in segments:
        index.add_tiles(segment.tiles, segment.rows, segment.row_numbers())
    if len(deleted):
        index.remove(deleted)
