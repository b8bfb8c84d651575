"""Symmetric systems are solved as by the general solver, also where no Cholesky factorisation exists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.numeric.regression import PANEL_ROWS, regress, solve_symmetric
from stillhash.numeric.threads import one_thread


@one_thread
def solve_plainly(A: np.ndarray, diagonal: np.ndarray, B: np.ndarray) -> np.ndarray:
    return np.linalg.solve(A + np.diag(diagonal), B)


def relative_error(result: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(result - expected) / np.linalg.norm(expected))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3 * PANEL_ROWS), st.integers(1, 20), st.floats(0.01, 100))
def test_it_is_what_the_general_solver_finds(seed: int, n: int, m: int, penalty: float) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((int(rng.integers(1, 3 * n + 2)), n)) * np.geomspace(1, 1e-3, n)
    A, diagonal, B = rows.T @ rows, np.full(n, penalty), rng.standard_normal((n, m))
    before = A.copy()
    X = solve_symmetric(A, diagonal, B)
    assert relative_error(X, solve_plainly(A, diagonal, B)) < 1e-9
    assert np.array_equal(A, before)
    assert np.array_equal(X, solve_symmetric(A, diagonal, B))


@pytest.mark.parametrize("n", [2, PANEL_ROWS + 3])
def test_a_matrix_that_is_not_positive_definite_is_solved_too(n: int) -> None:
    rng = np.random.default_rng(n)
    rows = rng.standard_normal((n, n))
    A, B = rows + rows.T, rng.standard_normal((n, 3))  # eigenvalues of both signs
    np.testing.assert_array_equal(solve_symmetric(A, np.zeros(n), B), solve_plainly(A, np.zeros(n), B))


def regress_about_the_mean(xx: np.ndarray, yx: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Return slopes and intercepts from sums about the mean, which leave no intercept to solve for."""
    rows, mean = xx[0, 0], xx[0, 1:] / xx[0, 0]
    S, Sxy = xx[1:, 1:] - rows * np.outer(mean, mean), yx[:, 1:] - np.outer(yx[:, 0], mean)
    penalty = ridge * np.trace(xx[1:, 1:]) / rows
    slopes = solve_plainly(S, np.full(len(S), penalty), Sxy.T)
    return slopes, yx[:, 0] / rows - mean @ slopes


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 100), st.floats(0.1, 10), st.floats(0, 10))
def test_a_free_intercept_is_sums_about_the_mean(seed: int, dim: int, ridge: float, offset: float) -> None:
    rng = np.random.default_rng(seed)
    X = np.insert(offset + rng.standard_normal((int(rng.integers(2, 300)), dim)), 0, 1, axis=1)
    Y = rng.standard_normal((len(X), 5))
    result = regress(X.T @ X, Y.T @ X, ridge)
    for one, other in zip(result[:2], regress_about_the_mean(X.T @ X, Y.T @ X, ridge), strict=True):
        assert relative_error(one, other) < 1e-9
