"""How good a ranking is.

Relevant means: shares at least one label with the query. All measures rank the whole database by score; equal
scores keep database order (`average_precision`: faithful to the published code, so shuffle the database first) or
count as every order at once (`expected_average_precision`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.blas import one_thread
from stillhash.numeric.checks import Codes, Floats
from stillhash.numeric.codes import signs
from stillhash.search.scan import usable_cores

Scores = NDArray[np.float32]  # (n,) of one query
Relevant = NDArray[np.bool_]  # (n,) of one query


class Quality(NamedTuple):
    """Means over queries."""

    map: float  # mean average precision, ties in database order
    expected_map: float  # the same, averaged over all orders of ties
    precision: float  # of the first k
    ndcg: float  # of the first k, gain 2^(shared labels) - 1


Keys = NDArray[np.int64]  # (n,) items in ranked order, see `ranked`


def ranked(scores: Scores, relevant: Relevant) -> Keys:
    """Items in ranked order as sortable keys: falling score, then database order; the lowest bit is the relevance.

    One sort of 64-bit keys does what a stable argsort and two gathers would, several times faster.
    """
    bits = (scores + np.float32(0)).view(np.int32)  # + 0 turns -0 into 0
    rising = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))  # the order of integers is now that of the floats
    keys = (~rising).astype(np.int64) << 32
    keys |= _places(len(scores))
    keys |= relevant
    keys.sort()
    return keys


@cache
def _places(n: int) -> NDArray[np.int64]:
    return np.arange(n, dtype=np.int64) << 1


def average_precision(scores: Scores, relevant: Relevant) -> float:
    """Mean over the relevant items of the precision at their rank; 0 if there are none."""
    return _precisions(ranked(scores, relevant))[0]


def expected_average_precision(scores: Scores, relevant: Relevant) -> float:
    """Average precision averaged over all orders of equal scores, in closed form."""
    return _precisions(ranked(scores, relevant))[1]


def _precisions(keys: Keys) -> tuple[float, float]:
    """Average precision with ties in database order, and over all their orders."""
    places = np.flatnonzero(keys & 1)  # of the relevant items, from 0
    if not len(places):
        return 0.0, 0.0
    found = np.concatenate([[0.0], np.cumsum(np.arange(1, len(places) + 1) / (places + 1))])
    tied = keys[1:] >> 32 == keys[:-1] >> 32
    if not tied.any():
        return found[-1] / len(places), found[-1] / len(places)
    edges = np.diff(tied.view(np.int8), prepend=np.int8(0), append=np.int8(0))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) + 1
    # A group of n ties from rank t + 1 on, r of them relevant, c relevant before it: an item at place i of the group is
    # relevant with chance r/n, and then c, itself and (i - 1)(r - 1)/(n - 1) others have been found among t + i. The
    # sum over i of (c + 1 + (i - 1) rho) / (t + i) is n rho + (c + 1 - rho (t + 1)) (H(t + n) - H(t)).
    c, until = np.searchsorted(places, starts), np.searchsorted(places, ends)
    r, n, t = until - c, ends - starts, starts
    rho = (r - 1) / (n - 1)
    harmonic = _harmonic(len(keys))
    expected = r / n * (n * rho + (c + 1 - rho * (t + 1)) * (harmonic[ends] - harmonic[t]))
    change = float((expected - (found[until] - found[c])).sum())
    return found[-1] / len(places), (found[-1] + change) / len(places)


@cache
def _harmonic(n: int) -> NDArray[np.float64]:
    """H(0), ..., H(n)."""
    return np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n + 1))])


def precision_at(keys: Keys, k: int) -> float:
    """Share of the first k ranked items that are relevant."""
    return float((keys[:k] & 1).sum()) / k


def ndcg_at(grades: NDArray[Any], keys: Keys, k: int) -> float:
    """Discounted gain of the first k over that of the best order; grades (n,) in database order, gain 2^grade - 1."""
    places = (keys[:k] & 0xFFFFFFFF) >> 1
    counts = np.bincount(grades.astype(np.int64))  # few grades, so the best order follows from how often each occurs
    best = np.repeat(np.arange(len(counts))[::-1], np.minimum(counts[::-1], k))[:k]
    discount = 1 / np.log2(np.arange(2, k + 2))
    ideal = float(((2.0**best - 1) * discount[: len(best)]).sum())
    return float(((2.0 ** grades[places] - 1) * discount[: len(places)]).sum()) / ideal if ideal else 0.0


def evaluate(
    weights: Floats,
    codes: Codes,
    query_labels: NDArray[Any],
    item_labels: NDArray[Any],
    *,
    k: int = 100,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Quality:
    """Ranks all codes for each query and averages. Labels are indicator matrices; `progress` hears of queries done."""
    bits = weights.shape[1]
    database = signs(codes, bits).T.copy()  # (bits, n)
    items = np.ascontiguousarray(item_labels, np.float32).T  # (labels, n)
    asked = np.ascontiguousarray(query_labels, np.float32)
    batch = max(1, min(64, 2**25 // max(1, len(codes))))

    def measure(start: int) -> list[tuple[float, float, float, float]]:
        some = slice(start, start + batch)
        scores, shared = weights[some] @ database, asked[some] @ items
        out = []
        for score, overlap in zip(scores, shared, strict=True):
            keys = ranked(score, overlap > 0)
            out.append((*_precisions(keys), precision_at(keys, k), ndcg_at(overlap, keys, k)))
        if progress:
            progress(len(out))
        return out

    @one_thread
    def everything() -> list[tuple[float, float, float, float]]:
        with ThreadPoolExecutor(threads or usable_cores()) as pool:
            return [row for rows in pool.map(measure, range(0, len(weights), batch)) for row in rows]

    return Quality(*np.mean(everything(), axis=0).tolist())
