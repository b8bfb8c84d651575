"""Search as people see it: near matches first, the first page ordered again, votes on their own query.

The order is that of `numeric.ranking.rank_all`, found in an index by two searches: by score, and by looks with a floor
that only near matches reach. It holds for any index, on this machine or on a cluster.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.codes import signs
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.ranking import CANDIDATES, LooksScores, Ranking, looks_scores, page_scores
from stillhash.numeric.validation import Codes, Floats, check_integer
from stillhash.search.blocks import NO_IDS, IdArray
from stillhash.search.code_index import Searcher
from stillhash.search.merge import Hits

Place = Literal["score", "labels", "near", "liked", "disliked"]  # the part of the ranking that placed a hit
PLACED: tuple[Place, ...] = get_args(Place)
BY_SCORE, BY_LABELS, NEAR, LIKED, DISLIKED = range(len(PLACED))
END_PLACES = np.array([LIKED, NEAR, DISLIKED], np.uint8)
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
    none: Sequence[IdArray] = [NO_IDS] * m
    first, last = liked or none, disliked or none
    most = min(max(k + max(map(len, last), default=0), CANDIDATES if ranking.labels is not None else 0), len(index))
    looks = None if ranking.looks is None else looks_scores(ranking)
    hits, near = _search(index, ranking, looks, max(1, most), allowed)
    ends = [_join_ends(*some) for some in zip(first, near, last, strict=True)]
    depth = min(k + max(len(some.ids) for some in ends), hits.ids.shape[1]) if m else 0  # hits by score that can matter
    again = CANDIDATES if looks is not None and ranking.labels is not None else 0
    codes, places = _read_codes(index, [hits.ids[:m, :again].ravel(), *(some.ids for some in ends)])
    scores, ids = hits.scores[:m, :depth], hits.ids[:m, :depth]
    placed = np.full(ids.shape, BY_SCORE, np.uint8)
    if looks is not None and again and m:
        order = np.argsort(-page_scores(ranking, looks, codes, places[0].reshape(m, -1)), axis=1, kind="stable")
        order = order[:, :depth]  # hits come by score, then id, and equal ones stay so
        rows = np.arange(m)[:, None]
        scores[:, :again], ids[:, :again] = hits.scores[rows, order], hits.ids[rows, order]
        placed[:, :again][ids[:, :again] >= 0] = BY_LABELS
    page = PageHits(
        np.full((m, k), -np.inf, np.float32), np.full((m, k), -1), np.full((m, k), BY_SCORE, np.uint8), hits.missing
    )
    grid = snap(ranking.weights)
    for q, (names, parts) in enumerate(ends):
        page_hits: OrderedHits = scores[q], ids[q], placed[q]
        if len(names):
            exact = (signs(codes[places[q + 1]], index.bits) @ grid[q]).astype(np.float32)
            page_hits = _move_to_ends(page_hits, (exact, names, parts))
        count = min(k, len(page_hits[1]))
        page.scores[q, :count], page.ids[q, :count], page.placed[q, :count] = (part[:count] for part in page_hits)
    return page


class Ends(NamedTuple):
    """The hits of a query that come before and after those by score."""

    ids: IdArray
    placed: NDArray[np.uint8]  # LIKED, NEAR or DISLIKED


def _search(
    index: Searcher, ranking: Ranking, looks: LooksScores | None, k: int, allowed: Any
) -> tuple[Hits, list[IdArray]]:
    """Return the best hits by score, and the near matches of each query."""
    m = len(ranking.weights)
    if looks is None or ranking.looks is None:
        return index.search(ranking.weights, k, allowed=allowed), [NO_IDS] * m
    free = np.full(m, -np.inf, np.float32)
    floors, ceilings = np.concatenate([free, looks.nearest]), np.concatenate([free, looks.near])
    weights = np.concatenate([ranking.weights, ranking.looks])
    hits = index.search(weights, k, floors=floors, ceilings=ceilings, allowed=allowed)
    scores, ids = hits.scores[m:], hits.ids[m:]
    is_near = scores >= looks.near[:, None]
    is_near[:, 0] = ids[:, 0] >= 0
    return hits, [some[:count] for some, count in zip(ids, is_near.sum(axis=1).tolist(), strict=True)]


def _join_ends(liked: IdArray, near: IdArray, disliked: IdArray) -> Ends:
    if len(liked) or len(disliked):
        near = near[~np.isin(near, np.concatenate([liked, disliked]))]
    parts = np.repeat(END_PLACES, [len(liked), len(near), len(disliked)])
    return Ends(np.concatenate([liked, near, disliked]), parts)


def _read_codes(index: Searcher, parts: list[IdArray]) -> tuple[Codes, list[NDArray[np.int64]]]:
    """Return the codes of all these ids, each once, and for each part the numbers of its codes; id -1 has number -1."""
    distinct, numbers = np.unique(np.concatenate(parts), return_inverse=True)
    missing = int(len(distinct) > 0 and distinct[0] < 0)
    numbers -= missing
    stops = list(accumulate(map(len, parts)))
    return index.codes(distinct[missing:]), [numbers[n - len(part) : n] for part, n in zip(parts, stops, strict=True)]


def _move_to_ends(hits: OrderedHits, ends: OrderedHits) -> OrderedHits:
    """Return the hits with these in front, those that are disliked last."""
    moved = set(ends[1].tolist())
    others = np.array([id >= 0 and id not in moved for id in hits[1].tolist()], bool)
    front = int((ends[2] != DISLIKED).sum())

    def join(at_ends: NDArray[Any], between: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([at_ends[:front], between[others], at_ends[front:]])

    return join(ends[0], hits[0]), join(ends[1], hits[1]), join(ends[2], hits[2])
