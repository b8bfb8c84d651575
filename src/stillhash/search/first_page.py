"""Search as people see it: near matches first, the first page ordered again, votes on their own query.

The order is that of `numeric.ranking.rank_all`, found in an index by two searches: by score, and by similarity. Where
rescoring codes order the page, the first of both are its candidates; elsewhere the search by similarity has a floor
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
from stillhash.numeric.ranking import Ranking, SimilarityScores, code_page_scores, similarity_scores
from stillhash.numeric.rescored_page import CANDIDATES, PageScores, StoredItems, score_pages
from stillhash.numeric.validation import Codes, Floats, check_integer
from stillhash.search.blocks import NO_IDS, IdArray
from stillhash.search.code_index import Searcher
from stillhash.search.merge import Floors, no_floors

# The part of the ranking that placed a hit: "labels" with similarity, or "similarity" alone where labels count nothing.
Place = Literal["score", "labels", "near", "liked", "disliked", "similarity"]
PLACED: tuple[Place, ...] = get_args(Place)  # by number: `reference.BY_SCORE` and so on


class PageHits(NamedTuple):
    """Hits in order; missing ones are -inf and -1. All arrays are (m, k)."""

    scores: Floats  # by the weights, so they need not fall
    ids: IdArray
    placed: NDArray[np.uint8]  # numbers of PLACED
    missing: float = 0.0  # the share of rows that did not answer, where some are on other machines
    candidates: "list[Candidates] | None" = None  # of each query, where rescoring codes order the page


def search_page(
    index: Searcher,
    ranking: Ranking,
    k: int,
    *,
    allowed: Any = None,
    liked: Sequence[IdArray] | None = None,
    disliked: Sequence[IdArray] | None = None,
    repeats: Sequence[IdArray] | None = None,
    stored: StoredItems | None = None,
) -> PageHits:
    """Return the first k hits of each query: exactly the first k of `rank_all`.

    allowed: as in `index.search`. liked, disliked: for each query, ids that come first, in this order, and last.
    repeats: for each query, ids that are known to repeat it, whatever their codes; they are the nearest of the near
    matches. All must be in the index and allowed. stored: where rescoring codes order the page, what is
    stored of its candidates.
    """
    k = check_integer(k, "k", 1)
    if ranking.weights.shape[1] != index.bits:
        raise InvalidInput(f"ranking: expected weights of {index.bits} bits, got {ranking.weights.shape[1]}")
    ends = [list(rows or [NO_IDS] * len(ranking.weights)) for rows in (repeats, liked, disliked)]
    if ranking.page is not None:
        assert stored is not None
        return _rescored_page(index, ranking, k, allowed, stored, ends)
    similarity = None if ranking.similarity is None else similarity_scores(ranking)
    candidates = 0 if similarity is None or ranking.labels is None else CANDIDATES
    most = max(k + max(map(len, disliked or ()), default=0), candidates)
    hits, near = _search(index, ranking, similarity, max(1, min(most, len(index))), allowed)
    candidate_ids = hits.ids[:, :candidates]
    if repeats is not None and similarity is not None:
        near = [np.concatenate([a, b[~np.isin(b, a)]]) if len(a) else b for a, b in zip(repeats, near, strict=True)]
    end_ids, counts = _join_ends(near, *ends[1:])
    codes = _read_codes(index, np.concatenate([candidate_ids.ravel(), end_ids]))
    again = np.empty(candidate_ids.shape, np.float32)
    if similarity is not None and again.size:
        again = code_page_scores(ranking, codes[: again.size].reshape(*again.shape, -1))
    moved = Ends(codes[again.size :], end_ids, counts)
    page = kernels.arrange_page((hits.scores, hits.ids), again, snap(ranking.weights), moved, k)
    return PageHits(*page, hits.missing)


class Candidates(NamedTuple):
    """The candidates of one query for the first page, the highest score first, among equals the smallest id."""

    ids: IdArray
    page: PageScores


def _rescored_page(
    index: Searcher, ranking: Ranking, k: int, allowed: Any, stored: StoredItems, moved: list[list[IdArray]]
) -> PageHits:
    """Return the first k hits where rescoring codes order the page; moved: repeats, liked and disliked ids."""
    (repeats, liked, disliked), grid = moved, snap(ranking.weights)
    assert ranking.page is not None
    ordered = max(k + max(map(len, disliked), default=0), CANDIDATES)  # hits whose order by score can matter
    most = max(ordered, ranking.page.similar)
    hits, similar = _two_searches(index, ranking, max(1, min(most, len(index))), allowed)
    ids = hits.ids[:, :CANDIDATES]
    if similar is not hits.ids or ranking.page.similar > CANDIDATES:
        ids = np.concatenate([ids, similar[:, : ranking.page.similar]], axis=1)
    codes = _read_codes(index, ids.ravel()).reshape(*ids.shape, width(index.bits))
    scores, ids, codes, counts = kernels.merge_candidates(hits.scores[:, :CANDIDATES], ids, codes, grid)
    known = ids[ids >= 0]
    page = score_pages(ranking.page, codes, counts, stored.rescoring_codes(known), stored.labels(known))
    every = [Candidates(ids[q, :n], page.query(q, n)) for q, n in enumerate(counts.tolist())]
    near = [_nearest(some, own) for some, own in zip(every, repeats, strict=True)]
    end_ids, end_counts = _join_ends(near, liked, disliked)
    ends = Ends(_read_codes(index, end_ids), end_ids, end_counts)
    ids = ids.copy()
    for on_page, some in zip(ids, every, strict=True):
        on_page[: len(some.ids)][some.page.left_out()] = -1
    later = hits.ids[:, CANDIDATES:ordered]
    if later.size:
        later = np.stack([np.where(np.isin(row, on_page), -1, row) for row, on_page in zip(later, ids, strict=True)])
        ids = np.concatenate([ids, later], axis=1)
        scores = np.concatenate([scores, hits.scores[:, CANDIDATES:ordered]], axis=1)
    arranged = kernels.arrange_page((scores, ids), page.scores, grid, ends, k, page.tiers)
    found = PageHits(*arranged, hits.missing, every)
    for q in range(len(grid)):
        if not ranking.page.counts_labels(q):
            found.placed[q, found.placed[q] == PLACED.index("labels")] = PLACED.index("similarity")
    return found


def _nearest(candidates: Candidates, repeats: IdArray) -> IdArray:
    """Return the ids that repeat a query, then its other near duplicates, the nearest first."""
    near = np.flatnonzero(candidates.page.tiers == 0)
    if not len(near):
        return repeats
    ids = candidates.ids[near[np.argsort(-candidates.page.cosines[near], kind="stable")]]
    return np.concatenate([repeats, ids[~np.isin(ids, repeats)]])


def _two_searches(index: Searcher, ranking: Ranking, k: int, allowed: Any) -> tuple["HitsByScore", IdArray]:
    """Return the best k hits of all queries by score, and the ids of the best by similarity; one array if alike."""
    assert ranking.similarity is not None
    m = len(ranking.weights)
    if np.array_equal(ranking.weights, ranking.similarity):  # nothing is learnt
        alike = index.search_checked(ranking.weights, k, no_floors(m), allowed)
        return HitsByScore(*alike, alike.missing), alike.ids
    hits = index.search_checked(np.concatenate([ranking.weights, ranking.similarity]), k, no_floors(2 * m), allowed)
    return HitsByScore(hits.scores[:m], hits.ids[:m], hits.missing), hits.ids[m:]


class HitsByScore(NamedTuple):
    """Hits of all queries by score, (m, n)."""

    scores: Floats
    ids: IdArray
    missing: float


def _search(
    index: Searcher, ranking: Ranking, similarity: SimilarityScores | None, k: int, allowed: Any
) -> tuple[HitsByScore, list[IdArray]]:
    """Return the best hits by score, and the near matches of each query."""
    m = len(ranking.weights)
    if similarity is None or ranking.similarity is None:
        hits = index.search_checked(ranking.weights, k, no_floors(m), allowed)
        return HitsByScore(*hits, hits.missing), [NO_IDS] * m
    free = no_floors(m)
    floors = Floors(np.concatenate([free.least, similarity.nearest]), np.concatenate([free.most, similarity.near]))
    hits = index.search_checked(np.concatenate([ranking.weights, ranking.similarity]), k, floors, allowed)
    is_near = hits.scores[m:] >= similarity.near[:, None]
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
