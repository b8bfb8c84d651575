"""Asking the shards: queries that wait together go to all of them, and their hits become those of one index."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, NamedTuple, Self

import numpy as np
import ray

from stillhash.cluster.batching import Batches, Query, grouped, hand_out
from stillhash.cluster.id_map import Ledger
from stillhash.cluster.replicas import PAUSE, Crew, Part, Stale, Want
from stillhash.cluster.shard import Asked
from stillhash.errors import InvalidInput, Unreachable
from stillhash.numeric.codes import width
from stillhash.numeric.validation import Codes, check_ids, check_integer, check_threshold, check_weights
from stillhash.search.base import Hits
from stillhash.search.blocks import Bitmap, Ids, bitmap_by_id

LARGE = 50_000  # bytes of a bitmap that goes to the shards over the object store


class PartialHits(Hits):
    """Hits, and the share of the rows that did not answer."""

    missing: float = 0.0

    def __new__(cls, scores: Any, ids: Any, missing: float = 0.0) -> Self:
        made = super().__new__(cls, scores, ids)
        made.missing = missing
        return made


class Trip(NamedTuple):
    """What it took to ask all shards once."""

    queries: int
    seconds: float  # from the first call to the last answer, merged
    slowest: float  # of which the slowest shard was at work


class Reading:
    """The half of a ClusterIndex that asks. What there is to ask for is told by the other half, which writes."""

    bits: int
    deadline: float
    partial: bool
    trips: deque[Trip]
    _crew: Crew
    _batches: Batches
    _state: tuple[Part, ...]  # that searches see
    _ledger: Ledger
    _versions: dict[int, int]  # by shard
    _truth: threading.Lock  # ledger and versions belong together

    def search(self, weights: Any, k: int, *, allowed: Any = None) -> Hits:
        """The k best hits of each query: exactly what one index of all rows would give, ties included.

        weights: (m, bits), or (bits,) for one query. allowed: only ids i with allowed[i] true are hits; a boolean
        array, or a uint8 bitmap in little-endian bit order. Ids past its end are not allowed.
        """
        weights = check_weights(weights, self.bits)
        k = check_integer(k, "k", 1)
        query = self._batches.ask(Query(weights, k, None, _bitmap(allowed), self.deadline))
        return self._marked(query)[0]

    def range_search(self, weights: Any, threshold: Any, *, allowed: Any = None) -> list[Hits]:
        """For each query, all hits whose score is at least the threshold (one number, or one per query)."""
        weights = check_weights(weights, self.bits)
        floors = check_threshold(threshold, len(weights))
        return self._marked(self._batches.ask(Query(weights, 0, floors, _bitmap(allowed), self.deadline)))

    def codes(self, ids: Any) -> Codes:
        """The codes (n, ceil(bits / 8)) of these ids, all of which are there."""
        wanted = check_ids(ids)
        until = time.monotonic() + self.deadline
        while True:
            with self._truth:
                where = self._ledger.where(wanted)
                parts = [Part(shard, self._versions[shard], len(names)) for shard, names in where.items()]
            known = sum(part.rows for part in parts)
            if known < len(wanted):
                raise InvalidInput(f"ids holds {len(wanted) - known} ids that are not in the index")

            def send(actor: Any, part: Part, where: dict[int, Ids] = where) -> Any:
                return actor.codes.remote(part.version, where[part.shard])

            try:
                wants = self._crew.gather(parts, send, until)
                break
            except Stale:
                self._pause(until)
        self._refuse_gaps(wants)
        order = np.argsort(wanted)
        rows = np.zeros((len(wanted), width(self.bits)), np.uint8)
        for shard, names in where.items():
            rows[order[np.searchsorted(wanted, names, sorter=order)]] = wants[shard].answer
        return rows

    # ---- inside ----

    def _answer(self, batch: list[Query]) -> None:
        """Asks all shards once for all these queries. Those whose time is not up, if a shard is missing, stay open."""
        until = min(query.until for query in batch)
        while True:
            state = self._state
            groups, bitmaps = grouped(batch, sum(part.rows for part in state))
            asked = [group.asked for group in groups]
            maps = [ray.put(bitmap) if bitmap.nbytes > LARGE else bitmap for bitmap in bitmaps]

            def send(actor: Any, part: Part, asked: list[Asked] = asked, maps: list[Any] = maps) -> Any:
                return actor.search.remote(part.version, asked, *maps)

            began = time.perf_counter()
            try:
                wants = self._crew.gather([part for part in state if part.rows], send, until)
                break
            except Stale:
                self._pause(until)
        answers = [want.answer for want in wants.values() if want.answer is not None]
        for n, group in enumerate(groups):
            hand_out(group, [answer.parts[n] for answer in answers])
        slowest = max((answer.seconds for answer in answers), default=0.0)
        self.trips.append(Trip(len(batch), time.perf_counter() - began, slowest))
        gaps, error = _gaps(wants, self.deadline)
        for query in batch:
            if not gaps:
                query.done = True
            elif query.until <= time.monotonic():
                query.missing, query.done = gaps, True
                query.error = None if self.partial else Unreachable(error)

    def _pause(self, until: float) -> None:
        """Before the present state is asked for, since the last one has passed."""
        if time.monotonic() > until:
            raise Unreachable(f"the shards did not come to one state within {self.deadline:g} seconds")
        time.sleep(PAUSE)

    def _refuse_gaps(self, wants: dict[int, Want]) -> None:
        _, error = _gaps(wants, self.deadline)
        if error:
            raise Unreachable(error)

    def _marked(self, query: Query) -> list[Hits]:
        if not self.partial:
            return query.found
        return [PartialHits(*hits, missing=query.missing) for hits in query.found]


def _gaps(wants: dict[int, Want], seconds: float) -> tuple[float, str]:
    """The share of rows that did not answer, and what to say about it."""
    gaps = [want for want in wants.values() if want.answer is None]
    if not gaps:
        return 0.0, ""
    rows = sum(want.part.rows for want in wants.values())
    missing = sum(want.part.rows for want in gaps) / max(1, rows)
    names = ", ".join(str(want.part.shard) for want in gaps)
    last = next((f": {want.error}" for want in gaps if want.error), "")
    return missing, f"shards {names} of {len(wants)} did not answer within {seconds:g} seconds{last}"


def _bitmap(allowed: Any) -> Bitmap | None:
    return None if allowed is None else bitmap_by_id(allowed)
