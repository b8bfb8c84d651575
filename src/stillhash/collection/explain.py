"""Explain a hit: what each bit of its code adds to the score, what placed it, and how another version ranks it."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.types import Answer, Explanation
from stillhash.errors import TooLarge
from stillhash.numeric.codes import signs
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.ranking import Ranking, looks_scores, predict_labels
from stillhash.numeric.rescored_page import CANDIDATES, MOST_SIMILAR, StoredItems
from stillhash.search.code_index import Searcher
from stillhash.search.first_page import Candidates, search_page

BITS_IN_GROUP = 8
NUMBER_BYTES = 24  # of a number as JSON, at most, about
LABEL_BYTES = 900  # of the labels that are predicted, as JSON, about


def check_explained_bytes(hits: int, bits: int, max_bytes: int | None) -> None:
    """Raise TooLarge if explanations of so many hits would take more bytes."""
    needed = hits * (bits * NUMBER_BYTES + LABEL_BYTES)
    if max_bytes is not None and needed > max_bytes:
        raise TooLarge(f"explain: expected at most {max_bytes} bytes, got about {needed}. Request fewer hits.")


class ExplainedPage(NamedTuple):
    """What answers are explained by: their rows, how they were ranked, and how another version ranks."""

    rows: NDArray[np.int64]  # (m, k)
    own: Ranking
    other: Ranking
    other_version: int
    candidates: list[Candidates] | None  # of each query, where rescoring codes order the first page
    stored: StoredItems | None
    allowed: Any


def explain_answers(index: Searcher, answers: list[Answer], page: ExplainedPage) -> list[Answer]:
    """Return answers, whose hits have these rows, with explanations by their ranking and by that of another version."""
    return [_explain_answer(index, answer, page, q) for q, answer in enumerate(answers)]


def _explain_answer(index: Searcher, answer: Answer, page: ExplainedPage, q: int) -> Answer:
    """Return the answer with an explanation of each hit."""
    if not answer.hits:
        return answer
    ranking, other_ranking = page.own.rows([q]), page.other.rows([q])
    rows = page.rows[q, : len(answer.hits)]
    codes = index.codes(rows)
    x = signs(codes, index.bits).astype(np.float64)
    parts = x * snap(ranking.weights)
    groups = np.add.reduceat(parts, range(0, index.bits, BITS_IN_GROUP), axis=1).tolist()
    scores = (x @ snap(other_ranking.weights)[0]).astype(np.float32).tolist()
    ranks = _ranks(index, other_ranking, rows, min(scores), page).tolist()
    looks: list[float | None] = [None] * len(rows)
    labels: list[float | None] = [None] * len(rows)
    if ranking.page is not None and page.stored is not None and page.candidates is not None:
        looks, labels = _rescored_parts(ranking, rows, page.candidates[q], page.stored)
    elif ranking.looks is not None:
        exact_looks = looks_scores(ranking)
        looks = (x @ exact_looks.grid[0] / max(exact_looks.most[0], 1e-30)).tolist()
    if ranking.labels is not None:
        labels = (predict_labels(ranking, codes) @ ranking.labels[0]).tolist()
    explanations = [
        Explanation(bits, groups[n], n + 1, page.other_version, scores[n], ranks[n], looks[n], labels[n])
        for n, bits in enumerate(parts.tolist())
    ]
    hits = [replace(hit, explanation=some) for hit, some in zip(answer.hits, explanations, strict=True)]
    return replace(answer, hits=hits)


def _rescored_parts(
    ranking: Ranking, rows: NDArray[np.int64], candidates: Candidates, stored: StoredItems
) -> tuple[list[float | None], list[float | None]]:
    """Return the cosine of each row with the query, and of their labels; None where labels do not place it."""
    assert ranking.page is not None
    cosines = ranking.page.rescorer.cosines(ranking.page.queries, stored.rescoring_codes(rows)[None])[0]
    if not ranking.page.counts_labels(0):
        return cosines.tolist(), [None] * len(rows)
    of_row = dict(zip(candidates.ids.tolist(), candidates.page.labels.tolist(), strict=True))
    return cosines.tolist(), [of_row.get(row) for row in rows.tolist()]


def _ranks(
    index: Searcher, ranking: Ranking, rows: NDArray[np.int64], least: float, explained: ExplainedPage
) -> NDArray[np.int64]:
    """Return the places of these rows, from 1, in the ranking of one query, where `least` is their lowest score."""
    (by_score,) = index.range_search(ranking.weights, least, allowed=explained.allowed)
    page = search_page(index, ranking, CANDIDATES + MOST_SIMILAR, allowed=explained.allowed, stored=explained.stored)
    place = {row: n for n, row in enumerate(by_score.ids.tolist(), 1)}
    first = page.ids[0][page.ids[0] >= 0].tolist()
    on_page = {row: n for n, row in enumerate(first, 1)}
    moved = [place.get(row, len(place) + 1) for row in first]  # those of a lower score than a row come before it too
    ranks = [on_page.get(row) or place[row] + sum(at > place[row] for at in moved) for row in rows.tolist()]
    return np.array(ranks, np.int64)
