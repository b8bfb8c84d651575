"""Calls to shards: what is sent to some of them, which replies have come, and what is under way."""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from stillhash.cluster.messages import Message
from stillhash.cluster.requests import SearchRequest, group_requests, join_requests, search_to_message, split_hits
from stillhash.errors import StillhashError, Unreachable
from stillhash.search import Hits

SLACK_SECONDS = 5.0  # past the deadline, until a caller stops waiting for a call that the dispatcher did not end
ShardGroup = tuple[int, ...]  # that one message is for: one shard, or a group through an aggregator


class Reply(NamedTuple):
    """What came back from one shard, or from a group of them."""

    shards: ShardGroup
    header: dict[str, Any]
    arrays: list[NDArray[Any]]
    hits: list[Hits]  # of a search


class Call:
    """A request to some shards, and what came back so far. `rows` are those of each shard."""

    def __init__(
        self,
        kind: str,
        number: int,
        rows: Mapping[int, int],
        until: float,
        *,
        partial: bool = False,
        grouped: bool = True,
    ) -> None:
        self.kind, self.number, self.rows, self.until = kind, number, rows, until
        self.partial, self.grouped = partial, grouped
        self.search: SearchRequest | None = None
        self.message = Message({}, [])  # of other kinds
        self.waiting: set[int] = set(rows)
        self.replies: list[Reply] = []
        self.error: StillhashError | None = None  # that no replica can help with, or the last one
        self.refused = self.stale = False
        self._done = threading.Semaphore(0)
        self.finished = False

    def finish(self) -> None:
        if not self.finished:
            self.finished = True
            self._done.release()

    def wait(self) -> None:
        """Wait for the end, which the deadline brings if nothing else does."""
        if not self._done.acquire(timeout=max(0.0, self.until - time.monotonic()) + SLACK_SECONDS):
            raise Unreachable("the thread that sends calls to the shards did not end this one at its deadline")

    def joins(self, other: "Call") -> bool:
        """Whether both can be one message: searches of one commit and filter, so that an error concerns both."""
        if self.search is None or other.search is None or self.number != other.number:
            return False
        return repr(self.search.where) == repr(other.search.where)

    @property
    def missing(self) -> float:
        """The share of the rows whose shards did not reply."""
        return sum(self.rows[shard] for shard in self.waiting) / max(1, sum(self.rows.values()))

    def raise_error(self) -> None:
        """Raise what a shard refused, or Unreachable if one did not reply and the answer may not be partial."""
        if self.refused and self.error is not None:
            raise self.error
        if self.waiting and not (self.partial and self.replies):
            shards = ", ".join(map(str, sorted(self.waiting)[:10]))
            reason = "" if self.error is None else f": {self.error}"
            raise Unreachable(f"shards {shards} of {len(self.rows)} did not reply before the deadline{reason}")


class ShardTask(NamedTuple):
    """A call that waits for one target."""

    call: Call
    target: ShardGroup

    @property
    def open(self) -> bool:
        return not self.call.finished and not self.call.waiting.isdisjoint(self.target)


class Sent:
    """A message under way to a replica, with the tasks of one or more calls; searches of one kind are joined."""

    def __init__(self, tasks: Sequence[ShardTask], groups: list[list[int]]) -> None:
        self.tasks, self.groups, self.at, self.hedged = tasks, groups, time.monotonic(), False

    def split(self, hits: list[list[Hits]]) -> list[list[Hits]]:
        """Return the hits of each task, given those of each group."""
        parts: list[list[Hits]] = [[] for _ in self.tasks]
        for places, joined in zip(self.groups, hits, strict=True):
            requests = [self.tasks[place].call.search for place in places]
            for place, own in zip(places, split_hits([r for r in requests if r is not None], joined), strict=True):
                parts[place] = own
        return parts


def build_message(
    tasks: Sequence[ShardTask], now: float
) -> tuple[dict[str, Any], Sequence[NDArray[Any]], list[list[int]]]:
    """Return the header and the arrays of a message with these tasks, and which of its searches are joined."""
    call, target = tasks[0]
    left = max(task.call.until for task in tasks) - now
    header: dict[str, Any] = {"call": call.kind, "number": call.number, "seconds": max(0.0, left)}
    if call.search is None:
        return {**call.message.header, **header}, call.message.arrays, []
    requests = [task.call.search for task in tasks if task.call.search is not None]
    groups = group_requests(requests, max(call.rows[shard] for shard in target))
    joined = [join_requests([requests[place] for place in places]) for places in groups]
    header["requests"], arrays = search_to_message(joined)
    if len(target) > 1:
        header["rows"] = [[shard, call.rows[shard]] for shard in target]
    return header, arrays, groups
