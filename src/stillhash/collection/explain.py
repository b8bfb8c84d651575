"""Explain a hit: what each bit of its code adds to the score, what placed it, and how another version ranks it."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.types import Answer, Explanation
from stillhash.errors import TooLarge
from stillhash.numeric.codes import signs
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.ranking import CANDIDATES, Ranking, looks_scores, predict_labels
from stillhash.numeric.reference import NEAR
from stillhash.search.code_index import Searcher
from stillhash.search.first_page import search_page

BITS_IN_GROUP = 8
NUMBER_BYTES = 24  # of a number as JSON, at most, about
LABEL_BYTES = 900  # of the labels that are predicted, as JSON, about


def check_explained_bytes(hits: int, bits: int, max_bytes: int | None) -> None:
    """Raise TooLarge if explanations of so many hits would take more bytes."""
    needed = hits * (bits * NUMBER_BYTES + LABEL_BYTES)
    if max_bytes is not None and needed > max_bytes:
        raise TooLarge(f"explain: expected at most {max_bytes} bytes, got about {needed}. Request fewer hits.")


def explain_answers(
    index: Searcher,
    answers: list[Answer],
    rows: NDArray[np.int64],
    rankings: tuple[Ranking, Ranking],
    other_version: int,
    allowed: Any,
) -> list[Answer]:
    """Return answers, whose hits have these rows, with explanations by their ranking and by that of another version."""
    own, other = rankings
    return [
        _explain_answer(index, answer, some, own.rows([q]), other.rows([q]), other_version, allowed)
        for q, (answer, some) in enumerate(zip(answers, rows, strict=True))
    ]


def _explain_answer(
    index: Searcher,
    answer: Answer,
    rows: NDArray[np.int64],
    ranking: Ranking,
    other_ranking: Ranking,
    other_version: int,
    allowed: Any,
) -> Answer:
    """Return the answer with an explanation of each hit, by the ranking of its one query and by another version's."""
    if not answer.hits:
        return answer
    rows = rows[: len(answer.hits)]
    codes = index.codes(rows)
    x = signs(codes, index.bits).astype(np.float64)
    parts = x * snap(ranking.weights)
    groups = np.add.reduceat(parts, range(0, index.bits, BITS_IN_GROUP), axis=1).tolist()
    scores = (x @ snap(other_ranking.weights)[0]).astype(np.float32).tolist()
    ranks = _ranks(index, other_ranking, rows, min(scores), allowed).tolist()
    looks: list[float | None] = [None] * len(rows)
    labels: list[float | None] = [None] * len(rows)
    if ranking.looks is not None:
        exact_looks = looks_scores(ranking)
        looks = (x @ exact_looks.grid[0] / max(exact_looks.most[0], 1e-30)).tolist()
    if ranking.labels is not None:
        labels = (predict_labels(ranking, codes) @ ranking.labels[0]).tolist()
    explanations = [
        Explanation(bits, groups[n], n + 1, other_version, scores[n], ranks[n], looks[n], labels[n])
        for n, bits in enumerate(parts.tolist())
    ]
    hits = [replace(hit, explanation=some) for hit, some in zip(answer.hits, explanations, strict=True)]
    return replace(answer, hits=hits)


def _ranks(index: Searcher, ranking: Ranking, rows: NDArray[np.int64], least: float, allowed: Any) -> NDArray[np.int64]:
    """Return the places of these rows, from 1, in the ranking of one query, where `least` is their lowest score."""
    (by_score,) = index.range_search(ranking.weights, least, allowed=allowed)
    page = search_page(index, ranking, CANDIDATES, allowed=allowed)
    place = {row: n for n, row in enumerate(by_score.ids.tolist(), 1)}
    on_page = {row: n for n, row in enumerate(page.ids[0].tolist(), 1)}
    moved = [place.get(row, len(place) + 1) for row in page.ids[0][page.placed[0] == NEAR].tolist()]
    ranks = [on_page.get(row) or place[row] + sum(at > place[row] for at in moved) for row in rows.tolist()]
    return np.array(ranks, np.int64)
