"""Queries that arrive while others are under way wait for each other and go together.

A call to all shards costs about as much for sixty queries as for one.

There is no thread for this. Whoever finds nobody at work takes all that wait, its own query among them, brings back the
answers, and leaves the next turn to one of those who came meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.cluster.shard import Asked
from stillhash.numeric.validation import Floats
from stillhash.search.base import Hits
from stillhash.search.blocks import Bitmap

MOST = 1024  # queries that go together


class Query:
    """What one caller asks: rows of weights, and the k best of each, or all from the floors up."""

    def __init__(
        self, weights: Floats, k: int, floors: NDArray[np.float64] | None, allowed: Bitmap | None, seconds: float
    ) -> None:
        self.weights, self.k, self.floors, self.allowed = weights, k, floors, allowed
        self.until = time.monotonic() + seconds
        self.found: list[Hits] = []  # one Hits of all rows; with floors, one of each
        self.missing = 0.0  # share of the rows that were not asked
        self.error: BaseException | None = None
        self.done = self.leads = False
        self.turn = threading.Semaphore(0)


class Batches:
    """`answer` is given queries that go together, marks those that are done, and is called by `lanes` at a time."""

    def __init__(self, answer: Callable[[list[Query]], None], lanes: int) -> None:
        self._answer = answer
        self._idle = lanes
        self._waiting: list[Query] = []
        self._lock = threading.Lock()

    def ask(self, query: Query) -> Query:
        """Returns once the query is done."""
        with self._lock:
            self._waiting.append(query)
            query.leads = self._idle > 0
            self._idle -= query.leads
        try:
            while not query.done:
                if not query.leads:
                    query.turn.acquire()
                if query.leads:
                    self._lead(query)
        finally:  # also when interrupted: nobody may wait for a leader who has gone
            with self._lock:
                if query in self._waiting:
                    self._waiting.remove(query)
                heir = self._pass_on(query) if query.leads else None
            if heir is not None:
                heir.turn.release()
        if query.error is not None:
            raise query.error
        return query

    def _lead(self, query: Query) -> None:
        with self._lock:
            batch = self._taken()
        try:
            if batch:
                self._answer(batch)
        except Exception as error:  # each of them is told
            for one in batch:
                one.error, one.done = error, True
        finally:
            with self._lock:
                self._waiting[:0] = [one for one in batch if not one.done]
                heir = self._pass_on(query)
            for one in batch:
                if one.done and one is not query:
                    one.turn.release()
            if heir is not None and heir is not query:
                heir.turn.release()

    def _taken(self) -> list[Query]:
        rows = count = 0
        for one in self._waiting:
            rows += len(one.weights)
            if count and rows > MOST:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    def _pass_on(self, query: Query) -> Query | None:
        query.leads = False
        heir = next((one for one in self._waiting if not one.leads), None)
        if heir is None:
            self._idle += 1
        else:
            heir.leads = True
        return heir


# ---- many queries as few questions, and back ----


class Group:
    """Queries that a shard answers in one go: the same kind, the same allowed ids, about as many hits."""

    def __init__(self, queries: list[Query], k: int, place: int | None) -> None:
        self.queries = queries
        floors = [query.floors for query in queries if query.floors is not None]
        self.asked = Asked(
            np.concatenate([query.weights for query in queries]), k, np.concatenate(floors) if floors else None, place
        )


def grouped(batch: Sequence[Query], rows: int) -> tuple[list[Group], list[Bitmap]]:
    """The batch in groups, for an index of so many rows, and the bitmaps that they name by place."""
    together: dict[tuple[int, int], list[Query]] = {}
    bitmaps: dict[int, Bitmap] = {}
    for query in batch:
        if query.allowed is not None:
            bitmaps[id(query.allowed)] = query.allowed
        size = -1 if query.floors is not None else min(query.k, rows).bit_length()
        together.setdefault((size, id(query.allowed)), []).append(query)
    places = {name: place for place, name in enumerate(bitmaps)}
    groups = []
    for (size, name), queries in together.items():
        k = max(min(query.k, rows) for query in queries) if size > 0 else 0
        groups.append(Group(queries, k, places.get(name)))
    return groups, list(bitmaps.values())


def hand_out(group: Group, parts: Sequence[tuple[NDArray[Any], ...]]) -> None:
    """Gives each query of the group its hits, given those of each shard: higher score, then smaller id."""
    if group.asked.floors is not None:
        hits = _all_of(parts, len(group.asked.weights))
        for query in group.queries:
            query.found, hits = hits[: len(query.weights)], hits[len(query.weights) :]
        return
    scores = np.concatenate([np.empty((len(group.asked.weights), 0), np.float32), *(part[0] for part in parts)], axis=1)
    ids = np.concatenate([np.empty((len(scores), 0), np.int64), *(part[1] for part in parts)], axis=1)
    if len(parts) > 1:
        order = np.lexsort((ids, -scores), axis=1)[:, : group.asked.k]
        scores, ids = np.take_along_axis(scores, order, 1), np.take_along_axis(ids, order, 1)
    start = 0
    for query in group.queries:
        mine = slice(start, start + len(query.weights))
        query.found = [Hits(_wide(scores[mine], query.k, -np.inf), _wide(ids[mine], query.k, -1))]
        start = mine.stop


def _all_of(parts: Sequence[tuple[NDArray[Any], ...]], queries: int) -> list[Hits]:
    shards = []
    for counts, scores, ids in parts:
        cuts = np.cumsum(counts)[:-1]
        shards.append((np.split(scores, cuts), np.split(ids, cuts)))
    hits = []
    for q in range(queries):
        scores = np.concatenate([np.empty(0, np.float32), *(s[q] for s, _ in shards)])
        ids = np.concatenate([np.empty(0, np.int64), *(i[q] for _, i in shards)])
        order = np.lexsort((ids, -scores))
        hits.append(Hits(scores[order], ids[order]))
    return hits


def _wide(array: NDArray[Any], k: int, missing: float) -> NDArray[Any]:
    """Exactly k columns, in an array of its own."""
    wide = np.full((len(array), k), missing, array.dtype)
    count = min(k, array.shape[1])
    wide[:, :count] = array[:, :count]
    return wide
