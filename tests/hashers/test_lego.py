"""What the paper says of LEGO: exact steps in closed form, and a metric that stays one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhash import LSH, PCAITQ
from stillhash.errors import BadState, InvalidInput
from stillhash.experiments.metrics import evaluate
from stillhash.hashers.lego import LEGO, pair_step
from stillhash.hashers.pair_sampling import Reservoir, fingerprints
from stillhash.numeric.codes import signs
from stillhash.numeric.labels import parse_labels
from tests.support.toys import toy


@given(st.integers(0, 2**32), st.integers(8, 64), st.floats(0, 300), st.floats(1e-6, 1))
def test_a_step_ends_at_the_root_of_its_equation(seed: int, bits: int, y: float, eta: float) -> None:
    rng = np.random.default_rng(seed)
    root = np.eye(bits) + 0.1 * rng.standard_normal((bits, bits))
    M = root @ root.T
    z = rng.integers(-1, 2, bits) * 2.0
    z[0] = 2
    start, yh = M.copy(), z @ M @ z
    pair_step(M, z, y, eta)
    yb = z @ M @ z
    terms = eta * yh * yb**2, (1 - eta * y * yh) * yb, -yh  # which cancel
    np.testing.assert_allclose(sum(terms), 0, atol=1e-10 * max(map(abs, terms)))
    assert min(y, yh) * (1 - 1e-9) <= yb <= max(y, yh) * (1 + 1e-9)  # on the way to y
    c = eta * (yb - y) / (1 + eta * (yb - y) * yh)  # as published
    np.testing.assert_allclose(M, start - c * np.outer(start @ z, start @ z), atol=1e-5 * np.abs(start).max())
    assert np.array_equal(M, M.T) and np.linalg.eigvalsh(M)[0] > 0


def test_equal_codes_change_nothing() -> None:
    M = np.eye(8)
    pair_step(M, np.zeros(8), 4.0, 0.1)
    np.testing.assert_array_equal(M, np.eye(8))


def test_it_is_the_published_loop_over_the_pairs_of_the_stream() -> None:
    X, Y = toy(700)
    hasher, eta = LEGO(bits=16).fit(X[:300]), 0.01
    S, A = signs(hasher.encode(X), 16).astype(np.float64), np.eye(16)
    ham = (S[:300, None] != S[None, :300]).sum(axis=2)[np.triu_indices(300, 1)]
    assert (hasher.u_, hasher.v_) == tuple(np.percentile(4 * ham, [5, 95]))
    hasher.partial_fit(X, Y)
    for i, (x, plus, minus) in enumerate(Reservoir(16, seed=0).sample_partners(S, fingerprints(parse_labels(Y, 700)))):
        partner, y = (minus, hasher.v_) if i % 2 else (plus, hasher.u_)
        if partner is None or (x == partner).all():
            continue
        z = x - partner
        yh = z @ A @ z
        if (yh < y) if i % 2 else (yh > y):
            yb = (eta * y * yh - 1 + np.sqrt((eta * y * yh - 1) ** 2 + 4 * eta * yh**2)) / (2 * eta * yh)
            A = A - eta * (yb - y) / (1 + eta * (yb - y) * yh) * np.outer(A @ z, A @ z)
    np.testing.assert_allclose(hasher.M_, A, atol=1e-8)
    np.testing.assert_allclose(hasher.weigh(X[:9]), S[:9] @ A, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("eta", [1e-4, 0.01, 1.0, 100.0])
def test_the_metric_stays_positive_along_the_stream(eta: float) -> None:
    X, Y = toy(3000)
    hasher = LEGO(bits=48, eta=eta).fit(X[:300])
    for s in range(0, 3000, 500):
        hasher.partial_fit(X[s : s + 500], Y[s : s + 500])
        assert np.array_equal(hasher.M_, hasher.M_.T) and np.linalg.eigvalsh(hasher.M_)[0] > 0


def test_codes_are_pca_itq_and_never_change() -> None:
    X, Y = toy()
    hasher = LEGO(bits=32).fit(X[:300])
    fixed = PCAITQ(bits=32).fit(X[:300])
    np.testing.assert_array_equal(hasher.weigh(X), fixed.weigh(X))  # Hamming ranking, before it learns
    assert not hasher.partial_fit(X, Y).stale_
    assert hasher.encode(X).tobytes() == fixed.encode(X).tobytes()
    assert (hasher.weigh(X) != fixed.weigh(X)).any()


def test_it_beats_random_projections() -> None:
    X, Y = toy(3000)
    queries, answers = toy(200, seed=5)
    maps = []
    for hasher in (LSH(bits=16), LEGO(bits=16)):
        hasher.fit(X[:300]).partial_fit(X, Y)
        maps.append(evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y).map)
    assert maps[1] > maps[0] + 0.03


def test_it_beats_hamming_ranking_of_the_same_codes_on_single_labels() -> None:
    """With several labels a row it does not: on this toy 0.82 to 0.86 against 0.89."""
    X, Y = (part[toy(8000).Y.sum(axis=1) == 1] for part in toy(8000))
    X = X + np.random.default_rng(0).standard_normal(X.shape)
    maps = []
    for hasher in (PCAITQ(bits=32), LEGO(bits=32)):
        hasher.fit(X[:300]).partial_fit(X, Y)
        maps.append(evaluate(hasher.weigh(X[:150]), hasher.encode(X), Y[:150], Y).map)
    assert maps[1] > maps[0] + 0.03


def test_bounds_come_back_from_saved_state() -> None:
    X, Y = toy(300)
    hasher = LEGO(bits=16).fit(X).partial_fit(X, Y)
    again = LEGO.load(hasher.state())
    assert (again.u_, again.v_) == (hasher.u_, hasher.v_)
    assert again.partial_fit(X, Y).state() == hasher.partial_fit(X, Y).state()
    with pytest.raises(BadState):
        LEGO.load(hasher.state().replace(b'\\"u\\"', b'\\"w\\"'))


@pytest.mark.parametrize("eta", [0, -1.0, float("nan"), float("inf"), "big", None])
def test_bad_parameters_are_named(eta: Any) -> None:
    with pytest.raises(InvalidInput, match="eta"):
        LEGO(bits=16, eta=eta).fit(toy(50).X)
