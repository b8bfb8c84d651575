"""Why a hit is where it is: what each bit of its code brings, and how another version of the model sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.read_view import View
from stillhash.collection.types import Explanation
from stillhash.hashers import Model
from stillhash.numeric.codes import signs
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.validation import Floats

GROUP = 8  # bits


def explained(
    view: View, Q: Floats, models: tuple[Model, Model], version: int, rows: list[NDArray[np.int64]], allowed: Any
) -> list[list[Explanation]]:
    """For each query the explanations of these rows, its best hits in order, by its model and the other one."""
    assert view.functions is not None
    now, other = (view.functions.weigh_by(model, Q) for model in models)
    told = []
    for weights, before, hits in zip(snap(now), other, rows, strict=True):
        codes = signs(view.index.codes(hits), view.index.bits).astype(np.float64)
        parts, scores = codes * weights, (codes @ snap(before[None])[0]).astype(np.float32)
        groups = [parts[:, s : s + GROUP].sum(axis=1) for s in range(0, view.index.bits, GROUP)]
        then = _ranks(view, before, scores, hits, allowed)
        told.append(
            [
                Explanation(parts[h].tolist(), [float(g[h]) for g in groups], h + 1, version, float(scores[h]), then[h])
                for h in range(len(hits))
            ]
        )
    return told


def _ranks(view: View, weights: Floats, scores: Floats, rows: NDArray[np.int64], allowed: Any) -> list[int]:
    """Where these rows are among all, by other weights."""
    if not len(rows):
        return []
    (found,) = view.index.range_search(weights[None], scores.min(), allowed=allowed)
    order = np.argsort(found.ids)
    places: list[int] = (order[np.searchsorted(found.ids, rows, sorter=order)] + 1).tolist()
    return places
