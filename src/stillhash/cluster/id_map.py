"""Map ids to segments and segments to shards, without holding a single code."""

import itertools
import threading
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from stillhash.cluster.segment_refs import SegmentRef
from stillhash.cluster.shard import ShardChange, ShardSegment, ShardSpec
from stillhash.numeric.codes import TILE
from stillhash.search.blocks import NO_IDS, Block, IdArray, assign_ids, is_set

VERSION_NUMBERS = itertools.count(1)  # of all shards of this process; none is used twice


class ShardState(NamedTuple):
    """A shard at one version."""

    shard: int
    version: int
    rows: int


class PlacedSegment(NamedTuple):
    """A segment, the ids of its rows, and the shard that holds it."""

    ref: SegmentRef
    block: Block  # ids and deleted rows; its tiles are only a shape
    shard: int
    owned: bool  # written by the index itself, which deletes it
    deleted: int = 0

    @property
    def rows(self) -> int:
        return self.ref.rows - self.deleted

    def deleted_ids(self) -> IdArray:
        if self.block.live is None:
            return NO_IDS
        rows = np.arange(self.block.rows)
        return self.block.ids_of(rows[~is_set(self.block.live, rows)])


class IdMap:
    """The ids of an index, the segments that hold them, and the version of each shard.

    Callers that change it hold `write_lock`. Searches see the states as they were at the last `publish`.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.write_lock = threading.RLock()
        self.segments: tuple[PlacedSegment, ...] = ()  # by arrival: an id may have been deleted from an earlier one
        self.published: tuple[ShardState, ...] = ()
        self._versions: dict[int, int] = {}  # by shard
        self._next_id = 0
        self._lock = threading.RLock()  # segments and versions change together

    def __len__(self) -> int:
        return sum(state.rows for state in self.published)

    def ids(self) -> IdArray:
        """Return all ids, ascending."""
        return np.sort(np.concatenate([NO_IDS, *(s.block.ids_of(s.block.live_rows()) for s in self.segments)]))

    def locate(self, ids: IdArray) -> dict[ShardState, IdArray]:
        """Return those of the ids that exist, by the shard that holds them; `rows` counts just these."""
        with self._lock:
            parts: dict[int, list[IdArray]] = {}
            for segment in self.segments:
                if len(rows := segment.block.rows_of(ids)):
                    parts.setdefault(segment.shard, []).append(segment.block.ids_of(rows))
            located = {shard: np.concatenate(arrays) for shard, arrays in parts.items()}
            return {ShardState(shard, self._versions[shard], len(held)): held for shard, held in located.items()}

    def version(self, shard: int) -> int | None:
        """Return the current version of a shard."""
        return self._versions.get(shard)

    def spec(self, shard: int) -> ShardSpec:
        """Return everything that a shard should hold now."""
        with self._lock:
            held = [ShardSegment(s.ref, s.deleted_ids()) for s in self.segments if s.shard == shard]
            return ShardSpec(self._versions[shard], self.bits, held)

    def new_ids(self, ids: ArrayLike | None, count: int) -> IdArray:
        """Reserve the ids of new rows, or the next free numbers; Conflict if one exists already."""
        with self._lock:
            blocks = [segment.block for segment in self.segments]
            first, names, self._next_id = assign_ids(blocks, self._next_id, ids, count)
        return np.arange(first, first + count) if names is None else names

    def place(self, segments: Iterable[tuple[SegmentRef, IdArray]], *, owned: bool) -> dict[int, ShardChange]:
        """Assign each segment to the smallest shard, and reserve the ids of those not owned; the changes by shard."""
        added: dict[int, list[SegmentRef]] = {}
        with self._lock:
            sizes = self._sizes()
            for ref, ids in segments:
                if not owned:
                    self.new_ids(ids, len(ids))
                shard = min(sizes, key=lambda s: (sizes[s], s))
                self.segments = (*self.segments, PlacedSegment(ref, _id_block(ids), shard, owned))
                sizes[shard] += ref.rows
                added.setdefault(shard, []).append(ref)
            return {s: change._replace(new_segments=added[s]) for s, change in self._advance(added).items()}

    def remove(self, ids: IdArray) -> dict[int, ShardChange]:
        """Delete ids; the changes by shard."""
        located = {state.shard: held for state, held in self.locate(ids).items()}
        with self._lock:
            removals = [(segment, *segment.block.without(ids)) for segment in self.segments]
            self.segments = tuple(s._replace(block=block, deleted=s.deleted + n) for s, block, n in removals)
            return {s: change._replace(deleted=located[s]) for s, change in self._advance(located).items()}

    def undo(self, segments: tuple[PlacedSegment, ...], changes: dict[int, ShardChange]) -> None:
        """Restore earlier segments and the versions before these changes. Reserved ids stay reserved."""
        with self._lock:
            self.segments = segments
            self._versions.update({shard: change.base for shard, change in changes.items()})

    def clear(self) -> list[SegmentRef]:
        """Forget all rows, so that ids begin at 0 again; the owned segments that were held."""
        with self._lock:
            segments, self.segments, self._next_id = self.segments, (), 0
            self._advance(self._versions)
        self.publish()
        return [segment.ref for segment in segments if segment.owned]

    def move_segment(self) -> tuple[int, int] | None:
        """Move one segment from the largest shard to the smallest, if that brings them closer; these two shards."""
        with self._lock:
            sizes = self._sizes()
            small, large = min(sizes, key=lambda s: sizes[s]), max(sizes, key=lambda s: sizes[s])
            gap = sizes[large] - sizes[small]
            movable = [s for s in self.segments if s.shard == large and 0 < s.rows < gap]
            if not movable:
                return None
            best = min(movable, key=lambda s: abs(gap - 2 * s.rows))
            self.segments = tuple(s._replace(shard=small) if s is best else s for s in self.segments)
            self._advance([small, large])
            return small, large

    def add_shards(self, count: int) -> list[int]:
        """Number new, empty shards."""
        with self._lock:
            first = max(self._versions, default=-1) + 1
            shards = list(range(first, first + count))
            self._advance(shards)
            return shards

    def drop_shards(self, shards: Iterable[int]) -> None:
        """Forget shards that could not be started."""
        with self._lock:
            for shard in shards:
                self._versions.pop(shard)

    def publish(self) -> None:
        """Let searches see the current state of the shards."""
        with self._lock:
            sizes = self._sizes()
            self.published = tuple(ShardState(s, version, sizes[s]) for s, version in self._versions.items())

    def _sizes(self) -> dict[int, int]:
        sizes = dict.fromkeys(self._versions, 0)
        for segment in self.segments:
            sizes[segment.shard] += segment.rows
        return sizes

    def _advance(self, shards: Iterable[int]) -> dict[int, ShardChange]:
        """Give shards a new version; the changes by shard, which add and delete nothing yet."""
        version = next(VERSION_NUMBERS)
        changes = {shard: ShardChange(version, self._versions.get(shard, -1), [], NO_IDS) for shard in shards}
        self._versions.update(dict.fromkeys(changes, version))
        return changes


def _id_block(ids: IdArray) -> Block:
    """Return a block of ascending ids; its tiles are only a shape."""
    consecutive = int(ids[-1]) - int(ids[0]) == len(ids) - 1
    shape = np.broadcast_to(np.uint8(0), (-(-len(ids) // TILE), 1, 1))
    return Block(shape, len(ids), int(ids[0]), None if consecutive else np.array(ids), None)
