"""Explain a hit: what each bit of its code adds to the score, what placed it, and how another version ranks it.

In words: the labels of the query and of the hit, stored and predicted, and what votes did.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.learning.votes import query_bytes
from stillhash.collection.ranking import RankedPage
from stillhash.collection.search_view import ModelStore, SearchSnapshot
from stillhash.collection.types import Answer, Explanation, LabelShare
from stillhash.errors import TooLarge
from stillhash.hashers import Model
from stillhash.numeric import kernels
from stillhash.numeric.codes import signs
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.ranking import Ranking, predict_labels, similarity_scores
from stillhash.numeric.reference import STORED_WEIGHT, neighbour_labels
from stillhash.numeric.rescored_page import CANDIDATES, MOST_SIMILAR, RescoredPage, StoredItems, label_vectors
from stillhash.numeric.validation import Codes, Doubles, Floats
from stillhash.search.blocks import IdArray
from stillhash.search.code_index import Searcher
from stillhash.search.first_page import Candidates, search_page

BITS_IN_GROUP = 8
NUMBER_BYTES = 24  # about so long is a number as JSON, at most
LABEL_BYTES = 900  # about so long are the predicted labels as JSON


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
    similarity: list[float | None] = [None] * len(rows)
    labels: list[float | None] = [None] * len(rows)
    weight: float | None = None
    page_scores: list[float | None] = [None] * len(rows)
    if ranking.page is not None and page.stored is not None and page.candidates is not None:
        weight = float(page.candidates[q].page.strength)
        similarity, labels, page_scores = _rescored_parts(ranking, rows, page.candidates[q], page.stored)
    elif ranking.similarity is not None:
        exact_similarity = similarity_scores(ranking)
        similarity = (x @ exact_similarity.grid[0] / max(exact_similarity.most[0], 1e-30)).tolist()
    if ranking.labels is not None:
        labels = (predict_labels(ranking, codes) @ ranking.labels[0]).tolist()
    explanations = [
        Explanation(
            *(bits, groups[n], n + 1, page.other_version, scores[n], ranks[n], similarity[n], labels[n]),
            label_weight=weight,
            page_score=page_scores[n],
        )
        for n, bits in enumerate(parts.tolist())
    ]
    hits = [replace(hit, explanation=some) for hit, some in zip(answer.hits, explanations, strict=True)]
    return replace(answer, hits=hits)


def _rescored_parts(
    ranking: Ranking, rows: NDArray[np.int64], candidates: Candidates, stored: StoredItems
) -> tuple[list[float | None], ...]:
    """Return the cosine of each row with the query, that of their labels, and the score that orders it on the page.

    The last two are None of rows that they do not place.
    """
    assert ranking.page is not None
    cosines = ranking.page.rescorer.cosines(ranking.page.queries, stored.rescoring_codes(rows)[None])[0]
    page, counts_labels = candidates.page, ranking.page.counts_labels(0)
    every = zip(candidates.ids, page.labels.tolist(), page.scores.tolist(), page.left_out(), strict=True)
    parts = {
        int(row): (labels if counts_labels else None, None if left_out else score)
        for row, labels, score, left_out in every
    }
    of_rows = [parts.get(row, (None, None)) for row in rows.tolist()]
    return cosines.tolist(), [labels for labels, _ in of_rows], [score for _, score in of_rows]


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


MAX_EXPLAINED_LABELS = 5
MIN_SHARE = 0.01  # labels of a smaller share are left out


def explain_labels_and_votes(
    store: ModelStore, snapshot: SearchSnapshot, answers: list[Answer], page: RankedPage, Q: Floats
) -> list[Answer]:
    """Return answers whose hits are explained already with what labels and votes did."""
    functions, model, ranking = snapshot.functions, page.by, page.ranking
    assert functions is not None and ranking is not None and isinstance(model, Model)
    predicted = functions.predict_labels(model, Q) if ranking.labels is not None else None
    by_votes = functions.vote_weights(model, Q)
    explained = []
    for number, (answer, rows) in enumerate(zip(answers, page.ids, strict=True)):
        if not answer.hits:
            explained.append(answer)
            continue
        rows = rows[: len(answer.hits)]
        codes = snapshot.index.codes(rows)
        labels = None
        if ranking.page is not None and page.candidates is not None and snapshot.page_items is not None:
            own, candidates = ranking.page.rows([number]), page.candidates[number]
            labels = _page_labels(own, candidates, rows, codes, snapshot.page_items)
        elif predicted is not None and model.label_names is not None and ranking.V is not None:
            of_hits = kernels.project(signs(codes, ranking.weights.shape[1]), ranking.V) + ranking.v
            labels = ExplainedLabels(model.label_names, predicted[number], of_hits)
        with_labels = answer if labels is None else _explain_labels(answer, labels)
        weights = None if by_votes is None else by_votes[number]
        counts = store.votes.counts(snapshot.connection, query_bytes(Q[number]), page.version)
        explained.append(_explain_votes(with_labels, weights, codes, counts))
    return explained


class ExplainedLabels(NamedTuple):
    """Labels of a query and of its hits, whose squares are their shares."""

    names: Sequence[Hashable]
    query: Floats  # (labels,)
    hits: Floats  # (hits, labels)


def _page_labels(
    page: RescoredPage, candidates: Candidates, rows: IdArray, codes: Codes, stored: StoredItems
) -> ExplainedLabels | None:
    """Return the labels of one query and its hits as the page score has them; None where labels do not count."""
    if page.labels is None or page.regression is None or not page.counts_labels(0):
        return None
    known, own, of_candidates = page.regression.names, stored.labels(rows), stored.labels(candidates.ids)
    names = list(dict.fromkeys([*known, *own.names, *of_candidates.names]))
    share = page.labelled_share
    query, _ = neighbour_labels(candidates.page.cosines, label_vectors(of_candidates, names), share)
    query *= np.float32(share**0.5)
    query[: len(known)] += page.labels[0]
    hits = label_vectors(own, names) * np.float32(STORED_WEIGHT)
    predicted = page.regression.of_codes(codes)
    finalists = np.isin(rows, candidates.ids[candidates.page.tiers == 1])
    if finalists.any():
        rescoring_codes = stored.rescoring_codes(rows[finalists])
        predicted[finalists] = page.regression.of_finalists(codes[finalists], rescoring_codes, page.rescorer)
    hits[:, : len(known)] += predicted
    return ExplainedLabels(names, query, hits)


def _explain_labels(answer: Answer, labels: ExplainedLabels) -> Answer:
    """Return the answer with the labels of its query, of each hit and of both."""
    names = labels.names
    of_query, of_hits = label_shares(labels.query[None])[0], label_shares(labels.hits)
    query_labels = best_labels(of_query, names)
    hits = [
        replace(
            hit,
            explanation=replace(
                hit.explanation,
                query_labels=query_labels,
                hit_labels=best_labels(of_hit, names),
                shared_labels=best_labels(np.minimum(of_query, of_hit), names),
            ),
        )
        for hit, of_hit in zip(answer.hits, of_hits, strict=True)
        if hit.explanation is not None
    ]
    return replace(answer, hits=hits)


def _explain_votes(
    answer: Answer, weights: Floats | None, codes: Codes, counts: dict[int | str, tuple[int, int]]
) -> Answer:
    """Return the answer with the votes on each hit, and what the weights that votes add say of it."""
    scores: list[float | None] = [None] * len(codes)
    if weights is not None:
        scores = (signs(codes, len(weights)).astype(np.float64) @ weights).tolist()
    hits = []
    for hit, score in zip(answer.hits, scores, strict=True):
        assert hit.explanation is not None
        up, down = counts.get(hit.id, (0, 0))
        explanation = replace(hit.explanation, up_votes=up, down_votes=down, vote_score=score)
        hits.append(replace(hit, explanation=explanation))
    return replace(answer, hits=hits)


def label_shares(predicted: NDArray[np.floating]) -> Doubles:
    """Return the share (n, labels) of each label in what is predicted of rows; 0 where nothing is."""
    squares = np.square(np.maximum(predicted, 0).astype(np.float64))
    return np.asarray(squares / np.maximum(squares.sum(axis=1, keepdims=True), 1e-30))


def best_labels(shares: Doubles, names: Sequence[Hashable]) -> list[LabelShare]:
    """Return the labels of the largest shares (labels,), best first, among equals in their order."""
    best = np.argsort(-shares, kind="stable")[:MAX_EXPLAINED_LABELS]
    return [LabelShare(names[place], float(shares[place])) for place in best.tolist() if shares[place] >= MIN_SHARE]
