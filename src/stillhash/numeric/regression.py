"""Ridge regression from sums over rows, and how far its predictions can be relied upon."""

from typing import NamedTuple

import numpy as np

from stillhash.errors import BadState
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Doubles, Floats

CAUTION = 3.0  # noise is taken so many standard errors too high, so that few labels count for little
TRACE_PROBES = 16  # random vectors estimate a trace


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


# Solve symmetric linear systems, in blocks, so that nearly all of the work is products of matrices.


PANEL_ROWS = 96  # rows of the factor are solved for at a time


@one_thread
def solve_symmetric(A: Doubles, diagonal: Doubles, B: Doubles) -> Doubles:
    """Return X (n, m) with (A + diag(diagonal)) X = B, for a symmetric A (n, n) and B (n, m).

    By a Cholesky factorisation U^T U; if rounding has left the sum not positive definite, by an LU factorisation. A
    singular sum is never that of real rows: BadState.
    """
    try:
        return _solve_positive(A, diagonal, B)
    except np.linalg.LinAlgError:
        pass
    try:
        return np.asarray(np.linalg.solve(A + np.diag(diagonal), B), np.float64)
    except np.linalg.LinAlgError as error:
        raise BadState(f"statistics: expected those of real rows, got a system without a solution: {error}") from None


def _solve_positive(A: Doubles, diagonal: Doubles, B: Doubles) -> Doubles:
    """Compute rows of U from top to bottom, with Z = U^-T B as further columns; then U X = Z from bottom to top."""
    n = len(A)
    panels = [slice(start, min(start + PANEL_ROWS, n)) for start in range(0, n, PANEL_ROWS)]
    U, X, inverses = np.empty((n, n + B.shape[1])), np.empty(B.shape), []
    for rows in panels:
        start, stop = rows.start, rows.stop
        U[rows, start:n], U[rows, n:] = A[rows, start:], B[rows]
        U[rows, start:] -= U[:start, rows].T @ U[:start, start:]
        np.einsum("ii->i", U[rows, rows])[:] += diagonal[rows]
        inverses.append(np.linalg.inv(np.linalg.cholesky(U[rows, rows])))
        U[rows, stop:] = inverses[-1] @ U[rows, stop:]
    for rows, inverse in zip(reversed(panels), reversed(inverses), strict=True):
        X[rows] = inverse.T @ (U[rows, n:] - U[rows, rows.stop : n] @ X[rows.stop :])
    return X


# A linear alignment of one feature space with another, from a few hundred items encoded in both.
#
# Ridge regression of our directions on theirs: rows less their mean, at unit length, since only directions count for
# codes. The ridge is chosen by the leave-one-out error, which ridge regression gives without fitting again. It is a
# step smaller than that of the least error, since a search needs what tells items apart.


RIDGES = 10.0 ** np.arange(-5, 3.5, 0.5)  # are tried, in units of the mean eigenvalue


class Alignment(NamedTuple):
    """theirs -> ours: unit(x - mean) @ A + offset."""

    mean: Floats  # (D of theirs,)
    A: Floats  # (D of theirs, D of ours)
    offset: Floats  # (D of ours,)

    def apply(self, X: Floats) -> Floats:
        """Return their features X as ours."""
        return np.asarray(unit_rows(X - self.mean) @ self.A + self.offset)


def fit_alignment(theirs: Floats, ours: Floats) -> tuple[Alignment, float]:
    """Return the alignment by rows in both spaces, and the share of our variance that it explains on new rows."""
    their_mean, our_mean = (X.mean(axis=0, dtype=np.float64).astype(np.float32) for X in (theirs, ours))
    Z, centred = unit_rows(theirs - their_mean), ours - our_mean
    length = np.float32(np.sqrt(np.einsum("ij,ij->i", centred, centred)).mean())
    T = unit_rows(centred).astype(np.float64)
    level, their_level = T.mean(axis=0), Z.mean(axis=0)
    Z -= their_level
    values, vectors = np.linalg.eigh((Z @ Z.T).astype(np.float64))
    values = np.maximum(values, 0)
    rotated = vectors.T @ (T - level)
    variance = float(np.square(T - level).mean())

    ridges = RIDGES * max(float(values.mean()), 1e-12)
    errors = []  # the squared error at each pair, of the alignment without it
    for ridge in ridges:
        shrink = values / (values + ridge)
        own = np.square(vectors) @ shrink  # what a pair adds to its own prediction
        free = np.maximum(1 - own - 1 / len(Z), 1e-9)  # 1 / n is what it adds to the mean
        residuals = (T - level - vectors @ (shrink[:, None] * rotated)) / free[:, None]
        errors.append(float(np.square(residuals).mean()))
    best = max(0, int(np.argmin(errors)) - 1)
    A = Z.T @ (vectors @ (rotated / (values + ridges[best])[:, None])).astype(np.float32)
    offset = our_mean + length * (level.astype(np.float32) - their_level @ A)
    alignment = Alignment(their_mean, np.ascontiguousarray(A * length), offset)
    return alignment, 1 - errors[best] / variance if variance > 0 else 0.0


def unit_rows(X: Floats, out: Floats | None = None) -> Floats:
    """Return the rows at unit length, in `out` if there is one; a zero row stays zero."""
    norms = np.sqrt(np.einsum("ij,ij->i", X, X))[:, None]
    return np.divide(X, np.where(norms > 0, norms, np.float32(1)), out=out)
