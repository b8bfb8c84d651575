"""Searches that wait for the card go together: a scan of all codes costs little more for many queries than for one.

No thread of its own is needed. Callers take turns; the one whose turn it is searches for all that wait.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from stillhash.numeric.exact_scores import Grid
from stillhash.numeric.validation import ScoredIds
from stillhash.search.blocks import Bitmap
from stillhash.search.gpu.card import Mirror
from stillhash.search.merge import Floors

MOST_TOGETHER = 1024  # queries of one turn


class CardSearch:
    """The queries of one caller, over the rows of a mirror that are live, or `live` if there is a filter."""

    def __init__(
        self,
        mirror: Mirror,
        grid: Grid,
        k: int,
        floors: Floors,
        allowed: Bitmap | None = None,
        live: Any = None,
        count: int | None = None,
    ) -> None:
        self.mirror, self.grid, self.k, self.floors = mirror, grid, k, floors
        self.allowed, self.live, self.count = allowed, live, count
        self.hits: ScoredIds | None = None
        self.error: Exception | None = None

    def joins(self, other: "CardSearch") -> bool:
        """Return whether both can be answered by one scan."""
        return self.mirror is other.mirror and self.live is other.live

    def part(self, start: int, stop: int) -> "CardSearch":
        """Return the search of some of the queries."""
        floors = Floors(self.floors.least[start:stop], self.floors.most[start:stop])
        return CardSearch(self.mirror, self.grid[start:stop], self.k, floors, self.allowed, self.live, self.count)

    @property
    def done(self) -> bool:
        return self.hits is not None or self.error is not None


class SearchQueue:
    """Searches that wait for their turn on the card."""

    def __init__(self, answer: Callable[[CardSearch], ScoredIds]) -> None:
        self._answer = answer
        self._waiting: list[CardSearch] = []
        self._lock, self._turn = threading.Lock(), threading.Lock()

    def run(self, search: CardSearch) -> ScoredIds:
        """Return the k best hits of each query, found together with those of others that wait."""
        with self._lock:
            self._waiting.append(search)
        try:
            with self._turn:
                if not search.done:
                    self._lead(search)
        finally:
            with self._lock:
                if search in self._waiting:  # interrupted
                    self._waiting.remove(search)
        if search.error is not None:
            raise search.error
        assert search.hits is not None
        return search.hits

    def _lead(self, search: CardSearch) -> None:
        """Answer this search and all that can be answered with it."""
        batch, queries = [search], len(search.grid)
        with self._lock:
            for other in self._waiting:
                if other is not search and other.joins(search) and queries + len(other.grid) <= MOST_TOGETHER:
                    batch.append(other)
                    queries += len(other.grid)
            self._waiting = [each for each in self._waiting if each not in batch]
        try:
            scores, ids = self._answer(join_all(batch))
        except Exception as error:
            for each in batch:
                each.error = error
            return
        start = 0
        for each in batch:
            own = slice(start, start + len(each.grid))
            each.hits = scores[own, : each.k], ids[own, : each.k]
            start = own.stop


def join_all(batch: list[CardSearch]) -> CardSearch:
    """Return one search with the queries of all, for the largest of their k."""
    first = batch[0]
    if len(batch) == 1:
        return first
    floors = Floors(
        np.concatenate([each.floors.least for each in batch]), np.concatenate([each.floors.most for each in batch])
    )
    grid, k = np.concatenate([each.grid for each in batch]), max(each.k for each in batch)
    return CardSearch(first.mirror, grid, k, floors, first.allowed, first.live, first.count)
