"""Solve symmetric linear systems, in blocks, so that nearly all of the work is products of matrices."""

import numpy as np

from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Doubles

PANEL_ROWS = 64  # of the factor, that are solved for at a time


@one_thread
def solve_symmetric(A: Doubles, diagonal: Doubles, Y: Doubles) -> Doubles:
    """Return X (m, n) with X (A + diag(diagonal)) = Y, for a symmetric A (n, n) and Y (m, n).

    By a Cholesky factorisation L L^T; if rounding has left the sum not positive definite, by an LU factorisation.
    """
    try:
        return _solve_positive(A, diagonal, Y)
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.solve(A + np.diag(diagonal), Y.T).T)


def _solve_positive(A: Doubles, diagonal: Doubles, Y: Doubles) -> Doubles:
    """Factorise block column by block column; the rows of Y below those of A become Z with Z L^T = Y."""
    n = len(A)
    blocks = [slice(start, min(start + PANEL_ROWS, n)) for start in range(0, n, PANEL_ROWS)]
    L, X, inverses = np.empty((n + len(Y), n)), np.empty(Y.shape), []
    for block in blocks:
        start, stop = block.start, block.stop
        panel, corner = L[start:, block], L[block, block]  # views
        panel[: n - start], panel[n - start :] = A[start:, block], Y[:, block]
        panel -= L[start:, :start] @ L[block, :start].T
        np.einsum("ii->i", corner)[:] += diagonal[block]
        inverses.append(np.linalg.inv(np.linalg.cholesky(corner)))
        L[stop:, block] = L[stop:, block] @ inverses[-1].T
    for block, inverse in zip(reversed(blocks), reversed(inverses), strict=True):
        stop = block.stop
        X[:, block] = (L[n:, block] - X[:, stop:] @ L[stop:n, block]) @ inverse
    return X
