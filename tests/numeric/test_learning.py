"""The block recursion is the literal loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.numeric import kernels, reference


def sample(n: int, dim: int, length: int, norm: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = np.maximum(0, rng.standard_normal((n, dim)) + 0.3)
    X *= norm / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)
    return X, np.where(rng.random((n, length)) < 0.5, 1, -1).astype(np.int8)


def literal(X: np.ndarray, G: np.ndarray, C: float) -> np.ndarray:
    Ut = np.zeros((X.shape[1], G.shape[1]))
    reference.passive_aggressive_literal(Ut, X.astype(np.float64), G, C, 2)
    return Ut.T


@pytest.mark.parametrize("norm", [1, 10, 30, 100])
@pytest.mark.parametrize(("dtype", "limit"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_equals_the_literal_loop(lanes: str, norm: float, dtype: type, limit: float) -> None:
    X, G = sample(300, 200, 96, norm, seed=int(norm))
    expected = literal(X, G, 0.01)
    U = np.zeros((96, 200), dtype, order="F")
    kernels.passive_aggressive(U, X.astype(dtype), G, 0.01)
    assert np.abs(U - expected).max() <= limit * np.abs(expected).max()


@settings(max_examples=60)
@given(
    st.integers(1, 200),
    st.integers(1, 90),
    st.integers(1, 130),
    st.sampled_from([0.5, 3.0, 20.0]),
    st.integers(0, 2**32),
)
def test_any_shape_equals_the_literal_loop(n: int, dim: int, length: int, norm: float, seed: int) -> None:
    X, G = sample(n, dim, length, norm, seed)
    X[:: max(2, n // 3)] = 0  # rows that teach nothing
    expected = literal(X, G, 0.05)
    for lanes in kernels.available():
        with kernels.using(lanes):
            U = np.zeros((length, dim), np.float64, order="F")
            kernels.passive_aggressive(U, X, G, 0.05)
        assert np.abs(U - expected).max() <= 1e-10 * max(1, np.abs(expected).max()), lanes


def test_an_uncapped_step_reaches_margin_one_and_a_passive_row_changes_nothing(lanes: str) -> None:
    X, G = sample(1, 20, 16, 3.0, seed=4)
    U = np.zeros((16, 20), np.float64, order="F")
    kernels.passive_aggressive(U, X, G, C=1e9)
    np.testing.assert_allclose(G[0] * (U @ X[0]), 1)
    before = U.copy()
    kernels.passive_aggressive(U, 2 * X, G, C=1e9)  # margin 2 already
    np.testing.assert_array_equal(U, before)


def test_a_capped_step_is_c(lanes: str) -> None:
    X, G = sample(1, 20, 16, 1.0, seed=5)
    U = np.zeros((16, 20), np.float64, order="F")
    kernels.passive_aggressive(U, X, G, C=0.25)
    np.testing.assert_allclose(U, 0.25 * np.outer(G[0], X[0]))


@settings(max_examples=30)
@given(st.integers(1, 150), st.integers(1, 300), st.integers(1, 100), st.integers(0, 2**32))
def test_projection_equals_numpy_and_is_independent_of_the_batch(n: int, dim: int, length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, W = rng.standard_normal((n, dim)).astype(np.float32), rng.standard_normal((dim, length)).astype(np.float32)
    exact = X.astype(np.float64) @ W.astype(np.float64)
    scale = np.abs(X).astype(np.float64) @ np.abs(W)
    for lanes in kernels.available():
        with kernels.using(lanes):
            Z = kernels.project(X, W)
            alone = kernels.project(X[n // 2 : n // 2 + 1], W)
        assert (np.abs(Z - exact) <= 1e-6 * scale * np.sqrt(dim)).all()
        if lanes != "numpy":
            np.testing.assert_array_equal(alone[0], Z[n // 2])
