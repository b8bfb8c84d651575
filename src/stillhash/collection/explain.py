"""Explain a hit: what each bit of its code adds to the score, and how another version of the model ranks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.types import Explanation
from stillhash.hashers import Model
from stillhash.numeric.codes import signs
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.validation import Floats

if TYPE_CHECKING:
    from stillhash.collection.read_view import Snapshot

BITS_IN_GROUP = 8


def explain_hits(
    snapshot: Snapshot,
    Q: Floats,
    models: tuple[Model, Model],
    other_version: int,
    hits: list[NDArray[np.int64]],
    allowed: NDArray[np.uint8] | None,
) -> list[list[Explanation]]:
    """Return, for each query, explanations of its best hits in order, by its model and by that of another version."""
    weights, other_weights = (snapshot.weigh(Q, model) for model in models)
    explanations = []
    for w, other, rows in zip(snap(weights), other_weights, hits, strict=True):
        codes = signs(snapshot.index.codes(rows), snapshot.index.bits).astype(np.float64)
        parts, scores = codes * w, (codes @ snap(other[None])[0]).astype(np.float32)
        groups = [parts[:, s : s + BITS_IN_GROUP].sum(axis=1) for s in range(0, parts.shape[1], BITS_IN_GROUP)]
        ranks = _ranks(snapshot, other, scores, rows, allowed)
        explanations.append(
            [
                Explanation(part.tolist(), [float(g[h]) for g in groups], h + 1, other_version, float(score), rank)
                for h, (part, score, rank) in enumerate(zip(parts, scores, ranks, strict=True))
            ]
        )
    return explanations


def _ranks(
    snapshot: Snapshot,
    weights: Floats,
    scores: Floats,
    rows: NDArray[np.int64],
    allowed: NDArray[np.uint8] | None,
) -> list[int]:
    """Return the ranks of these rows among all, by other weights."""
    if not len(rows):
        return []
    (hits,) = snapshot.index.range_search(weights[None], scores.min(), allowed=allowed)
    order = np.argsort(hits.ids)
    places: list[int] = (order[np.searchsorted(hits.ids, rows, sorter=order)] + 1).tolist()
    return places
