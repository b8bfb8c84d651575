"""Encoding in one pass gives the codes of its steps one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.numeric import kernels, reference
from stillhash.numeric.regression import unit_rows

Parts = tuple[np.ndarray, np.ndarray, np.ndarray]  # X, mean, W


def sample(n: int, dim: int, bits: int, seed: int, magnitude: float = 1.0) -> Parts:
    rng = np.random.default_rng(seed)
    X = ((rng.standard_normal((n, dim)) + 0.5) * magnitude).astype(np.float32)
    X[:: max(2, n // 3)] = X[0]
    return X, X.mean(axis=0), rng.standard_normal((dim, bits)).astype(np.float32)


def step_by_step(X: np.ndarray, mean: np.ndarray, unit_norm: bool, W: np.ndarray) -> np.ndarray:
    """Return the projections (n, bits) as the hashers' `prepare` and `project` make them."""
    return kernels.project(unit_rows(X - mean) if unit_norm else X - mean, W)


@pytest.mark.medium
@settings(max_examples=80)
@given(
    st.integers(1, 200),
    st.integers(1, 700),
    st.integers(8, 150),
    st.booleans(),
    st.sampled_from([1e-3, 1.0, 1e12]),
    st.integers(0, 2**32),
)
def test_codes_equal_those_of_the_steps_to_the_last_bit(
    n: int, dim: int, bits: int, unit_norm: bool, magnitude: float, seed: int
) -> None:
    X, mean, W = sample(n, dim, bits, seed, magnitude)
    for lanes in kernels.available():
        if lanes == "numpy":
            continue  # it has no steps but these
        with kernels.using(lanes):
            Z = step_by_step(X, mean, unit_norm, W)
            # Each function has a row on its edge: a difference in the last bit of a projection changes a code.
            t = -Z[np.random.default_rng(seed).integers(n, size=bits), np.arange(bits)]
            codes, norms = kernels.encode_rows(X, mean, unit_norm, W, t, threads=2)
        np.testing.assert_array_equal(codes, kernels.pack_signs(Z + t), err_msg=lanes)
        np.testing.assert_array_equal(norms, reference.encode_rows(X, mean, unit_norm, W, t)[1], err_msg=lanes)


@pytest.mark.parametrize(("n", "dim", "bits"), [(500, 4096, 64), (120, 1280, 512), (5, 20_000, 96)])
def test_large_shapes_equal_the_steps_on_any_number_of_threads(lanes: str, n: int, dim: int, bits: int) -> None:
    if lanes == "numpy":
        pytest.skip("NumPy's products round a row differently in different batches")
    X, mean, W = sample(n, dim, bits, seed=n)
    Z = step_by_step(X, mean, True, W)
    t = -Z[np.arange(bits) % n, np.arange(bits)]
    for threads in (1, 2, 5):
        codes, _ = kernels.encode_rows(X, mean, True, W, t, threads)
        np.testing.assert_array_equal(codes, kernels.pack_signs(Z + t))
    alone = [kernels.encode_rows(row[None], mean, True, W, t)[0][0] for row in X[:5]]
    np.testing.assert_array_equal(alone, codes[:5])


def test_the_fastest_lanes_agree_to_the_last_bit() -> None:
    fused = [lanes for lanes in kernels.available() if lanes.startswith("avx")]  # both add products without rounding
    if len(fused) < 2:
        pytest.skip("this machine has one instruction set with fused multiplication and addition")
    X, mean, W = sample(100, 900, 96, seed=3)
    with kernels.using(fused[0]):
        t = -step_by_step(X, mean, True, W)[np.arange(96), np.arange(96)]
        codes, _ = kernels.encode_rows(X, mean, True, W, t)
    with kernels.using(fused[1]):
        np.testing.assert_array_equal(kernels.encode_rows(X, mean, True, W, t)[0], codes)


@settings(max_examples=40)
@given(st.integers(1, 150), st.integers(1, 300), st.integers(8, 100), st.booleans(), st.integers(0, 2**32))
def test_codes_equal_the_reference_away_from_the_edge(n: int, dim: int, bits: int, unit_norm: bool, seed: int) -> None:
    X, mean, W = sample(n, dim, bits, seed)
    t = np.random.default_rng(seed).standard_normal(bits).astype(np.float32) / np.float32(10)
    expected, norms = reference.encode_rows(X, mean, unit_norm, W, t)
    rows = (X - mean) / (np.where(norms > 0, norms, 1)[:, None] if unit_norm else 1)
    clear = np.abs(rows.astype(np.float64) @ W + t) > 1e-5 * (np.abs(rows) @ np.abs(W) + 1)
    for lanes in kernels.available():
        with kernels.using(lanes):
            codes, _ = kernels.encode_rows(X, mean, unit_norm, W, t)
        apart = np.unpackbits(codes ^ expected, axis=1, count=bits, bitorder="little").astype(bool)
        assert not (apart & clear).any(), lanes


def test_no_rows_have_no_codes(lanes: str) -> None:
    X, mean, W = sample(3, 20, 9, seed=0)
    codes, norms = kernels.encode_rows(X[:0], mean, True, W, np.zeros(9, np.float32))
    assert codes.shape == (0, 2) and norms.shape == (0,)


def test_a_row_at_the_mean_is_encoded_by_t_alone(lanes: str) -> None:
    X, mean, W = sample(40, 20, 8, seed=0)
    X[[0, 30]] = mean
    codes, norms = kernels.encode_rows(X, mean, True, W, np.array([1, -1, 0, -1, 1, 1, -1, -1], np.float32))
    assert codes[0] == codes[30] == 0b00110101
    assert norms[0] == norms[30] == 0


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 3e38])
def test_norms_show_what_is_not_finite_or_too_large(lanes: str, wrong: float) -> None:
    X, mean, W = sample(70, 33, 8, seed=0)
    X[50, 32] = wrong
    _, norms = kernels.encode_rows(X, mean, True, W, np.zeros(8, np.float32))
    assert (np.flatnonzero(~(norms < 1e15)) == [50]).all()
