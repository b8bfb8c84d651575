"""The NumPy twin of the kernel that measures the quality of rankings; see `reference`."""

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.reference import Array

FIRST_PAGE, FIRST_HUNDRED = 10, 100  # hits that precision looks at; nDCG looks at the first page


def rank_quality(scores: Array, grades: Array) -> NDArray[np.float64]:
    """Return the measures (m, 5) of each row, see `kernels.rank_quality`."""
    rows = zip(scores, grades, strict=True)
    return np.array([_quality_of(s, g) for s, g in rows], np.float64).reshape(-1, 5)


def _quality_of(scores: Array, grades: Array) -> tuple[float, float, float, float, float]:
    order = np.argsort(-scores, kind="stable")
    relevant = grades[order] > 0
    ranks = np.arange(1, len(order) + 1)
    hits = np.cumsum(relevant)
    most = max(1, int(relevant.sum()))
    discount = 1 / np.log2(np.arange(2, FIRST_PAGE + 2))
    gained, ideal = ((g[:FIRST_PAGE] * discount[: len(g)]).sum() for g in (grades[order], -np.sort(-grades)))
    return (
        float((hits / ranks)[relevant].sum()) / most,
        _over_orders_of_ties(scores[order], relevant) / most,
        float(relevant[:FIRST_PAGE].sum()) / FIRST_PAGE,
        float(relevant[:FIRST_HUNDRED].sum()) / FIRST_HUNDRED,
        float(gained / ideal) if ideal else 0.0,
    )


def _over_orders_of_ties(scores: Array, relevant: Array) -> float:
    """Return the expected sum of precisions at the ranks of relevant items.

    A group of n ties from rank t + 1 on, r of them relevant, c relevant before it: the item at place i of the group is
    relevant with chance r/n, and then c, itself and (i - 1)(r - 1)/(n - 1) others are among the first t + i. The sum
    over i of (c + 1 + (i - 1) rho) / (t + i) is n rho + (c + 1 - rho (t + 1)) (H(t + n) - H(t)).
    """
    t = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]])) if len(scores) else np.empty(0, np.int64)
    r = np.add.reduceat(relevant, t, dtype=np.int64) if len(t) else t
    n = np.diff(t, append=len(scores))
    c = np.cumsum(r) - r
    rho = (r - 1) / np.maximum(n - 1, 1)
    H = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, len(scores) + 1))])
    return float((r / n * (n * rho + (c + 1 - rho * (t + 1)) * (H[t + n] - H[t])))[r > 0].sum())
