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
    if ranking.looks is not None:
        exact_looks = looks_scores(ranking.looks)
        weights, floors = np.concatenate([weights, ranking.looks]), np.concatenate([floors, exact_looks.nearest])
    hits = index.search(weights, max(1, most), floors=floors, allowed=allowed)
    page = PageHits(
        np.full((m, k), -np.inf, np.float32), np.full((m, k), -1, np.int64), np.zeros((m, k), np.uint8), hits.missing
    )
    for q in range(m):
        known = hits.ids[q] >= 0
        near = NO_IDS
        if exact_looks is not None:
            here = hits.ids[m + q] >= 0
            here[1:] &= hits.scores[m + q][1:] >= exact_looks.near[q]
            near = hits.ids[m + q][here]
        by_score = hits.scores[q][known], hits.ids[q][known]
        order = _order(index, ranking, q, exact_looks, by_score, near, first[q], last[q])
        count = min(k, len(order[1]))
        page.scores[q, :count], page.ids[q, :count], page.placed[q, :count] = (part[:count] for part in order)
    return page


def _order(
    index: Searcher,
    ranking: Ranking,
    q: int,
    exact_looks: LooksScores | None,
    by_score: tuple[Floats, IdArray],
    near: IdArray,
    liked: IdArray,
    disliked: IdArray,
) -> tuple[Floats, IdArray, NDArray[np.uint8]]:
    """Return scores, ids and places of one query's hits in order, given its hits by score and its near matches."""
    scores, ids = by_score
    placed = np.full(len(ids), BY_SCORE, np.uint8)
    extra = np.concatenate([liked, near, disliked])
    extra = extra[~np.isin(extra, ids)]
    count = min(CANDIDATES, len(ids)) if ranking.labels is not None else 0
    x = signs(index.codes(np.concatenate([ids[:count], extra])), index.bits)
    if count and exact_looks is not None:
        exact = (x[:count].astype(np.float64) @ exact_looks.grid[q]).astype(np.float32)
        looks = (exact / max(exact_looks.most[q], 1e-30)).astype(np.float32)
        again = page_scores(ranking, q, predict_labels(ranking, x[:count]), looks)
        order = np.lexsort((ids[:count], -scores[:count], -again))
        ids, scores = (np.concatenate([part[:count][order], part[count:]]) for part in (ids, scores))
        placed[:count] = BY_LABELS
    if len(extra) or len(near) or len(liked) or len(disliked):
        more = (x[count:].astype(np.float64) @ snap(ranking.weights[q : q + 1])[0]).astype(np.float32)
        ids, scores = np.concatenate([ids, extra]), np.concatenate([scores, more])
        placed = np.concatenate([placed, np.full(len(extra), BY_SCORE, np.uint8)])
        ids, scores, placed = _move(ids, scores, placed, near, liked, disliked)
    return scores, ids, placed


def _move(
    ids: IdArray, scores: Floats, placed: NDArray[np.uint8], near: IdArray, liked: IdArray, disliked: IdArray
) -> tuple[IdArray, Floats, NDArray[np.uint8]]:
    """Move liked hits to the front, near matches behind them, disliked hits to the end."""
    near = near[~np.isin(near, np.concatenate([liked, disliked]))]
    others = np.flatnonzero(~np.isin(ids, np.concatenate([liked, near, disliked])))
    by_id = np.argsort(ids)
    groups = [by_id[np.searchsorted(ids, group, sorter=by_id)] for group in (liked, near, disliked)]
    for group, part in zip(groups, (LIKED, NEAR, DISLIKED), strict=True):
        placed[group] = part
    order = np.concatenate([groups[0], groups[1], others, groups[2]])
    return ids[order], scores[order], placed[order]
