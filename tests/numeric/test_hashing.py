from __future__ import annotations

import numpy as np
import pytest

from stillhash.errors import InvalidInput
from stillhash.numeric.hashing import itq_rotation, lsh, pca_itq, principal_directions


def features(n: int = 300, dim: int = 64, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, dim)) * np.linspace(3, 0.1, dim) + 5).astype(np.float32)


@pytest.mark.parametrize(("dim", "bits"), [(64, 32), (64, 64), (20, 32)])
def test_itq_is_orthogonal_and_its_objective_never_rises(dim: int, bits: int) -> None:
    Z = features(dim=dim).astype(np.float64)
    Z -= Z.mean(axis=0)
    A = Z @ principal_directions(Z, bits)
    R, objective = itq_rotation(A, bits, np.random.default_rng(1))
    np.testing.assert_allclose(R @ R.T, np.eye(min(dim, bits)), atol=1e-10)
    assert len(objective) == 50
    assert (np.diff(objective) <= 1e-9 * objective[0]).all()
    assert objective[-1] < objective[0]


def test_principal_directions_equal_those_of_the_covariance() -> None:
    Z = features(200, 30).astype(np.float64)
    Z -= Z.mean(axis=0)
    _, vectors = np.linalg.eigh(Z.T @ Z)
    overlap = np.abs((principal_directions(Z, 5) * vectors[:, ::-1][:, :5]).sum(axis=0))
    np.testing.assert_allclose(overlap, 1, atol=1e-9)


def test_thresholds_balance_the_bits_of_the_sample() -> None:
    X = features()
    for make in (lsh, pca_itq):
        W, t = make(X, 32, np.random.default_rng(0))[:2]
        assert W.shape == (64, 32) and t.shape == (32,) and W.dtype == t.dtype == np.float32
        share = (X @ W + t >= 0).mean(axis=0)
        assert (share > 0.25).all() and (share < 0.75).all()


def test_the_same_seed_gives_the_same_functions() -> None:
    X = features()
    for make in (lsh, pca_itq):
        first, again = make(X, 16, np.random.default_rng(7)), make(X, 16, np.random.default_rng(7))
        assert first.W.tobytes() == again.W.tobytes() and first.t.tobytes() == again.t.tobytes()


def test_rows_without_variance_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^X\b"):
        pca_itq(np.ones((10, 5), np.float32), 8, np.random.default_rng(0))
