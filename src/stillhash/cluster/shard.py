"""A shard: an index over the codes of some segments, which loads and updates itself from the manifest on storage.

A request names the number of a manifest, and is answered from the rows of that commit or not at all. The states of the
latest commits are kept for requests under way; they share the codes, which are mapped from files.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.cluster.deletions import load_deletions
from stillhash.cluster.manifest import ClusterManifest, SegmentEntry, read_latest, read_manifest
from stillhash.cluster.partition import ItemPartition, LivePartition, Patch
from stillhash.cluster.requests import SearchRequest, group_requests, join_requests, split_hits
from stillhash.cluster.segment_cache import SegmentCache
from stillhash.cluster.shard_items import ShardItems, open_partition, open_patch
from stillhash.cluster.storage import Storage
from stillhash.collection.filters.language import Condition
from stillhash.collection.storage.segments import Segment
from stillhash.errors import InvalidInput, NotFound
from stillhash.numeric.codes import TILE, width
from stillhash.numeric.kernels import read_tiles
from stillhash.numeric.validation import Codes
from stillhash.search import CodeIndex, Hits, Index
from stillhash.search.blocks import NO_IDS, Bitmap, Block, IdArray, is_set
from stillhash.search.gpu import restore_for
from stillhash.search.index_files import SavedIndex
from stillhash.search.merge import no_floors
from stillhash.search.miwq import SubstringTables

OLD_STATES, OLD_STATE_SECONDS = 64, 20.0  # that requests under way may still name


class StaleNumber(Exception):
    """The state of this commit has been dropped; a later one is current."""


class ShardStatus(NamedTuple):
    """What a shard holds."""

    shard: int
    number: int  # of the manifest; -1 before the first is loaded
    rows: int = 0
    segments: int = 0
    nbytes: int = 0
    plan: str = "scan"
    merging: bool = False  # rows are being merged into tables


class LoadedSegment(NamedTuple):
    """A segment as a manifest has it, with its deleted rows as a bitmap."""

    entry: SegmentEntry
    segment: Segment
    deleted: Bitmap | None
    partition: ItemPartition | None = None  # where items are beside it

    def block(self) -> Block:
        """Return the rows for an index, without a copy of their codes."""
        live = None
        if self.deleted is not None:
            live = np.full(len(self.segment.tiles) * TILE // 8, 255, np.uint8)
            live[: len(self.deleted)] &= ~self.deleted
        ids = None if self.segment.numbers is None else np.asarray(self.segment.numbers)
        return Block(self.segment.tiles, self.segment.rows, self.segment.first, ids, live)

    def deleted_ids(self, before: Bitmap | None = None) -> IdArray:
        """Return the ids that are deleted, and were not before."""
        if self.deleted is None:
            return NO_IDS
        bitmap = self.deleted if before is None else self.deleted & ~before
        places = np.flatnonzero(np.unpackbits(bitmap, count=self.entry.rows, bitorder="little"))
        return self.segment.row_numbers()[places]

    def places(self, ids: IdArray) -> tuple[IdArray, NDArray[np.int64]]:
        """Return those of the ascending ids that it holds, and their places."""
        start, end = np.searchsorted(ids, [self.entry.first, self.entry.last + 1])
        some = ids[start:end]
        if self.segment.numbers is None:
            places = some - self.segment.first
        else:
            places = np.searchsorted(self.segment.numbers, some)
            same = self.segment.numbers[places] == some
            some, places = some[same], places[same]
        if self.deleted is not None:
            live = ~is_set(self.deleted, places)
            some, places = some[live], places[live]
        return some, places

    def rescoring_codes(self, places: NDArray[np.int64], width: int) -> Codes:
        """Return the rescoring codes (n, width) at these places; all bytes 0xFF where there are none."""
        if self.partition is None or self.partition.rescoring is None or self.partition.rescoring.shape[1] != width:
            return np.full((len(places), width), 0xFF, np.uint8)
        return self.partition.rescoring[places]


class PageRows(NamedTuple):
    """What the first page reads of some rows."""

    ids: IdArray
    codes: Codes
    rescoring_codes: Codes
    labels: list[str]  # as JSON texts


@dataclass(frozen=True)
class ShardState:
    """The rows of a shard at one commit."""

    number: int
    segments: tuple[LoadedSegment, ...]  # in order of arrival: an id may have been deleted from an earlier one
    index: CodeIndex
    since: float  # by the monotonic clock
    items: ShardItems | None = None  # where segments have items
    patches: dict[str, Patch] = field(default_factory=dict)  # by name


class Shard:
    """Answers from the codes of one shard. `threads` limits those of one search; `device` is where it searches."""

    def __init__(
        self,
        storage: Storage,
        shard: int,
        cache: SegmentCache | None = None,
        threads: int | None = None,
        device: str = "cpu",
    ) -> None:
        self.storage, self.shard, self.threads, self.device = storage, shard, threads, device
        self._cache = SegmentCache(storage) if cache is None else cache
        self._states: dict[int, ShardState] = {}  # by number
        self._index: CodeIndex | None = None  # that updates go on with; states have frozen copies of it
        self._latest = -1
        self._updating, self._lock = threading.Lock(), threading.Lock()

    @property
    def number(self) -> int:
        """Return the commit of the latest state; -1 before the first."""
        return self._latest

    def update(self, number: int | None = None) -> int:
        """Load the state of this commit, unless a later one is loaded, or of the latest commit; its number."""
        with self._updating:
            if number is None or number > self._latest:
                manifest = self._read(number)
                if manifest.number > self._latest:
                    self._enter(manifest)
            return self._latest

    def _read(self, number: int | None) -> ClusterManifest:
        """Read this manifest, or the latest, also where this one is collected already."""
        if number is not None:
            with suppress(NotFound):
                return read_manifest(self.storage, number)
        return read_latest(self.storage)

    def has(self, number: int) -> bool:
        """Whether the state of this commit is loaded; StaleNumber if it has been dropped."""
        if number in self._states:
            return True
        if number < self._latest:
            raise StaleNumber
        return False

    def bits(self, number: int) -> int:
        """Return the length of codes at this commit."""
        return self._state(number).index.bits

    def search(self, number: int, requests: Sequence[SearchRequest]) -> list[list[Hits]]:
        """Return the hits of each request: one Hits (m, k) or, with thresholds, one for each query.

        Requests of one kind are answered at once.
        """
        index = self._state(number).index
        hits: list[list[Hits]] = [[] for _ in requests]
        for places in group_requests(requests, len(index)):
            some = [requests[place] for place in places]
            parts = split_hits(some, self._answer(number, index, join_requests(some)))
            for place, part in zip(places, parts, strict=True):
                hits[place] = part
        return hits

    def _answer(self, number: int, index: CodeIndex, request: SearchRequest) -> list[Hits]:
        allowed = request.allowed if request.where is None else self._matching(number, request.where)
        if request.thresholds is not None:
            return index.range_search(request.weights, request.thresholds, allowed=allowed)
        floors = no_floors(len(request.weights)) if request.floors is None else request.floors
        return [index.search_checked(request.weights, max(1, min(request.k, len(index))), floors, allowed)]

    def _matching(self, number: int, where: Any) -> Bitmap:
        """Return the rows of items that meet a filter, given as `Condition.to_json` returns it."""
        return self.items(number).matching(Condition.from_json(where))

    def items(self, number: int) -> ShardItems:
        """Return the items of the shard at this commit; InvalidInput if it has codes alone."""
        state = self._state(number)
        if state.items is None and state.segments:
            raise InvalidInput("where: this index has codes without items")
        return state.items or ShardItems([])

    def codes(self, number: int, ids: IdArray) -> tuple[IdArray, Codes]:
        """Return those of the ascending ids that this shard holds, in any order, and their codes."""
        state = self._state(number)
        located = [(loaded.segment.tiles, *loaded.places(ids)) for loaded in state.segments]
        codes = [read_tiles(tiles, places) for tiles, _, places in located]
        none = np.empty((0, width(state.index.bits)), np.uint8)
        return np.concatenate([NO_IDS, *(some for _, some, _ in located)]), np.concatenate([none, *codes])

    def page_rows(self, number: int, ids: IdArray, columns: int) -> PageRows:
        """Return those of the ascending ids that this shard holds, in any order; columns: bytes of a rescoring code."""
        state, (held, codes) = self._state(number), self.codes(number, ids)
        located = [(loaded, loaded.places(ids)[1]) for loaded in state.segments]
        none = np.empty((0, columns), np.uint8)
        rescoring = np.concatenate([none, *(loaded.rescoring_codes(places, columns) for loaded, places in located)])
        labels = self.items(number).labels(held)
        return PageRows(held, codes, rescoring, [labels[row] for row in held.tolist()])

    def status(self) -> ShardStatus:
        """Return what the shard holds, and let searches use tables that were finished since the last commit."""
        with self._updating:
            state, index = self._states.get(self._latest), self._index
            if state is None or index is None:
                return ShardStatus(self.shard, -1)
            index.merge_if_due()  # rows that came while tables were being built
            if tables_of(index) is not tables_of(state.index):
                state = replace(state, index=index.frozen())
                with self._lock:
                    self._states[state.number] = state
        content = len(index), len(state.segments), index.nbytes, index.plan, index.merging
        return ShardStatus(self.shard, state.number, *content)

    def _state(self, number: int) -> ShardState:
        with self._lock:
            state = self._states.get(number)
        if state is None:
            if number > self._latest:
                raise InvalidInput(f"number: expected at most {self._latest}, got {number}")
            raise StaleNumber
        return state

    def _enter(self, manifest: ClusterManifest) -> None:
        """Make the state of a manifest from the latest one: only what changed is opened."""
        old = self._states.get(self._latest)
        known = {} if old is None else {loaded.entry.name: loaded for loaded in old.segments}
        entries = manifest.of_shard(self.shard)
        segments = tuple(self._load(entry, known.get(entry.name), manifest.bits) for entry in entries)
        index, self._index = self._index, None  # stays None if this fails halfway
        if index is not None and index.bits == manifest.bits and known.keys() <= {entry.name for entry in entries}:
            _extend(index, known, segments)  # with the tables it has
        else:
            blocks, deleted = tuple(loaded.block() for loaded in segments), sum(entry.deleted for entry in entries)
            saved = SavedIndex(manifest.bits, None, manifest.next_id, blocks, deleted)
            index = restore_for(saved, device=self.device, threads=self.threads)
            index.merge_if_due()
        self._index = index
        patches = self._open_patches(manifest, {} if old is None else old.patches, segments)
        parts = [LivePartition(one.partition, one.deleted) for one in segments if one.partition is not None]
        items = ShardItems(parts, list(patches.values())) if len(parts) == len(segments) else None
        state = ShardState(manifest.number, segments, index.frozen(), time.monotonic(), items, patches)
        with self._lock:
            self._states[manifest.number] = state
            self._latest = manifest.number
            self._drop_old_states()

    def _load(self, entry: SegmentEntry, before: LoadedSegment | None, bits: int) -> LoadedSegment:
        """Open a segment and its deletions, unless they are open already."""
        segment = self._cache.open(entry, bits) if before is None else before.segment
        if before is not None and before.entry.deletions == entry.deletions:
            return before._replace(entry=entry)
        deleted = load_deletions(self.storage, entry) if entry.deleted else None
        if before is not None:
            return before._replace(entry=entry, deleted=deleted)
        partition = open_partition(self._cache, entry, segment) if entry.items else None
        return LoadedSegment(entry, segment, deleted, partition)

    def _open_patches(
        self, manifest: ClusterManifest, known: dict[str, Patch], segments: Sequence[LoadedSegment]
    ) -> dict[str, Patch]:
        """Open the patches of items that may be here, unless they are open already."""
        rows = [(loaded.entry.first, loaded.entry.last) for loaded in segments if loaded.partition is not None]
        entries = [one for one in manifest.patches if any(a <= one.last and one.first <= b for a, b in rows)]
        return {entry.name: known.get(entry.name) or open_patch(self._cache, entry) for entry in entries}

    def _drop_old_states(self) -> None:
        oldest = time.monotonic() - OLD_STATE_SECONDS
        numbers = sorted(self._states)
        for number, later in pairwise(numbers):
            if len(self._states) > OLD_STATES or self._states[later].since < oldest:
                del self._states[number]


def tables_of(index: CodeIndex) -> SubstringTables | None:
    """Return the tables of an index, if it has some."""
    return index.state.tables if isinstance(index, Index) else None


def _extend(index: CodeIndex, known: dict[str, LoadedSegment], segments: Sequence[LoadedSegment]) -> None:
    """Bring an index of the known segments to these: add new ones, and remove what has been deleted since."""
    for loaded in segments:
        before = known.get(loaded.entry.name)
        if before is None:
            index.add_tiles(loaded.segment.tiles, loaded.segment.rows, loaded.segment.row_numbers())
        ids = loaded.deleted_ids(None if before is None else before.deleted)
        if len(ids):
            index.remove(ids)
