"""The order of hits: a score of all codes, the first page ordered again, near matches first. docs/method.md derives it.

`rank_all` ranks all codes. `stillhash.search.first_page` finds the same order in an index without that. Where items
have rescoring codes, these and the labels of now order the first page (rescored_page.py); elsewhere short codes do.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric import kernels
from stillhash.numeric.exact_scores import Grid, score_all, snap
from stillhash.numeric.rescored_page import CANDIDATES, RescoredPage, StoredItems, page_scores
from stillhash.numeric.validation import Codes, Floats

PAGE_SIMILARITY = 2.0  # how much more similarity counts there, beside labels, than in the score
# Loss of a code: the share of |similarity| on which it differs from the query's code, 0 to 1. Up to the first of these
# a hit is a near match, up to the second the closest hit is one too.
NEAR_LOSSES = 0.01, 0.07
FEW_BITS_LOSSES = 0.0, 0.02  # where bits hold labels too, and fewer than MANY_SIMILARITY_BITS are about features
MANY_SIMILARITY_BITS = 96
MIN_SIMILARITY_BITS = 48  # where others hold labels, near matches are found by these alone if there are so many


class Ranking(NamedTuple):
    """How m queries rank codes.

    The score of a code x is weights . x. With `similarity`, hits whose code is nearly that of the query come first.
    With `labels`, the first CANDIDATES hits by score are ordered again by the labels predicted of query and code.
    """

    weights: Floats  # (m, b)
    similarity: Floats | None = None  # (m, b): the query before it is quantised
    labels: Floats | None = None  # (m, labels) predicted of each query, of unit norm, shorter the less sure they are
    V: Floats | None = None  # (b, labels), and
    v: Floats | None = None  # (labels,): of a code, x @ V + v are predicted
    power: float = 1.0  # that predicted labels of codes are raised to
    balance: float = 0.0  # how much labels count beside similarity, 0 to 1
    losses: tuple[float, float] = NEAR_LOSSES
    page_similarity: Floats | None = None  # (m, b): similarity as it counts on the first page; None: as it is
    page: RescoredPage | None = None  # the first page by rescoring codes; then `similarity` only finds candidates

    def rows(self, some: Any) -> "Ranking":
        """Return the ranking of some of the queries."""
        parts = {"similarity": self.similarity, "labels": self.labels, "page_similarity": self.page_similarity}
        chosen = {name: part[some] for name, part in parts.items() if part is not None}
        page = None if self.page is None else self.page.rows(some)
        return self._replace(weights=self.weights[some], page=page, **chosen)


class SimilarityScores(NamedTuple):
    """Exact scores by similarity: weights on the grid, their greatest possible score, and where near matches begin."""

    grid: Grid  # (m, b)
    most: NDArray[np.float64]  # (m,)
    near: Floats  # (m,) the least score of a near match
    nearest: Floats  # (m,) the least score of the closest hit that is a near match

    def rows(self, some: Any) -> "SimilarityScores":
        """Return the scores of some of the queries."""
        return SimilarityScores(self.grid[some], self.most[some], self.near[some], self.nearest[some])


def similarity_scores(ranking: Ranking) -> SimilarityScores:
    """Return what near matches are found by, of a ranking with similarity."""
    assert ranking.similarity is not None
    grid = snap(ranking.similarity)
    most = np.abs(grid).sum(axis=1)
    near, nearest = (((1 - 2 * loss) * most).astype(np.float32) for loss in ranking.losses)
    return SimilarityScores(grid, most, near, nearest)


def predict_labels(ranking: Ranking, codes: Codes) -> Floats:
    """Return the labels (n, labels) predicted of codes, of unit norm: the same bits in any batch."""
    assert ranking.V is not None and ranking.v is not None
    return kernels.predict_labels(codes, ranking.V, ranking.v, ranking.power)


def code_page_scores(ranking: Ranking, codes: Codes) -> Floats:
    """Return the scores (m, n) on the first page of each query's codes (m, n, bytes).

    They are the cosine of labels, and the score by similarity as a share of its most, from -1 to 1.
    """
    similarity = ranking.similarity if ranking.page_similarity is None else ranking.page_similarity
    assert similarity is not None and ranking.labels is not None and ranking.V is not None and ranking.v is not None
    grid = snap(similarity)
    share = np.float32(ranking.balance)
    shares = float(share), float(np.float32(PAGE_SIMILARITY) * (1 - share))
    model = ranking.V, ranking.v, ranking.power
    return kernels.page_scores(codes, *model, ranking.labels, grid, np.abs(grid).sum(axis=1), shares)


def rank_all(ranking: Ranking, codes: Codes, stored: StoredItems | None = None) -> NDArray[np.int64]:
    """Return for each query the numbers (m, n) of all codes, best first.

    Near matches first, by their score by similarity; then the first CANDIDATES by score, by their page score; then the
    others by score. Among equals a higher score, then a smaller number.

    stored: what is stored of the codes, by their numbers, where rescoring codes order the first page. Then candidates
    are the first CANDIDATES by score and the first `page.similar` by similarity; those of NEAR_COSINE or more come
    first, by their cosine, and then the other candidates by their page score. Where labels count, those by similarity
    alone that are no finalists keep their place by score.
    """
    orders = order_rows(score_all(snap(ranking.weights), codes))
    if ranking.similarity is None or not len(codes):
        return orders
    if ranking.page is not None:
        assert stored is not None
        return np.stack([_rescored_order(ranking, q, codes, stored, order) for q, order in enumerate(orders)])
    exact_similarity = similarity_scores(ranking)
    if ranking.labels is not None:
        pages = orders[:, :CANDIDATES]
        again = code_page_scores(ranking, codes[pages])
        orders[:, :CANDIDATES] = np.take_along_axis(pages, order_rows(again), axis=1)
    by_similarity = score_all(exact_similarity.grid, codes)
    near, closest = by_similarity >= exact_similarity.near[:, None], by_similarity.argmax(axis=1)
    alone = np.flatnonzero(~near.any(axis=1) & (by_similarity.max(axis=1) >= exact_similarity.nearest))
    near[alone, closest[alone]] = True
    for q in np.flatnonzero(near.any(axis=1)):
        first, others = np.flatnonzero(near[q]), orders[q, ~near[q, orders[q]]]
        orders[q] = np.concatenate([first[np.argsort(-by_similarity[q, first], kind="stable")], others])
    return orders


def _rescored_order(
    ranking: Ranking, q: int, codes: Codes, stored: StoredItems, by_score: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the numbers of all codes in the order of one query, given their order by score."""
    assert ranking.similarity is not None and ranking.page is not None
    by_similarity = order_rows(score_all(snap(ranking.similarity[[q]]), codes))[0]
    chosen = np.zeros(len(codes), bool)
    chosen[by_score[:CANDIDATES]] = chosen[by_similarity[: ranking.page.similar]] = True
    candidates = by_score[chosen[by_score]]  # so the first CANDIDATES of them are the first by score
    rescoring_codes, labels = stored.rescoring_codes(candidates), stored.labels(candidates)
    page = page_scores(ranking.page, q, codes[candidates], rescoring_codes, labels)
    order = page.order()
    chosen[candidates[page.left_out()]] = False
    return np.concatenate([candidates[order[~page.left_out()[order]]], by_score[~chosen[by_score]]])


def order_rows(scores: Floats) -> NDArray[np.int64]:
    """Return the columns of each row by score (m, n), the highest first, and among equals the smaller number first.

    A key is a score, as an integer in the opposite order, followed by its column, so any sort of keys will do.
    """
    keys = (0 - scores).view(np.int32)
    keys ^= (keys >> 31) & 0x7FFFFFFF
    both = keys.astype(np.int64) << 32 | np.arange(scores.shape[1])
    both.sort(axis=1)
    return both & 0xFFFFFFFF


def rank_scores(ranking: Ranking, codes: Codes, stored: StoredItems | None = None) -> Floats:
    """Return scores (m, n) that rank all codes as `rank_all` does; where that is by score, these, so ties are seen."""
    if ranking.similarity is None:
        return score_all(snap(ranking.weights), codes)
    scores = np.empty((len(ranking.weights), len(codes)), np.float32)
    np.put_along_axis(scores, rank_all(ranking, codes, stored), np.arange(len(codes), 0, -1, dtype=np.float32)[None], 1)
    return scores


def half_power(Y: Floats, power: float) -> Floats:
    """Return max(Y, 0) to the power of a multiple of 0.5, by operations that round alike on every instruction set."""
    Y = np.maximum(Y, 0)
    whole, half = divmod(round(2 * power), 2)
    result = np.sqrt(Y) if half else np.ones_like(Y)
    for _ in range(whole):
        result *= Y
    return result
