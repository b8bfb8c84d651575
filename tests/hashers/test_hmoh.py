"""What the paper says of HMOH: a perceptron per bit, and the average of all it ever was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stillhash.errors import BadState, InvalidInput, WrongType
from stillhash.experiments.metrics import evaluate
from stillhash.hashers.hmoh import HMOH, perceptron
from stillhash.numeric.codes import pack, signs
from stillhash.numeric.labels import parse_labels
from tests.support.toys import toy


def literal(X: NDArray[Any], G: NDArray[Any], rate: float = 1.0) -> list[NDArray[np.float64]]:
    """W after each row, as the method is written."""
    W, steps = np.zeros((X.shape[1], G.shape[1])), []
    for x, g in zip(X.astype(np.float64), G, strict=True):
        F = np.where(x @ W > 0, 1, -1)  # while learning, 0 counts as -1
        W = W + rate * np.outer(x, g * (g != F))
        steps.append(W)
    return steps


@settings(max_examples=60)
@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 70), st.integers(0, 199), st.integers(0, 2**32))
def test_blocks_equal_the_literal_loop(n: int, dim: int, length: int, cut: int, seed: int) -> None:
    """Small integers, so that every product is exact and scores of exactly 0 are common."""
    rng = np.random.default_rng(seed)
    X = rng.integers(-2, 3, size=(n, dim)).astype(np.float32)
    X[:: max(2, n // 3)] = 0
    G = np.where(rng.random((n, length)) < 0.5, 1, -1).astype(np.int8)
    W = A = np.zeros((dim, length))
    for part in (slice(0, cut), slice(cut, n)):  # wherever the stream is cut
        W, A = perceptron(W, A, X[part], G[part])
    steps = literal(X, G)
    np.testing.assert_array_equal(W, steps[-1])
    np.testing.assert_array_equal(A, np.sum(steps, axis=0))


@pytest.mark.parametrize("merge", ["hmoh", "sum_lsh"])
def test_codes_are_those_of_the_mean_of_every_w_at_any_learning_rate(merge: Any) -> None:
    X, Y = toy(500)
    hasher = HMOH(bits=24, merge=merge).fit(X[:300]).partial_fit(X, Y)
    x = hasher.prepare(X)
    G = HMOH(bits=24, merge=merge).fit(X[:300]).targets_(parse_labels(Y, 500))
    for rate in (0.01, 0.5, 1.0, 64.0):
        mean = np.mean(literal(x, G, rate), axis=0)
        np.testing.assert_allclose(hasher.A_ * rate / 500, mean, rtol=1e-9, atol=1e-12 * rate)
        assert pack((x @ mean).astype(np.float32)).tobytes() == hasher.encode(X).tobytes()


def test_the_mean_is_better_than_the_last() -> None:
    X, Y = toy(3000)
    queries, answers = toy(200, seed=5)
    hasher = HMOH(bits=32, merge="sum_lsh").fit(X[:300]).partial_fit(X, Y)
    averaged = evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y).map
    hasher.H_ = hasher.W_.astype(np.float32)
    assert averaged > evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y).map


def test_before_learning_all_codes_are_one() -> None:
    X, Y = toy()
    hasher = HMOH(bits=13).fit(X[:300], Y[:300]).partial_fit(X)
    assert not hasher.stale_
    assert (signs(hasher.encode(X), 13) == 1).all() and (hasher.weigh(X) == 1).all()
    assert HMOH.load(hasher.state()).state() == hasher.state()


def test_labelled_rows_make_codes_stale_and_others_do_not() -> None:
    X, Y = toy()
    hasher = HMOH(bits=16).fit(X[:300])
    assert hasher.partial_fit(X[:100], Y[:100]).stale_
    assert not hasher.partial_fit(X[100:200]).stale_
    codes = hasher.encode(X)
    assert hasher.partial_fit(X[200:300], Y[200:300]).stale_
    assert hasher.refresh(codes, lambda: X).tobytes() == hasher.encode(X).tobytes() != codes.tobytes()


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"merge": "sum_lsh"},
        {"capacity": 1},
        {"unit_norm": False},
        {"unit_norm": False, "center": False},
    ],
)
def test_every_variant_learns_and_round_trips(params: dict[str, Any]) -> None:
    X, Y = toy()
    queries, answers = toy(150, seed=5)
    hasher = HMOH(bits=32, **params).fit(X[:300])
    before = evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y).map
    hasher.partial_fit(X[:600], Y[:600])
    assert evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y).map > before + 0.2
    again = HMOH.load(hasher.state())
    assert again.state() == hasher.state()
    assert again.partial_fit(X[600:], Y[600:]).state() == hasher.partial_fit(X[600:], Y[600:]).state()
    assert again.encode(X).tobytes() == hasher.encode(X).tobytes()


def test_labels_that_come_late_get_the_same_rows_however_the_stream_is_cut() -> None:
    X, Y = toy()
    order = np.argsort(Y[:, 0] + 2 * Y[:, 1], kind="stable")  # the first two columns come last
    X, Y = X[order], Y[order]
    states = []
    for chunk in (1, 97, 1200):
        hasher = HMOH(bits=32).fit(X[:300])
        for s in range(0, 1200, chunk):
            hasher.partial_fit(X[s : s + chunk], Y[s : s + chunk])
        states.append((list(hasher.targets_.names), hasher.encode(X).tobytes()))
    assert states[0] == states[1] == states[2]
    assert states[0][0] != sorted(states[0][0])


def test_state_of_other_shapes_is_refused() -> None:
    X, Y = toy(100)
    hasher = HMOH(bits=16).fit(X).partial_fit(X, Y)
    for name, spoilt in (("A_", hasher.A_[1:]), ("W_", hasher.W_[:, 1:])):
        bad = HMOH.load(hasher.state())
        setattr(bad, name, spoilt)
        with pytest.raises(BadState, match=name.rstrip("_")):
            HMOH.load(bad.state())


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"merge": "sum"}, InvalidInput),
        ({"capacity": 0}, InvalidInput),
        ({"capacity": 2**14 + 1}, InvalidInput),
        ({"capacity": 2.5}, WrongType),
        ({"random_state": -1}, InvalidInput),
    ],
)
def test_bad_parameters_are_named(params: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(params))):
        HMOH(bits=16, **params).fit(toy(50).X)
