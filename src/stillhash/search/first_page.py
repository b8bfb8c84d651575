"""Search as people see it: near matches first, the first page ordered again, votes on their own query.

The order is that of `numeric.ranking.rank_all`, found in an index by two searches: by score, and by looks with a floor
that only near matches reach. It holds for any index, on this machine or on a cluster.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput
from stillhash.numeric import kernels
from stillhash.numeric.codes import width
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.kernels import Ends
from stillhash.numeric.ranking import CANDIDATES, LooksScores, Ranking, looks_scores, page_scores
from stillhash.numeric.validation import Codes, Floats, check_integer
from stillhash.search.blocks import NO_IDS, IdArray
from stillhash.search.code_index import Searcher
from stillhash.search.merge import Floors, no_floors

Place = Literal["score", "labels", "near", "liked", "disliked"]  # the part of the ranking that placed a hit
PLACED: tuple[Place, ...] = get_args(Place)  # by number: `reference.BY_SCORE` and so on


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
    repeats: Sequence[IdArray] | None = None,
) -> PageHits:
    """Return the first k hits of each query: exactly the first k of `rank_all`.

    allowed: as in `index.search`. liked, disliked: for each query, ids that come first, in this order, and last.
    repeats: for each query, ids that are known to repeat it, whatever their codes; by looks they are the nearest of
    the near matches. All must be in the index and allowed.
    """
    k = check_integer(k, "k", 1)
    if ranking.weights.shape[1] != index.bits:
        raise InvalidInput(f"ranking: expected weights of {index.bits} bits, got {ranking.weights.shape[1]}")
    looks = None if ranking.looks is None else looks_scores(ranking)
    candidates = 0 if looks is None or ranking.labels is None else CANDIDATES
    most = max(k + max(map(len, disliked or ()), default=0), candidates)
    hits, near = _search(index, ranking, looks, max(1, min(most, len(index))), allowed)
    candidate_ids = hits.ids[:, :candidates]
    if repeats is not None and looks is not None:
        near = [np.concatenate([a, b[~np.isin(b, a)]]) if len(a) else b for a, b in zip(repeats, near, strict=True)]
    end_ids, counts = _join_ends(near, liked or [NO_IDS] * len(near), disliked or [NO_IDS] * len(near))
    codes = _read_codes(index, np.concatenate([candidate_ids.ravel(), end_ids]))
    again = np.empty(candidate_ids.shape, np.float32)
    if looks is not None and again.size:
        again = page_scores(ranking, codes[: again.size].reshape(*again.shape, -1))
    ends = Ends(codes[again.size :], end_ids, counts)
    page = kernels.arrange_page((hits.scores, hits.ids), again, snap(ranking.weights), ends, k)
    return PageHits(*page, hits.missing)


class HitsByScore(NamedTuple):
    """Hits of all queries by score, (m, n)."""

    scores: Floats
    ids: IdArray
    missing: float


def _search(
    index: Searcher, ranking: Ranking, looks: LooksScores | None, k: int, allowed: Any
) -> tuple[HitsByScore, list[IdArray]]:
    """Return the best hits by score, and the near matches of each query."""
    m = len(ranking.weights)
    if looks is None or ranking.looks is None:
        hits = index.search_checked(ranking.weights, k, no_floors(m), allowed)
        return HitsByScore(*hits, hits.missing), [NO_IDS] * m
    free = no_floors(m)
    floors = Floors(np.concatenate([free.least, looks.nearest]), np.concatenate([free.most, looks.near]))
    hits = index.search_checked(np.concatenate([ranking.weights, ranking.looks]), k, floors, allowed)
    is_near = hits.scores[m:] >= looks.near[:, None]
    is_near[:, 0] = hits.ids[m:, 0] >= 0
    near = [some[:count] for some, count in zip(hits.ids[m:], is_near.sum(axis=1).tolist(), strict=True)]
    return HitsByScore(hits.scores[:m], hits.ids[:m], hits.missing), near


def _join_ends(
    near: Sequence[IdArray], liked: Sequence[IdArray], disliked: Sequence[IdArray]
) -> tuple[IdArray, NDArray[np.int64]]:
    """Return the liked, near and disliked ids of each query, one after another, and how many there are, (m, 3)."""
    parts = []
    for first, some, last in zip(liked, near, disliked, strict=True):
        if len(first) or len(last):
            some = some[~np.isin(some, np.concatenate([first, last]))]
        parts += [first, some, last]
    return np.concatenate([NO_IDS, *parts]), np.array([*map(len, parts)], np.int64).reshape(-1, 3)


def _read_codes(index: Searcher, ids: IdArray) -> Codes:
    """Return the codes of these ids; those of missing hits are zero."""
    known = ids >= 0
    if known.all():
        return index.codes(ids)
    codes = np.zeros((len(ids), width(index.bits)), np.uint8)
    codes[known] = index.codes(ids[known])
    return codes
