"""What the paper says of OESH: no step raises its objective, and vectors of labels carry over to new labels."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stillhash import OESH
from stillhash.errors import BadState, InvalidInput
from stillhash.hashers.oesh import OeshSums, OeshTurn, oesh_turns
from stillhash.numeric.codes import signs
from tests.support.toys import toy

Doubles = NDArray[np.float64]


def unit(rows: Doubles) -> Doubles:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def objective(turn: OeshTurn, V: Doubles, B: Doubles, G: Doubles, X: Doubles, hasher: OESH) -> float:
    """Return it over all rows, by the full similarity matrix; V and B are those of earlier rows, which come first."""
    V, B, b = np.concatenate([V, turn.V]), np.concatenate([B, turn.B]), hasher.bits
    labels = ((G - V @ turn.U.T) ** 2).sum() + hasher.theta * (turn.U**2).sum()
    functions = ((B - X @ turn.W) ** 2).sum() + hasher.delta * (turn.W**2).sum()
    pairs = ((b * G @ G.T - V @ B.T) ** 2).sum()
    return float(((B - V) ** 2).sum() + hasher.alpha * pairs + hasher.beta * labels + hasher.gamma * functions)


@pytest.mark.parametrize("weights", [{}, {"alpha": 1e-4, "beta": 10.0}, {"alpha": 1e-3, "gamma": 50.0}, {"beta": 0.0}])
def test_no_turn_raises_the_objective(weights: dict[str, float]) -> None:
    hasher, rng = OESH(bits=12, iterations=8, **weights), np.random.default_rng(0)
    X, Y = toy(160, dim=10)
    x, G = unit(X.astype(np.float64)), unit(Y @ rng.standard_normal((8, 30)))
    V = B = np.zeros((0, 12))
    for start, stop in ((0, 60), (60, 160)):
        sums = OeshSums(V.T @ V, G[:start].T @ B, G[:start].T @ V, x[:start].T @ B)
        inverse = np.linalg.inv(x[:stop].T @ x[:stop] + hasher.delta * np.eye(10))
        turns = list(oesh_turns(sums, G[start:stop], x[start:stop], inverse, hasher, rng))
        values = [objective(turn, V, B, G[:stop], x[:stop], hasher) for turn in turns]
        assert len(values) == 8 and values[-1] < values[0]
        assert all(after <= before * (1 + 1e-10) for before, after in pairwise(values))
        V, B = turns[-1].V, turns[-1].B


def vectors_of_pairs(dim: int = 64) -> dict[Any, list[float]]:
    """Return vectors of eight labels that are alike in pairs: 0 and 4, 1 and 5, ..."""
    rng = np.random.default_rng(1)
    first = rng.standard_normal((4, dim))
    return {j: (first[j % 4] + 0.3 * rng.standard_normal(dim)).tolist() for j in range(8)}


def test_a_new_label_gets_a_code_near_that_of_a_label_with_a_similar_vector() -> None:
    X, Y = toy(1000)
    hasher = OESH(bits=64, label_dim=64, label_vectors=vectors_of_pairs(), gamma=0.0).fit(X)
    old = ~Y[:, 4:].any(axis=1)
    hasher.partial_fit(X[old], Y[old])  # labels 0 to 3 only
    codes = signs(hasher.encode(X[:8], [[j] for j in range(8)]), 64)
    agreement = codes[4:] @ codes[:4].T / 64
    assert (agreement.argmax(axis=1) == np.arange(4)).all() and np.diagonal(agreement).min() > 0.6


def test_label_vectors_are_saved() -> None:
    X, Y = toy(300)
    hasher = OESH(bits=16, label_dim=64, label_vectors={**vectors_of_pairs(), ("a", 1): [1.0] * 64}).fit(X)
    hasher.partial_fit(X, Y)
    again = OESH.load(hasher.state())
    assert again.state() == hasher.state() and again.label_vectors == hasher.label_vectors
    assert again.encode(X, Y).tobytes() == hasher.encode(X, Y).tobytes()
    other = OESH(bits=16, label_dim=64).fit(X).partial_fit(X, Y)
    assert other.encode(X, Y).tobytes() != hasher.encode(X, Y).tobytes()


def test_rows_get_more_like_their_hash_functions_with_a_larger_gamma() -> None:
    X, Y = toy(600)
    alike = []
    for gamma in (0.0, 1e7):
        hasher = OESH(bits=32, gamma=gamma).fit(X).partial_fit(X, Y)
        alike.append(float((signs(hasher.encode(X, Y), 32) == signs(hasher.encode(X), 32)).mean()))
    assert alike[0] < 0.97 and alike[1] > 0.999


@pytest.mark.parametrize(
    "params",
    [
        {"alpha": 0},
        {"beta": -1},
        {"theta": 0},
        {"gamma": -0.1},
        {"delta": float("inf")},
        {"iterations": 0},
        {"label_dim": 0},
        {"label_dim": 2.5},
        {"label_vectors": {"cat": [1.0, 2.0]}},  # not label_dim numbers
        {"label_vectors": {"cat": [float("nan")] * 300}},
        {"label_vectors": {"cat": ["a"] * 300}},
        {"label_vectors": {None: [1.0] * 300}},
        {"random_state": -1},
    ],
)
def test_bad_parameters_are_named(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(params))):
        OESH(bits=16, **params).fit(toy(50).X)


def test_saved_sums_have_the_length_of_label_vectors() -> None:
    X, Y = toy(100)
    hasher = OESH(bits=16).fit(X).partial_fit(X, Y)
    hasher.set_params(label_dim=100)
    with pytest.raises(BadState, match="GV"):
        OESH.load(hasher.state())
