"""Ridge regression from sums over rows, and how far its predictions can be relied upon."""

from typing import NamedTuple

import numpy as np

from stillhash.numeric.linear_systems import solve_symmetric
from stillhash.numeric.validation import Doubles

CAUTION = 3.0  # standard errors by which noise is taken too high, so that few labels count for little
TRACE_PROBES = 16  # random vectors that estimate a trace


class Regression(NamedTuple):
    """A ridge regression y = x @ slopes + intercepts, and how far its predictions are more than noise, 0 to 1."""

    slopes: Doubles  # (D, labels)
    intercepts: Doubles  # (labels,)
    reliability: float
    length: float  # the root mean square of |y| over the rows, as predicted


def regress(xx: Doubles, yx: Doubles, ridge: float, skip: int = 0) -> Regression:
    """Regress y on x with a free intercept, from the sums of (1, x)(1, x)^T and y (1, x)^T over rows with |y| = 1.

    The first `skip` targets are regressed too, but are no part of y.

    The slopes are b = (S + l)^-1 Sxy, and x b varies by b^T S b over the rows. Part of that is noise: the variance s^2
    of the residuals, over n - df - 1 degrees of freedom, times df2, where df and df2 are the traces of H and H^2 with
    H = (S + l)^-1 S. The reliability is 1 less the share of noise, taken CAUTION standard errors of s^2 too high.
    """
    rows, mean, y_mean = xx[0, 0], xx[0, 1:] / xx[0, 0], yx[:, 0] / xx[0, 0]
    scale = (np.trace(xx) - rows) / rows  # the mean square of a row
    penalty = ridge * (scale if scale > 0 else 1.0)
    probes = random_signs(len(mean), TRACE_PROBES).T
    # The intercept is an unknown without a penalty: to eliminate it first is to take sums about the mean.
    penalties = np.append(0.0, np.full(len(mean), penalty))
    solved = solve_symmetric(xx, penalties, np.concatenate([yx, np.insert(probes, 0, 0, axis=1)]).T).T.copy()
    slopes, hat = solved[: len(yx), 1:], probes - penalty * solved[len(yx) :, 1:]
    judged, total = slopes[skip:], rows * (1 - y_mean[skip:] @ y_mean[skip:])
    Sxy = yx[skip:, 1:] - np.outer(yx[skip:, 0], mean)  # sums about the mean
    explained, shrunk = np.vdot(judged, Sxy), penalty * np.vdot(judged, judged)
    signal, residual = explained - shrunk, total - explained - shrunk
    free = rows - np.vdot(probes, hat) / TRACE_PROBES - 1
    reliability = 0.0
    if signal > 0 and free > 0:
        noise = max(residual, 0.0) / free * np.vdot(hat, hat) / TRACE_PROBES
        reliability = max(0.0, 1 - noise / signal * (1 + CAUTION * np.sqrt(2 / free)))
    length = np.sqrt(max(signal, 0.0) / rows + y_mean[skip:] @ y_mean[skip:])
    return Regression(slopes.T, solved[: len(yx), 0], float(reliability), float(length))


def random_signs(rows: int, columns: int) -> Doubles:
    """Return -1 and +1 at random: the mean of z^T A z over the columns z estimates the trace of A (Hutchinson 1989)."""
    return np.random.default_rng(0).choice([-1.0, 1.0], (rows, columns))
