"""Explain a hit in words: the labels of the query and of the hit, stored and predicted, and what votes did."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.learning.votes import query_bytes
from stillhash.collection.page_ranking import RankedPage
from stillhash.collection.search_view import ModelStore, SearchSnapshot
from stillhash.collection.types import Answer, LabelShare
from stillhash.hashers import Model
from stillhash.numeric import kernels
from stillhash.numeric.codes import signs
from stillhash.numeric.reference_page import neighbour_labels
from stillhash.numeric.rescored_page import RescoredPage, StoredItems, label_vectors
from stillhash.numeric.validation import Codes, Doubles, Floats
from stillhash.search.blocks import IdArray
from stillhash.search.first_page import Candidates

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
    """Return the labels of one query and its hits as the first page has them; None where labels do not count."""
    if page.labels is None or page.regression is None or not page.counts_labels(0):
        return None
    known, own, of_candidates = page.regression.names, stored.labels(rows), stored.labels(candidates.ids)
    names = list(dict.fromkeys([*known, *own.names, *of_candidates.names]))
    share = page.labelled_share
    query, _ = neighbour_labels(candidates.page.cosines, label_vectors(of_candidates, names), share)
    query *= np.float32(share**0.5)
    query[: len(known)] += page.labels[0]
    hits = label_vectors(own, names)
    hits[:, : len(known)] += page.regression.of_codes(codes)
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
