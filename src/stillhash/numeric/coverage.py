"""Choose rows that stand for many others, and not for the same ones: greedy facility location.

A row that is chosen covers every other row by their similarity, the sixth power of the cosine; a row is covered by
the chosen row that is most similar to it. What a set covers is the weighted sum over all rows. It is submodular, so to
choose the row that adds most, again and again, covers at least 63 % of what the best set does (Nemhauser, Wolsey and
Fisher 1978).
"""

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Doubles, Floats


class Coverage(NamedTuple):
    """The rows that were chosen, in order, and what each adds to what is covered."""

    rows: NDArray[np.int64]
    gains: Doubles


@one_thread
def similarity_to(references: Floats, rows: Floats) -> Floats:
    """Return how far each row covers each reference, (references, rows), 0 to 1, from unit vectors.

    By the cosine itself a row covers the whole collection a little, and the best rows are those far from all others.
    Its sixth power counts near rows alone, and the best rows are those in the middle of many.
    """
    squares: Floats = np.square(np.maximum(references @ rows.T, np.float32(0)))
    return squares * squares * squares


def cover_greedily(similarity: Floats, covered: Floats, weights: Floats, count: int) -> Coverage:
    """Choose up to `count` columns of `similarity` (n, candidates), each the one that adds most to what is covered.

    covered: (n,) how far each reference is covered before. weights: (n,) what each reference counts. Among equals the
    first column is chosen. A gain only falls as more is covered, so one that was computed earlier is an upper bound,
    and most columns need not be looked at again (Minoux 1978).
    """
    so_far = covered.astype(np.float64)
    by_column = np.ascontiguousarray(similarity.T)
    bounds = [(-_gain(column, so_far, weights), place) for place, column in enumerate(by_column)]
    heapq.heapify(bounds)
    rows: list[int] = []
    gains: list[float] = []
    while bounds and len(rows) < count:
        _, place = bounds[0]
        gain = _gain(by_column[place], so_far, weights)
        heapq.heapreplace(bounds, (-gain, place))
        if bounds[0][1] == place:
            heapq.heappop(bounds)
            rows.append(place)
            gains.append(gain)
            so_far = np.maximum(so_far, by_column[place])
    return Coverage(np.array(rows, np.int64), np.array(gains, np.float64))


def _gain(column: Floats, covered: Doubles, weights: Floats) -> float:
    return float(np.dot(np.maximum(column - covered, 0), weights))
