"""Passive-Aggressive learning of l linear classifiers at once, one for each bit of the target codes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric import kernels


def empty_projection(length: int, columns: int, dtype: Any = np.float32) -> NDArray[Any]:
    """Return U = 0 (l, D), stored column by column: the kernels read the l bits of one feature together."""
    return np.zeros((columns, length), dtype=dtype).T


def passive_aggressive(U: NDArray[Any], X: NDArray[Any], G: NDArray[np.int8], C: float, norm_power: int = 2) -> None:
    """Update U (l, D) in place by PA-I over the rows of X (n, D) in order, towards the targets G (n, l).

    For each row x with target g and each row u of U: tau = min(C, max(0, 1 - g u.x) / |x|^norm_power), u += tau g x.
    U comes from `empty_projection`, and X has its dtype.
    """
    kernels.passive_aggressive(U.T, X, np.ascontiguousarray(G), C, norm_power)
