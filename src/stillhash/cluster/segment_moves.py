"""Move segments between shards in steps: each step is one commit, which the shards load before the next one.

Where a segment should be is not stored: it is planned from the manifest. So a move that was interrupted, or whose
writer was killed, leaves an index like any other, and the next call goes on from there. What must not be forgotten is
that a shard is being removed, which the manifest says (`leaving`).
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stillhash.cluster.coordinator import Coordinator
from stillhash.cluster.manifest import CLUSTER_SEGMENT_ROWS, ClusterManifest
from stillhash.cluster.placement import Move, plan_departures, split_steps, with_moves, without_left
from stillhash.errors import Closed, Unreachable

MOVE_STEP_ROWS = CLUSTER_SEGMENT_ROWS  # the most of one step: segments move as a whole, so it cannot be less
MOVE_STEP_SEGMENTS = 64  # the most of one step: each is several files to open or to fetch
MOVE_STEP_SECONDS = 600.0  # for the shards to load a step
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.01, 0.5  # between two looks at what the shards have loaded

SegmentMoveProgress = Callable[[int, int], object]  # rows moved, and rows in all
PlanMoves = Callable[[ClusterManifest], Sequence[Move]]


class MovedIndex(Protocol):
    """What a move needs of the writer."""

    @property
    def manifest(self) -> ClusterManifest: ...
    @property
    def coordinator(self) -> Coordinator: ...
    def commit_change(self, change: Callable[[ClusterManifest], ClusterManifest]) -> ClusterManifest: ...


@dataclass
class MoveCounts:
    """How much of a plan is done."""

    of_segments: int
    of_rows: int
    segments: int = 0
    rows: int = 0
    began: float = field(default_factory=time.monotonic)

    def describe(self) -> dict[str, Any]:
        """Return the counts as an object of JSON."""
        counts = {
            "segments": self.segments,
            "of_segments": self.of_segments,
            "rows": self.rows,
            "of_rows": self.of_rows,
        }
        return {**counts, "seconds": round(time.monotonic() - self.began, 1)}


class SegmentMoves:
    """Moves the segments of one index, for one caller at a time; others wait."""

    def __init__(self, index: MovedIndex) -> None:
        self._index, self._lock, self._stopped = index, threading.RLock(), threading.Event()
        self._counts: MoveCounts | None = None

    def status(self) -> dict[str, Any] | None:
        """Return segments and rows that have moved, of how many, while a move is under way."""
        counts = self._counts
        return None if counts is None else counts.describe()

    def stop(self) -> None:
        """End a move under way after its step: it raises Closed. No other begins."""
        self._stopped.set()

    def close(self) -> None:
        """Stop, and wait for the end of the move."""
        self.stop()
        with self._lock:
            return

    def run(self, plan: PlanMoves, progress: SegmentMoveProgress) -> int:
        """Move what a plan for the latest manifest says, and return how many segments that were."""
        with self._lock:
            moves = plan(self._index.manifest)
            rows = sum(move.entry.live for move in moves)
            self._counts = counts = MoveCounts(len(moves), rows)
            try:
                for step in split_steps(moves, MOVE_STEP_ROWS, MOVE_STEP_SEGMENTS):
                    self._take_step(step)
                    counts.segments += len(step)
                    counts.rows += sum(move.entry.live for move in step)
                    progress(counts.rows, counts.of_rows)
            finally:
                self._counts = None
            return len(moves)

    def remove_leaving(self, progress: SegmentMoveProgress) -> bool:
        """Empty the shards that are being removed, and commit the manifest without them; whether there were any.

        Segments that a compaction has written to one of them meanwhile follow.
        """
        if not self._index.manifest.leaving:
            return False
        while self._index.manifest.leaving:
            self.run(plan_departures, progress)
            self._index.commit_change(without_left)
        return True

    def _take_step(self, step: Sequence[Move]) -> None:
        """Commit some moves, unless their segments were replaced meanwhile, and wait until they are loaded.

        Their former shards need not be there: a lost one can be removed. The new ones must be, before segments are
        theirs, so that no search waits for a process that is still starting.
        """
        shards = {move.shard for move in step}
        self._wait_loaded(self._index.manifest.number, shards)
        manifest = self._index.commit_change(lambda current: with_moves(current, step))
        self._wait_loaded(manifest.number, shards)

    def _wait_loaded(self, number: int, shards: Iterable[int]) -> None:
        """Wait until all replicas of these shards that are connected, and one at least, have loaded a commit."""
        end, pause = time.monotonic() + MOVE_STEP_SECONDS, MIN_PAUSE_SECONDS
        while (behind := self._index.coordinator.behind(number, shards)) or self._stopped.is_set():
            if self._stopped.wait(pause):
                raise Closed(f"the index is being closed: {self._done()}")
            if time.monotonic() > end:
                problem = f"shards {behind} have not loaded commit {number} within {MOVE_STEP_SECONDS:g} seconds"
                raise Unreachable(f"{problem}: {self._done()}")
            self._index.coordinator.notify(number, behind)  # again: one that was not connected has missed the first
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    def _done(self) -> str:
        counts = self._counts or MoveCounts(0, 0)
        return f"{counts.rows} of {counts.of_rows} rows had moved before. Rebalance again to go on"
