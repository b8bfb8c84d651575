"""Explain a hit in words: the labels that are predicted of the query and of the hit, and what votes did."""

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.page_ranking import RankedPage
from stillhash.collection.search_view import ModelStore, SearchSnapshot
from stillhash.collection.types import Answer, LabelShare
from stillhash.collection.votes import query_bytes
from stillhash.hashers import Model
from stillhash.numeric import kernels
from stillhash.numeric.codes import signs
from stillhash.numeric.labels import Labels
from stillhash.numeric.rescored_page import RescoredPage, label_vectors
from stillhash.numeric.validation import Codes, Doubles, Floats

MAX_EXPLAINED_LABELS = 5
MIN_SHARE = 0.01  # labels of a smaller share are left out


def explain_labels_and_votes(
    store: ModelStore, snapshot: SearchSnapshot, answers: list[Answer], page: RankedPage, Q: Floats
) -> list[Answer]:
    """Return answers whose hits are explained already with what labels and votes did."""
    functions, model, ranking = snapshot.functions, page.by, page.ranking
    assert functions is not None and ranking is not None and isinstance(model, Model)
    by_labels = ranking.labels is not None or (ranking.page is not None and ranking.page.labels is not None)
    predicted = functions.predict_labels(model, Q) if by_labels else None
    by_votes = functions.vote_weights(model, Q)
    explained = []
    for number, (answer, rows) in enumerate(zip(answers, page.ids, strict=True)):
        if not answer.hits:
            explained.append(answer)
            continue
        codes = snapshot.index.codes(rows[: len(answer.hits)])
        own = None if predicted is None else predicted[number]
        of_hits = None
        if own is not None and ranking.page is not None and snapshot.page_items is not None:
            stored = snapshot.page_items.labels(rows[: len(answer.hits)])
            of_hits = _labels_of_hits(ranking.page, codes, stored)
        elif own is not None and ranking.V is not None and ranking.v is not None:
            of_hits = kernels.project(signs(codes, ranking.weights.shape[1]), ranking.V) + ranking.v
        with_labels = _explain_labels(answer, model.label_names, own, of_hits)
        weights = None if by_votes is None else by_votes[number]
        counts = store.votes.counts(snapshot.connection, query_bytes(Q[number]), page.version)
        explained.append(_explain_votes(with_labels, weights, codes, counts))
    return explained


def _labels_of_hits(page: RescoredPage, codes: Codes, stored: Labels) -> Floats:
    """Return the labels of hits as the first page has them: those predicted of their codes, and those stored now."""
    assert page.regression is not None
    names = page.regression.names
    return page.regression.of_codes(codes) + label_vectors(stored, names)[:, : len(names)]


def _explain_labels(
    answer: Answer, names: Sequence[Hashable] | None, predicted: Floats | None, labels: Floats | None
) -> Answer:
    """Return the answer with the labels that are predicted of its query, of each hit and of both."""
    if names is None or predicted is None or labels is None:
        return answer
    of_query, of_hits = label_shares(predicted[None])[0], label_shares(labels)
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
