"""What the paper and its script say of OHWEU: fixed codes below, learnt projections above."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stillhash import PCAITQ
from stillhash.errors import BadState, InvalidInput, NotFitted, WrongType
from stillhash.experiments.metrics import evaluate
from stillhash.hashers.ohweu import OHWEU, learn
from stillhash.numeric.codes import signs
from stillhash.numeric.labels import parse_labels
from stillhash.numeric.targets import TargetCodes
from tests.support.toys import toy


def literal(U: NDArray[Any], X: NDArray[Any], G: NDArray[Any], C: float) -> NDArray[np.float64]:
    """One row and one bit at a time, as the rule is written."""
    U = U.copy()
    for x, g in zip(X.astype(np.float64), G, strict=True):
        square = x @ x
        if square == 0:
            continue
        for k in range(len(g)):
            margin = g[k] * (U[:, k] @ x)
            U[:, k] += max(0.0, min(C, 1 - margin / square)) * g[k] * x
    return U


@settings(max_examples=25)
@given(
    st.integers(1, 150), st.integers(1, 30), st.integers(1, 9), st.sampled_from([0.5, 1.0, 6.0]), st.integers(0, 2**32)
)
def test_blocks_equal_the_literal_loop(n: int, dim: int, length: int, norm: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, dim))
    X = (X * norm / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    X[:: max(2, n // 3)] = 0  # rows that teach nothing
    G = np.where(rng.random((n, length)) < 0.5, 1, -1).astype(np.int8)
    U = rng.standard_normal((dim, length))
    before = U.copy()
    expected = literal(U, X, G, 0.1)
    np.testing.assert_allclose(learn(U, X, G, 0.1), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(U, before)


def test_it_is_the_method_sample_by_sample() -> None:
    X, Y = toy(200)
    start = OHWEU(bits=16).fit(X[:100])
    hasher = OHWEU(bits=16).fit(X[:100]).partial_fit(X, Y)
    x = start.prepare(X)
    G = TargetCodes(16)(parse_labels(Y, 200))
    fixed = np.where(x @ start.W_ + start.t_ >= 0, 1.0, -1.0)
    Qp, Vp = literal(start.Qp_, x, G, 0.1), literal(start.Vp_, fixed, G, 0.1)
    np.testing.assert_allclose(hasher.Qp_, Qp, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(hasher.Vp_, Vp, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(signs(hasher.encode(X), 16), np.where(fixed @ Vp >= 0, 1, -1))
    np.testing.assert_array_equal(hasher.weigh(X), np.where(x @ Qp >= 0, 1, -1))


def test_an_uncapped_step_reaches_its_margin_and_none_goes_back() -> None:
    x, g = np.array([[1.0, 2.0, 2.0]], np.float32), np.ones((1, 1), np.int8)
    below, beyond = np.zeros((3, 1)), 2 * x.T.astype(np.float64)  # margins 0 and 18, |x|^2 = 9
    assert [(x @ learn(U, x, g, 1e9)).item() for U in (below, beyond)] == [pytest.approx(9), 18]


def test_projections_start_at_random_with_unit_columns() -> None:
    X, _ = toy()
    hasher, other = OHWEU(bits=32).fit(X[:300]), OHWEU(bits=32, random_state=1).fit(X[:300])
    for U in (hasher.Vp_, hasher.Qp_):
        np.testing.assert_allclose(np.linalg.norm(U, axis=0), 1, rtol=1e-6)
    assert not np.allclose(hasher.Vp_, other.Vp_)


def raw() -> NoReturn:
    raise AssertionError("raw features are never needed")


def test_fixed_codes_are_pca_itq_and_never_change() -> None:
    X, Y = toy()
    hasher = OHWEU(bits=32).fit(X[:300])
    fixed = hasher.keep(X)
    assert fixed.tobytes() == PCAITQ(bits=32).fit(X[:300]).encode(X).tobytes()
    assert hasher.partial_fit(X, Y).keep(X).tobytes() == fixed.tobytes()


@pytest.mark.parametrize("bits", [13, 32])
def test_stored_codes_are_refreshed_from_fixed_codes_alone(bits: int) -> None:
    X, Y = toy()
    hasher = OHWEU(bits=bits).fit(X[:300])
    fixed = hasher.keep(X)
    for s in range(0, 1200, 400):
        before = hasher.encode(X)
        assert hasher.partial_fit(X[s : s + 400], Y[s : s + 400]).stale_
        assert hasher.refresh(fixed, raw).tobytes() == hasher.encode(X).tobytes() != before.tobytes()
    assert not hasher.partial_fit(X).stale_  # no labels, nothing learnt
    assert hasher.refresh(fixed[:0], raw).shape == (0, fixed.shape[1])


def test_refresh_checks_what_it_is_given() -> None:
    X, _ = toy()
    hasher = OHWEU(bits=13).fit(X[:300])
    for bad, error in (
        (np.zeros((3, 4), np.uint8), InvalidInput),
        (np.full((3, 2), 255, np.uint8), InvalidInput),
        (np.zeros((3, 2)), WrongType),
    ):
        with pytest.raises(error, match=r"^stored\b"):
            hasher.refresh(bad, raw)
    for call in (lambda: OHWEU().refresh(np.zeros((3, 4), np.uint8), raw), lambda: OHWEU().keep(X)):
        with pytest.raises(NotFitted):
            call()


def test_learning_beats_its_unlearnt_state() -> None:
    X, Y = toy(3000)
    queries, answers = toy(200, seed=5)
    hasher = OHWEU(bits=32).fit(X[:300])
    before = evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y).map
    for s in range(0, 3000, 500):
        hasher.partial_fit(X[s : s + 500], Y[s : s + 500])
    assert evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y).map > before + 0.2


@pytest.mark.parametrize("params", [{"C": 1}, {"unit_norm": False, "center": False}])
def test_every_variant_round_trips_and_learns_on(params: dict[str, Any]) -> None:
    X, Y = toy()
    hasher = OHWEU(bits=24, **params).fit(X[:300]).partial_fit(X[:600], Y[:600])
    again = OHWEU.load(hasher.state())
    assert again.state() == hasher.state()
    assert again.partial_fit(X[600:], Y[600:]).state() == hasher.partial_fit(X[600:], Y[600:]).state()
    assert again.encode(X).tobytes() == hasher.encode(X).tobytes()
    assert again.weigh(X).tobytes() == hasher.weigh(X).tobytes()


def test_state_of_other_shapes_is_refused() -> None:
    X, _ = toy(100)
    hasher = OHWEU(bits=16).fit(X)
    for name, spoilt in (("Vp_", hasher.Vp_[1:]), ("Qp_", hasher.Qp_[:, 1:]), ("Qp_", hasher.Qp_ * np.nan)):
        bad = OHWEU.load(hasher.state())
        setattr(bad, name, spoilt)
        with pytest.raises(BadState, match=name.rstrip("_")):
            OHWEU.load(bad.state())


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"C": 0}, InvalidInput),
        ({"C": float("nan")}, InvalidInput),
        ({"C": "big"}, WrongType),
        ({"random_state": 1.5}, WrongType),
    ],
)
def test_bad_parameters_are_named(params: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(params))):
        OHWEU(bits=16, **params).fit(toy(50).X)
