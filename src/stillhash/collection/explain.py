"""Explain a hit: what each bit of its code adds to the score, and how another version of the model ranks it."""

from dataclasses import replace
from itertools import count, repeat

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.types import Answer, Explanation
from stillhash.numeric.codes import signs
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.validation import Floats
from stillhash.search import Index

BITS_IN_GROUP = 8


def explain_answer(
    index: Index,
    answer: Answer,
    rows: NDArray[np.int64],
    weights: Floats,
    other_weights: Floats,
    *,
    other_version: int,
    allowed: NDArray[np.uint8] | None,
) -> Answer:
    """Return the answer with an explanation of each hit, by the weights that ranked it and by another version's."""
    if not answer.hits:
        return answer
    rows = rows[: len(answer.hits)]
    codes = signs(index.codes(rows), index.bits).astype(np.float64)
    parts, scores = codes * snap(weights[None]), (codes @ snap(other_weights[None])[0]).astype(np.float32)
    groups = np.add.reduceat(parts, range(0, index.bits, BITS_IN_GROUP), axis=1)
    (others,) = index.range_search(other_weights[None], scores.min(), allowed=allowed)
    order = np.argsort(others.ids)
    ranks = order[np.searchsorted(others.ids, rows, sorter=order)] + 1
    columns = parts.tolist(), groups.tolist(), count(1), repeat(other_version), scores.tolist(), ranks.tolist()
    explanations = map(Explanation, *columns)
    hits = [replace(hit, explanation=some) for hit, some in zip(answer.hits, explanations, strict=True)]
    return replace(answer, hits=hits)
