"""Hits, and merging those of several sources: higher score first, then smaller id. The only top-k merge."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.validation import ScoredIds


class Hits(NamedTuple):
    """Hits, best first: higher score, then smaller id. Missing ones are -inf and -1.

    From `search` both arrays are (m, k); from `range_search` there is one Hits per query with flat arrays.
    """

    scores: NDArray[np.float32]
    ids: NDArray[np.int64]

    @property
    def missing(self) -> float:
        """Return the share of rows that did not answer, where some are on other machines."""
        return 0.0


class Floors(NamedTuple):
    """The least score of a hit of each query: `least`, or its best score if that is higher, but then up to `most`."""

    least: NDArray[np.float32]  # (m,)
    most: NDArray[np.float32]  # (m,) with -inf it stays at `least`


def no_floors(queries: int) -> Floors:
    """Return floors that let all scores be hits."""
    free = np.full(queries, -np.inf, np.float32)
    return Floors(free, free)


def merge_top(sources: Sequence[ScoredIds], k: int, queries: int | None = None) -> Hits:
    """Return the k best hits of each query, given (m, any) hits of each source, about different rows.

    `queries` is m, needed only where there may be no source at all.
    """
    m = len(sources[0][0]) if queries is None else queries
    if m == 1 and len(sources) > 1:
        hits = merge_all([(scores[0], ids[0]) for scores, ids in sources])
        return resize((hits.scores[None, :k], hits.ids[None, :k]), k)
    scores = np.concatenate([np.empty((m, 0), np.float32), *(source[0] for source in sources)], axis=1)
    ids = np.concatenate([np.empty((m, 0), np.int64), *(source[1] for source in sources)], axis=1)
    if len(sources) > 1:
        order = np.lexsort((ids, -scores), axis=1)[:, :k]
        scores, ids = np.take_along_axis(scores, order, 1), np.take_along_axis(ids, order, 1)
    return resize((scores, ids), k)


def merge_all(sources: Sequence[ScoredIds]) -> Hits:
    """Return all hits of one query, given flat hits of each source, about different rows."""
    scores = np.concatenate([np.empty(0, np.float32), *(source[0] for source in sources)])
    ids = np.concatenate([np.empty(0, np.int64), *(source[1] for source in sources)])
    order = np.lexsort((ids, -scores))
    return Hits(scores[order], ids[order])


def drop_below(hits: ScoredIds, floors: Floors) -> ScoredIds:
    """Return the (m, any) hits with those missing that are below the floors."""
    best = hits[0].max(axis=1, initial=-np.inf)
    below = hits[0] < np.maximum(floors.least, np.minimum(best, floors.most))[:, None]
    return np.where(below, np.float32(-np.inf), hits[0]), np.where(below, -1, hits[1])


def resize(hits: ScoredIds, k: int) -> Hits:
    """Return exactly k columns: the best k, or all of them and then missing ones (-inf, -1)."""
    return Hits(_columns(hits[0], k, -np.inf), _columns(hits[1], k, -1))


def _columns(array: NDArray[Any], k: int, missing: float) -> NDArray[Any]:
    if array.shape[1] == k:
        return array
    resized = np.full((len(array), k), missing, array.dtype)
    count = min(k, array.shape[1])
    resized[:, :count] = array[:, :count]
    return resized
