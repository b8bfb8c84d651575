"""Small synthetic data: clusters of features with several labels each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Toy(NamedTuple):
    X: NDArray[np.float32]  # (n, D)
    Y: NDArray[np.uint8]  # (n, labels) indicator, at least one label per row


def toy(n: int = 1200, dim: int = 48, labels: int = 8, seed: int = 0) -> Toy:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((labels, dim))
    Y = rng.random((n, labels)) < 1.5 / labels
    Y[np.arange(n), rng.integers(labels, size=n)] = True
    X = Y @ centres + 0.8 * rng.standard_normal((n, dim)) + 3.0
    return Toy(X.astype(np.float32), Y.astype(np.uint8))
