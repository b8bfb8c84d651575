"""Digests of feature vectors, by which exact repeats are recognised."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.validation import Floats

NO_DIGEST = 0  # in place of a digest, of rows that have none


@lru_cache(maxsize=8)
def _multipliers(dim: int) -> NDArray[np.uint64]:
    """Return odd numbers (D,), the same on every machine."""
    return np.random.PCG64(0).random_raw(dim) | np.uint64(1)


def feature_digests(X: Floats) -> NDArray[np.int64]:
    """Return a digest (n,) of each row (n, D): a multilinear hash of its float32 bits, modulo 2**64.

    Of rows that differ, two have the same digest with a chance of about 2**-40, or less. -0.0 is the same as 0.0.
    """
    words = (X + np.float32(0)).view(np.uint32).astype(np.uint64)
    sums: NDArray[np.uint64] = np.einsum("ij,j->i", words, _multipliers(X.shape[1]))
    return sums.view(np.int64)
