"""What the paper says of OSH: a sketch within its bound, around the exact mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stillhash import LSH
from stillhash.errors import BadState, InvalidInput
from stillhash.experiments.metrics import evaluate
from stillhash.hashers.osh import OSH, FrequentDirections
from tests.support.toys import toy


def excess(A: NDArray[Any], Sk: NDArray[Any]) -> NDArray[np.float64]:
    """Eigenvalues of A^T A - Sk^T Sk, rising."""
    return np.linalg.eigvalsh(A.T @ A - Sk.T @ Sk)


@settings(max_examples=40)
@given(st.integers(1, 150), st.integers(1, 40), st.integers(1, 12), st.integers(0, 60), st.integers(0, 2**32))
def test_the_bound_of_frequent_directions(n: int, dim: int, half: int, cut: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, dim)) * rng.exponential(size=dim) ** 2
    A[:: max(2, n // 4)] = 0
    sketch = FrequentDirections(2 * half, dim)
    for part in (A[:cut], A[cut:]):
        sketch.insert(part)
    total = (A**2).sum()
    values = excess(A, sketch.Sk)
    assert len(sketch.Sk) <= 2 * half
    assert values[0] >= -1e-9 * total and values[-1] <= 2 * total / (2 * half) + 1e-9 * total


@pytest.mark.medium
@pytest.mark.parametrize("chunk", [3, 100, 1200])
def test_the_mean_is_exact_and_the_sketch_follows_the_centred_scatter(chunk: int) -> None:
    X, _ = toy()
    for s in (200, 40):  # wider than the data, and not
        hasher = OSH(bits=16, sketch=s).fit(X[:300])
        for start in range(0, 1200, chunk):
            hasher.partial_fit(X[start : start + chunk])
        x = hasher.prepare(X).astype(np.float64)
        np.testing.assert_allclose(hasher.mu_, x.mean(axis=0), atol=1e-12)
        assert hasher.n_ == 1200
        A = x - x.mean(axis=0)
        values, total = excess(A, hasher.sketch_.Sk), (A**2).sum()
        assert values[0] >= -1e-9 * total
        assert values[-1] <= (1e-9 if s == 200 else 2 / s) * total
        np.testing.assert_allclose(hasher.t_, -hasher.mu_ @ hasher.W_, atol=1e-6)


@pytest.mark.slow
def test_one_chunk_and_many_find_nearly_the_same_directions() -> None:
    X, _ = toy(4000, dim=300)
    whole = OSH(bits=8, sketch=50).fit(X[:300]).partial_fit(X)
    parts = OSH(bits=8, sketch=50).fit(X[:300])
    for s in range(0, 4000, 50):
        parts.partial_fit(X[s : s + 50])
    x = whole.prepare(X)
    V = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)[2][:7].T  # eight labels span seven centred directions
    for hasher in (whole, parts):
        np.testing.assert_allclose(hasher.W_.T @ hasher.W_, np.eye(8), atol=1e-5)
        assert np.linalg.svd(V.T @ hasher.W_)[1].min() > 0.99  # cosine of the largest angle between the subspaces


def test_the_sketch_is_even_and_at_least_twice_the_code() -> None:
    X, _ = toy(300)
    for bits, sketch, rows in ((16, 200, 200), (16, 61, 62), (40, 50, 80), (128, 200, 256)):
        assert OSH(bits=bits, sketch=sketch).fit(X).sketch_.rows == rows


def test_missing_directions_are_completed() -> None:
    X, _ = toy(400, dim=12)
    hasher = OSH(bits=32).fit(X[:100])
    for s in range(0, 400, 100):
        hasher.partial_fit(X[s : s + 100])
        np.testing.assert_array_less(0.05, np.linalg.norm(hasher.W_, axis=0))
    same = OSH(bits=16).fit(np.ones((20, 5))).partial_fit(np.ones((40, 5)))  # no direction at all
    assert np.isfinite(same.W_).all() and same.W_.any(axis=0).all()


def test_the_first_functions_are_used_until_there_are_as_many_rows_as_bits() -> None:
    X, _ = toy()
    hasher = OSH(bits=32).fit(X[:300])
    before = hasher.encode(X).tobytes()
    for s in range(0, 28, 7):
        assert not hasher.partial_fit(X[s : s + 7]).stale_
        assert hasher.encode(X).tobytes() == before
    assert hasher.partial_fit(X[28:35]).stale_
    assert hasher.encode(X).tobytes() != before


def test_labels_are_ignored() -> None:
    X, Y = toy()
    some = Y.copy()
    some[::2] = 0
    assert (
        OSH(bits=16).fit(X[:300]).partial_fit(X, some).state()
        == OSH(bits=16).fit(X[:300], Y[:300]).partial_fit(X).state()
    )


def test_it_beats_random_projections() -> None:
    X, Y = toy(3000)
    queries, answers = toy(200, seed=5)
    maps = []
    for hasher in (LSH(bits=32), OSH(bits=32)):
        hasher.fit(X[:300])
        for s in range(0, 3000, 500):
            hasher.partial_fit(X[s : s + 500], Y[s : s + 500])
        maps.append(evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y).map)
    assert maps[1] > maps[0] + 0.03


def test_codes_drift_instead_of_jumping() -> None:
    X, _ = toy(4000)
    hasher = OSH(bits=8).fit(X[:300]).partial_fit(X[:3900])
    before = hasher.encode(X)
    assert hasher.partial_fit(X[3900:]).stale_
    assert np.unpackbits(before ^ hasher.encode(X)).mean() < 0.2


@pytest.mark.parametrize("sketch", [0, 1, -4, 20.5, "200", None, True])
def test_bad_parameters_are_named(sketch: Any) -> None:
    with pytest.raises(InvalidInput, match="sketch"):
        OSH(bits=16, sketch=sketch).fit(toy(50).X)


def test_a_sketch_of_another_size_is_refused() -> None:
    X, _ = toy()
    state = OSH(bits=16, sketch=400).fit(X[:300]).partial_fit(X).state()
    with pytest.raises(BadState, match="sketch"):
        OSH.load(state.replace(b'\\"sketch\\": 400', b'\\"sketch\\": 100'))
