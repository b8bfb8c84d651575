"""Choose hits that are relevant and differ from each other, by maximal marginal relevance."""

import numpy as np
from numpy.typing import ArrayLike

from stillhash.numeric.regression import unit_rows


def select_diverse(relevance: ArrayLike, vectors: ArrayLike, k: int, lambda_mult: float) -> list[int]:
    """Return the places of k rows: each time the one with the greatest lambda r - (1 - lambda) c.

    r is its relevance, and c the largest cosine of its vector with those chosen before. Ties are broken by place; the
    first one is the most relevant.
    """
    scores, X = np.asarray(relevance, np.float64), unit_rows(np.asarray(vectors, np.float64))
    redundancy = np.full(len(scores), -np.inf)
    places: list[int] = []
    while len(places) < min(k, len(scores)):
        gain = scores if not places else lambda_mult * scores - (1 - lambda_mult) * redundancy
        left = np.ones(len(scores), bool)
        left[places] = False
        places.append(int(np.flatnonzero(left)[np.argmax(gain[left])]))
        redundancy = np.maximum(redundancy, X @ X[places[-1]])
    return places
