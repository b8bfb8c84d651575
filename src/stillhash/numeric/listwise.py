"""Listwise refinement: a correction to a similarity, by gradient steps on the ranking of recent codes.

For each query of a chunk the scores of the recent codes, as a softmax, are moved towards the uniform distribution over
the codes that share a label with it (the cross-entropy of ListNet, Cao et al., ICML 2007), with Adam's step sizes
(Kingma & Ba, ICLR 2015). Unlike the sufficient statistics below it, it depends on the order of the stream.
"""

from __future__ import annotations

import numpy as np

from stillhash.numeric.sufficient_stats import Similarity
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Floats, Mask

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's usual constants


class Correction:
    """A matrix added to M; step sizes suit weights that give scores a deviation of 1."""

    def __init__(self, dim: int, bits: int) -> None:
        self.steps = 0
        self.value, self.mean_step, self.square_step = (np.zeros((dim, bits), np.float32) for _ in range(3))

    def step(self, gradient: Floats, rate: float) -> None:
        self.steps += 1
        self.mean_step = self.mean_step + np.float32(1 - BETA1) * (gradient - self.mean_step)
        self.square_step = self.square_step + np.float32(1 - BETA2) * (gradient * gradient - self.square_step)
        size = np.sqrt(self.square_step / np.float32(1 - BETA2**self.steps)) + np.float32(EPSILON)
        self.value = self.value - np.float32(rate / (1 - BETA1**self.steps)) * self.mean_step / size


@one_thread
def gradient(X: Floats, similarity: Similarity, signs: Floats, shared: Mask) -> Floats:
    """Return d(cross-entropy)/dM (D, b), for queries X (n, D) over codes as signs (m, b); shared (n, m)."""
    relevant = shared.any(axis=1)
    X, shared = X[relevant], shared[relevant]
    S = (X @ similarity.M + similarity.m) @ signs.T
    S -= S.max(axis=1, keepdims=True)
    np.exp(S, out=S)
    S /= S.sum(axis=1, keepdims=True)
    S -= shared / shared.sum(axis=1, keepdims=True, dtype=np.float32)
    return np.asarray((X.T @ (S @ signs)) / np.float32(max(1, len(X))), np.float32)
