"""The order of hits: a score of all codes, the first page ordered again, near matches first. docs/method.md derives it.

`rank_all` is the definition. `stillhash.search.first_page` finds the same order in an index without ranking all codes.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric import kernels
from stillhash.numeric.exact_scores import Grid, score_all, snap
from stillhash.numeric.validation import Codes, Floats

CANDIDATES = 300  # the first hits by score, which are ordered again for the first page
PAGE_LOOKS = 2.0  # how much more looks count there, beside labels, than in the score
# Loss of a code: the share of |looks| on which it differs from the query's code, 0 to 1.
NEAR_LOSS = 0.01  # up to here a hit is a near match
NEAREST_LOSS = 0.07  # up to here the closest hit is one too


class Ranking(NamedTuple):
    """How m queries rank codes.

    The score of a code x is weights . x. With `looks`, hits whose code is nearly that of the query come first. With
    `labels`, the first CANDIDATES hits by score are ordered again by the labels that are predicted of query and code.
    """

    weights: Floats  # (m, b)
    looks: Floats | None = None  # (m, b): the query before it is quantised
    labels: Floats | None = None  # (m, labels) predicted of each query, of unit norm
    V: Floats | None = None  # (b, labels), and
    v: Floats | None = None  # (labels,): of a code, x @ V + v are predicted
    power: float = 1.0  # that predicted labels of codes are raised to
    balance: float = 0.0  # how much labels count beside looks, 0 to 1

    def rows(self, some: Any) -> "Ranking":
        """Return the ranking of some of the queries."""
        looks, labels = (None if part is None else part[some] for part in (self.looks, self.labels))
        return Ranking(self.weights[some], looks, labels, self.V, self.v, self.power, self.balance)


class LooksScores(NamedTuple):
    """Exact scores by looks: the weights on the grid, their greatest possible score, and where near matches begin."""

    grid: Grid  # (m, b)
    most: NDArray[np.float64]  # (m,)
    near: Floats  # (m,) the least score of a near match
    nearest: Floats  # (m,) the least score of the closest hit that is a near match

    def rows(self, some: Any) -> "LooksScores":
        """Return the scores of some of the queries."""
        return LooksScores(self.grid[some], self.most[some], self.near[some], self.nearest[some])


def looks_scores(looks: Floats) -> LooksScores:
    """Return what near matches are found by."""
    grid = snap(looks)
    most = np.abs(grid).sum(axis=1)
    near, nearest = (((1 - 2 * loss) * most).astype(np.float32) for loss in (NEAR_LOSS, NEAREST_LOSS))
    return LooksScores(grid, most, near, nearest)


def predict_labels(ranking: Ranking, codes: Codes) -> Floats:
    """Return the labels (n, labels) predicted of codes, of unit norm: the same bits in any batch."""
    assert ranking.V is not None and ranking.v is not None
    return kernels.predict_labels(codes, ranking.V, ranking.v, ranking.power)


def page_scores(ranking: Ranking, looks: LooksScores, codes: Codes) -> Floats:
    """Return the scores (m, n) on the first page of each query's codes (m, n, bytes).

    They are the cosine of labels, and the score by looks as a share of its most, from -1 to 1.
    """
    assert ranking.labels is not None and ranking.V is not None and ranking.v is not None
    share = np.float32(ranking.balance)
    shares = float(share), float(np.float32(PAGE_LOOKS) * (1 - share))
    model = ranking.V, ranking.v, ranking.power
    return kernels.page_scores(codes, *model, ranking.labels, looks.grid, looks.most, shares)


def rank_all(ranking: Ranking, codes: Codes) -> NDArray[np.int64]:
    """Return for each query the numbers (m, n) of all codes, best first: by definition, slowly.

    Near matches first, by their score by looks; then the first CANDIDATES by score, by their page score; then the
    others by score. Among equals a higher score, then a smaller number.
    """
    all_scores = score_all(snap(ranking.weights), codes)
    orders = np.argsort(-all_scores, axis=1, kind="stable")
    if ranking.looks is None or not len(codes):
        return orders
    exact_looks = looks_scores(ranking.looks)
    for q, (scores, by_looks) in enumerate(zip(all_scores, score_all(exact_looks.grid, codes), strict=True)):
        near = np.flatnonzero(by_looks >= exact_looks.near[q])
        if not len(near) and by_looks.max() >= exact_looks.nearest[q]:
            near = np.array([np.argmax(by_looks)])
        near = near[np.lexsort((near, -by_looks[near]))]
        page, rest = orders[q, :CANDIDATES], orders[q, CANDIDATES:]
        if ranking.labels is not None:
            one = ranking.rows([q]), exact_looks.rows([q])
            (again,) = page_scores(*one, codes[page][None])
            page = page[np.lexsort((page, -scores[page], -again))]
        others = np.concatenate([page, rest])
        orders[q] = np.concatenate([near, others[~np.isin(others, near)]])
    return orders


def rank_scores(ranking: Ranking, codes: Codes) -> Floats:
    """Return scores (m, n) that rank all codes as `rank_all` does; where that is by score, these, so ties are seen."""
    if ranking.looks is None:
        return score_all(snap(ranking.weights), codes)
    scores = np.empty((len(ranking.weights), len(codes)), np.float32)
    np.put_along_axis(scores, rank_all(ranking, codes), np.arange(len(codes), 0, -1, dtype=np.float32)[None], 1)
    return scores


def half_power(Y: Floats, power: float) -> Floats:
    """Return max(Y, 0) to the power of a multiple of 0.5, by operations that round alike on every instruction set."""
    Y = np.maximum(Y, 0)
    whole, half = divmod(round(2 * power), 2)
    result = np.sqrt(Y) if half else np.ones_like(Y)
    for _ in range(whole):
        result *= Y
    return result
