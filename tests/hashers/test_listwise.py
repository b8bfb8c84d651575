from __future__ import annotations

import numpy as np
import pytest

from stillhash.hashers.listwise import Correction, gradient
from stillhash.numeric.sufficient_stats import Similarity

RNG = np.random.default_rng(0)
X = RNG.standard_normal((20, 6)).astype(np.float32)
B = np.where(RNG.standard_normal((30, 8)) >= 0, np.float32(1), np.float32(-1))
SHARED = RNG.random((20, 30)) < 0.3
SHARED[3] = False  # nothing to find for this one
SIMILARITY = Similarity(
    0.3 * RNG.standard_normal((6, 8)).astype(np.float32), 0.1 * RNG.standard_normal(8).astype(np.float32)
)


def loss(X: np.ndarray, similarity: Similarity, signs: np.ndarray, shared: np.ndarray) -> float:
    """The cross-entropy, plainly."""
    total, count = 0.0, 0
    for scores, relevant in zip((X @ similarity.M + similarity.m) @ signs.T, shared, strict=True):
        if relevant.any():
            scores = scores.astype(np.float64)
            top = scores.max()
            total -= float((scores[relevant] - top - np.log(np.exp(scores - top).sum())).mean())
            count += 1
    return total / max(1, count)


def test_the_gradient_is_that_of_the_loss() -> None:
    slope = gradient(X, SIMILARITY, B, SHARED)
    for i, j in ((0, 0), (2, 5), (5, 7)):
        step = np.zeros_like(SIMILARITY.M)
        step[i, j] = 1e-2
        up, down = (loss(X, SIMILARITY._replace(M=SIMILARITY.M + s), B, SHARED) for s in (step, -step))
        assert slope[i, j] == pytest.approx((up - down) / 2e-2, rel=1e-2, abs=1e-4)


def test_steps_lower_the_loss() -> None:
    correction = Correction(6, 8)
    before = loss(X, SIMILARITY, B, SHARED)
    for _ in range(50):
        now = SIMILARITY._replace(M=SIMILARITY.M + correction.value)
        correction.step(gradient(X, now, B, SHARED), 0.01)
    assert loss(X, SIMILARITY._replace(M=SIMILARITY.M + correction.value), B, SHARED) < before - 0.1
