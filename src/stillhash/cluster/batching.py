"""Leader-follower batching: an idle caller sends all queued queries, and the others wait for it.

A call to all shards costs about as much for sixty queries as for one. No thread of its own is needed: a caller that
finds nobody sending leads, and passes the lead on to one of those that came meanwhile.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.cluster.shard import ShardRequest
from stillhash.numeric.validation import Floats
from stillhash.search import Hits
from stillhash.search.blocks import Bitmap
from stillhash.search.merge import merge_all, merge_top, resize

MAX_BATCH_QUERIES = 1024


class PendingQuery:
    """The queries of one caller: the k best hits of each or, with thresholds, all hits from there up."""

    def __init__(
        self, weights: Floats, k: int, thresholds: NDArray[np.float64] | None, allowed: Bitmap | None, until: float
    ) -> None:
        self.weights, self.k, self.thresholds, self.allowed, self.until = weights, k, thresholds, allowed, until
        self.hits: list[Hits] = []  # one Hits of all queries; with thresholds, one of each
        self.missing = 0.0  # share of the rows that were not searched
        self.error: Exception | None = None
        self.leads = self.done = False
        self.wake = threading.Semaphore(0)


class BatchQueue:
    """Queries that wait to be sent, and at most so many callers that send batches of them."""

    def __init__(self, leaders: int) -> None:
        self._idle_leaders = leaders
        self._waiting: list[PendingQuery] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def entered(self, query: PendingQuery) -> Iterator[None]:
        """Queue a query until its caller leaves; an interrupted caller passes the lead on too."""
        with self._lock:
            self._waiting.append(query)
            query.leads = self._idle_leaders > 0
            self._idle_leaders -= query.leads
        try:
            yield
        finally:
            with self._lock:
                if query in self._waiting:
                    self._waiting.remove(query)
                self._pass_lead(query)

    @contextmanager
    def turn(self, query: PendingQuery) -> Iterator[list[PendingQuery]]:
        """Wait until the query is done, or until its caller leads: then yield the batch that it has to send.

        The caller marks queries as done. One that is not done is sent again with a later batch.
        """
        batch: list[PendingQuery] = []
        if not query.leads:
            query.wake.acquire()
        try:
            if query.leads:
                with self._lock:
                    batch = self._take_batch()
            yield batch
        except Exception as error:  # every caller of the batch gets it
            for each in batch:
                each.error, each.done = error, True
        finally:
            with self._lock:
                self._waiting[:0] = [each for each in batch if not each.done]
                self._pass_lead(query)
            for each in batch:
                if each.done and each is not query:
                    each.wake.release()

    def _take_batch(self) -> list[PendingQuery]:
        sizes = accumulate(len(query.weights) for query in self._waiting)
        count = max(1, sum(size <= MAX_BATCH_QUERIES for size in sizes))
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    def _pass_lead(self, query: PendingQuery) -> None:
        """Let a waiting query lead, if this one does, and wake its caller."""
        if query.leads:
            query.leads = False
            next_leader = next((each for each in self._waiting if not each.leads), None)
            if next_leader is None:
                self._idle_leaders += 1
            else:
                next_leader.leads = True
                if next_leader is not query:
                    next_leader.wake.release()


class RequestGroup(NamedTuple):
    """Queries that a shard answers as one request: of one kind, with the same allowed ids and similar k."""

    queries: list[PendingQuery]
    request: ShardRequest

    def deliver(self, replies: Sequence[list[Hits]]) -> None:
        """Merge the hits of all shards, and give each query its own."""
        weights, k, thresholds, _ = self.request
        if thresholds is not None:
            merged = [merge_all([reply[q] for reply in replies]) for q in range(len(weights))]
        else:
            scores, ids = merge_top([reply[0] for reply in replies], k, len(weights))
        for query, stop in zip(self.queries, accumulate(len(query.weights) for query in self.queries), strict=True):
            own = slice(stop - len(query.weights), stop)
            query.hits = [resize((scores[own], ids[own]), query.k)] if thresholds is None else merged[own]


def group_queries(batch: Sequence[PendingQuery], rows: int) -> tuple[list[RequestGroup], list[Bitmap]]:
    """Group a batch for an index of so many rows; the groups, and the bitmaps that their requests refer to."""
    by_kind: dict[tuple[int, int], list[PendingQuery]] = {}
    bitmaps = {id(query.allowed): query.allowed for query in batch if query.allowed is not None}
    for query in batch:
        size = -1 if query.thresholds is not None else min(query.k, rows).bit_length()
        by_kind.setdefault((size, id(query.allowed)), []).append(query)
    places = {bitmap: place for place, bitmap in enumerate(bitmaps)}
    groups = []
    for (_, bitmap), queries in by_kind.items():
        weights = np.concatenate([query.weights for query in queries])
        k = max(min(query.k, rows) for query in queries)
        thresholds = [query.thresholds for query in queries if query.thresholds is not None]
        joined = np.concatenate(thresholds) if thresholds else None
        groups.append(RequestGroup(queries, ShardRequest(weights, k, joined, places.get(bitmap))))
    return groups, list(bitmaps.values())
