"""Exact scores, by weights on a grid.

score(w, x) = sum_i w_i x_i, rounded once to float32. Floating-point sums depend on their order, and a search that
is exact "up to rounding" would break ties differently on each path. So the weights of a query are first rounded to
a grid: multiples of a power of two, coarse enough that every partial sum fits the 53 bits of a double. Then
any order of summation, on any path or machine, gives the same number, and hits have one total order: higher
score first, smaller id among equals.

The grid loses nothing that a double would have kept: a float32 weight moves only if it is below 2^-26 of the sum of
the magnitudes, and then by less than 2^-51 of that sum.
"""

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric import kernels
from stillhash.numeric.codes import signs
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Floats

Grid = NDArray[np.float64]  # (m, bits)
SCORED_ROWS = 65_536  # codes are unpacked at a time


def snap(weights: Floats) -> Grid:
    """Return weights (m, bits) on the grid of exact sums, as float64."""
    return kernels.snap(weights)


@one_thread
def score_all(grid: Grid, codes: Codes) -> Floats:
    """Return the scores (m, n) of all codes, by weights on the grid."""
    scores = np.empty((len(grid), len(codes)), np.float32)
    for some in (slice(s, s + SCORED_ROWS) for s in range(0, len(codes), SCORED_ROWS)):
        scores[:, some] = grid @ signs(codes[some], grid.shape[1]).astype(np.float64).T
    return scores
