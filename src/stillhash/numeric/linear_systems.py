"""Solve symmetric linear systems, in blocks, so that nearly all of the work is products of matrices."""

import numpy as np

from stillhash.errors import BadState
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Doubles

PANEL_ROWS = 96  # of the factor, that are solved for at a time


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
