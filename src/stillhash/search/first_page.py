"""Search as people see it: near matches first, the first page ordered again, votes on their own query.

The order is that of `numeric.ranking.rank_all`, found in an index by two searches: by score, and by looks with a floor
that only near matches reach. It holds for any index, on this machine or on a cluster.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.codes import signs
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.ranking import CANDIDATES, LooksScores, Ranking, looks_scores, page_scores, predict_labels
from stillhash.numeric.validation import Floats, check_integer
from stillhash.search.blocks import NO_IDS, IdArray
from stillhash.search.code_index import Searcher

Place = Literal["score", "labels", "near", "liked", "disliked"]  # the part of the ranking that placed a hit
PLACED: tuple[Place, ...] = get_args(Place)
BY_SCORE, BY_LABELS, NEAR, LIKED, DISLIKED = range(len(PLACED))
OrderedHits = tuple[Floats, IdArray, NDArray[np.uint8]]  # scores, ids and places of one query's hits


class PageHits(NamedTuple):
    """Hits in order; missing ones are -inf and -1. All arrays are (m, k)."""

    scores: Floats  # by the weights, so they need not fall
    ids: IdArray
    placed: NDArray[np.uint8]  # numbers of PLACED
    missing: float = 0.0  # the share of rows that did not answer, where some are on other machines


def search_page(
    index: Searcher,
    ranking: Ranking,
    k: int,
    *,
    allowed: Any = None,
    liked: Sequence[IdArray] | None = None,
    disliked: Sequence[IdArray] | None = None,
) -> PageHits:
    """Return the first k hits of each query: exactly the first k of `rank_all`.

    allowed: as in `index.search`. liked, disliked: for each query, ids that come first, in this order, and last; they
    must be in the index and allowed.
    """
    k, m = check_integer(k, "k", 1), len(ranking.weights)
    first, last = (votes or [NO_IDS] * m for votes in (liked, disliked))
    most = min(max(k + max(map(len, last), default=0), CANDIDATES if ranking.labels is not None else 0), len(index))
    weights, floors, exact_looks = ranking.weights, np.full(m, -np.inf, np.float32), None
    ceilings = floors
    if ranking.looks is not None:
        exact_looks = looks_scores(ranking.looks)
        weights, floors = np.concatenate([weights, ranking.looks]), np.concatenate([floors, exact_looks.nearest])
        ceilings = np.concatenate([ceilings, exact_looks.near])
    hits = index.search(weights, max(1, most), floors=floors, ceilings=ceilings, allowed=allowed)
    missing = np.full((m, k), -np.inf, np.float32), np.full((m, k), -1, np.int64), np.zeros((m, k), np.uint8)
    page = PageHits(*missing, hits.missing)
    for q in range(m):
        near: list[int] = []
        if exact_looks is not None:
            is_near = hits.scores[m + q] >= exact_looks.near[q]
            is_near[0] = hits.ids[m + q][0] >= 0
            near = hits.ids[m + q][is_near].tolist()
        known = hits.ids[q] >= 0
        by_score = _order_page(index, ranking, q, exact_looks, hits.scores[q][known], hits.ids[q][known])
        order = _move_to_ends(index, ranking.weights[q : q + 1], by_score, near, first[q].tolist(), last[q].tolist(), k)
        count = min(k, len(order[1]))
        page.scores[q, :count], page.ids[q, :count], page.placed[q, :count] = (part[:count] for part in order)
    return page


def _order_page(
    index: Searcher, ranking: Ranking, q: int, exact_looks: LooksScores | None, scores: Floats, ids: IdArray
) -> OrderedHits:
    """Order the first hits by score of a query again, by labels and looks."""
    if ranking.labels is None or exact_looks is None or not len(ids):
        return scores, ids, np.full(len(ids), BY_SCORE, np.uint8)
    x = signs(index.codes(ids[:CANDIDATES]), index.bits)
    exact = (x.astype(np.float64) @ exact_looks.grid[q]).astype(np.float32)
    looks = (exact / max(exact_looks.most[q], 1e-30)).astype(np.float32)
    again = page_scores(ranking, q, predict_labels(ranking, x), looks)
    order = np.lexsort((ids[: len(x)], -scores[: len(x)], -again))
    placed = np.full(len(ids), BY_SCORE, np.uint8)
    placed[: len(x)] = BY_LABELS
    scores, ids = (np.concatenate([part[order], part[len(x) :]]) for part in (scores, ids))
    return scores, ids, placed


def _move_to_ends(
    index: Searcher, weights: Floats, hits: OrderedHits, near: list[int], liked: list[int], disliked: list[int], k: int
) -> OrderedHits:
    """Return at least the first k hits with liked ones in front, near matches behind them, and disliked ones last."""
    if not (near or liked or disliked):
        return hits
    voted = {*liked, *disliked}
    near = [id for id in near if id not in voted]
    moved = voted | set(near)
    scores, ids, placed = (part[: k + len(moved)] for part in hits)
    others = np.array([id not in moved for id in ids.tolist()], bool)
    ends = [*liked, *near, *disliked]
    exact = signs(index.codes(ends), index.bits).astype(np.float64) @ snap(weights)[0]
    front, back = slice(len(ends) - len(disliked)), slice(len(ends) - len(disliked), None)
    parts = np.repeat(np.array([LIKED, NEAR, DISLIKED], np.uint8), [len(liked), len(near), len(disliked)])

    def join(at_ends: NDArray[Any], between: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([at_ends[front], between[others], at_ends[back]])

    return join(exact.astype(np.float32), scores), join(np.array(ends, np.int64), ids), join(parts, placed)
