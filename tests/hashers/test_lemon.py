"""What the paper says of LEMON: no step raises its objective, and codes of labels are similar where labels are."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stillhash import LEMON
from stillhash.errors import BadState, InvalidInput
from stillhash.hashers.lemon import LemonSums, LemonTurn, lemon_turns
from stillhash.numeric.codes import signs
from tests.support.toys import toy

Doubles = NDArray[np.float64]


def unit(L: Doubles) -> Doubles:
    return L / np.linalg.norm(L, axis=1, keepdims=True)


def sums_of(V: Doubles, B: Doubles, L: Doubles) -> LemonSums:
    return LemonSums(V.T @ V, L.T @ V, unit(L).T @ B, unit(L).T @ V, B.T @ V)


def objective(turn: LemonTurn, V: Doubles, B: Doubles, L: Doubles, hasher: LEMON) -> float:
    """Return it over all rows, by the full similarity matrix; V and B are those of earlier rows, which come first."""
    V, B, b = np.concatenate([V, turn.V]), np.concatenate([B, turn.B]), hasher.bits
    S = 2 * unit(L) @ unit(L).T - 1
    labels = ((L - V @ turn.P) ** 2).sum() + hasher.gamma * (turn.P**2).sum()
    return float(((B - V @ turn.R) ** 2).sum() + hasher.beta * labels + hasher.alpha * ((b * S - V @ B.T) ** 2).sum())


@pytest.mark.parametrize("weights", [{}, {"alpha": 1e-4, "beta": 0.1}, {"alpha": 1e-3, "beta": 100.0}, {"beta": 0.0}])
@pytest.mark.parametrize("labels", [5, 20])  # fewer labels than bits, and more
def test_no_turn_raises_the_objective(weights: dict[str, float], labels: int) -> None:
    hasher, rng = LEMON(bits=12, iterations=8, **weights), np.random.default_rng(0)
    L = toy(160, labels=labels).Y.astype(np.float64)
    empty = sums_of(np.zeros((0, 12)), np.zeros((0, 12)), L[:0])
    old, V, B = L[:0], np.zeros((0, 12)), np.zeros((0, 12))
    for sums, rows in ((empty, L[:60]), (None, L[60:])):
        if sums is None:
            sums = sums_of(V, B, old)
        turns = list(lemon_turns(sums, rows, unit(rows), hasher, rng))
        values = [objective(turn, V, B, np.concatenate([old, rows]), hasher) for turn in turns]
        assert len(values) == 8 and values[-1] < values[0]
        assert all(after <= before * (1 + 1e-10) for before, after in pairwise(values))
        old, V, B = rows, turns[-1].V, turns[-1].B


@pytest.mark.medium
def test_the_codes_are_those_of_the_last_turn() -> None:
    """What is left out of the last step, V R, counts for too little to turn a bit."""
    X, Y = toy(900)
    hasher = LEMON(bits=32).fit(X[:300])
    L = Y.astype(np.float64)
    for s in range(0, 900, 300):
        sums = LemonSums(hasher.VV_, hasher.LV_, hasher.GB_, hasher.GV_, hasher.BV_)
        if not s:
            sums = sums_of(np.zeros((0, 32)), np.zeros((0, 32)), L[:0])
        rows = L[s : s + 300]
        rng = np.random.default_rng([hasher.random_state, hasher.seen_ + 1])
        *_, turn = lemon_turns(sums, rows, unit(rows), hasher, rng)
        codes = hasher.partial_fit(X[s : s + 300], Y[s : s + 300]).encode(X[s : s + 300], Y[s : s + 300])
        np.testing.assert_array_equal(signs(codes, 32), turn.B)


def test_codes_agree_more_the_more_labels_are_shared() -> None:
    X, Y = toy(1500, labels=10)
    hasher = LEMON(bits=64).fit(X[:300])
    for s in range(0, 1500, 500):
        hasher.partial_fit(X[s : s + 500], Y[s : s + 500])
    B = signs(hasher.encode(X, Y), 64)
    agreement, cosine = B @ B.T / 64, unit(Y.astype(np.float64)) @ unit(Y.astype(np.float64)).T
    means = [float(agreement[(cosine >= low) & (cosine < low + 0.25)].mean()) for low in (0.0, 0.25, 0.5, 0.75)]
    assert means == sorted(means) and means[-1] > means[0] + 0.4


def test_a_row_of_unknown_labels_is_encoded_by_its_features() -> None:
    X, Y = toy(300)
    hasher = LEMON(bits=16).fit(X)
    assert hasher.encode(X, Y).tobytes() == hasher.encode(X).tobytes()  # nothing is learnt
    hasher.partial_fit(X, Y)
    assert hasher.encode(X, ["unknown"] * 300).tobytes() == hasher.encode(X).tobytes()
    known = hasher.encode(X[:1], [[0]])
    assert hasher.encode(X[:1], [[0, "unknown"]]).tobytes() == known.tobytes()


@pytest.mark.parametrize(
    "params",
    [
        {"alpha": 0},
        {"alpha": "much"},
        {"beta": -1},
        {"gamma": 0},
        {"xi": float("nan")},
        {"iterations": 0},
        {"iterations": 1.5},
        {"random_state": -1},
    ],
)
def test_bad_parameters_are_named(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(params))):
        LEMON(bits=16, **params).fit(toy(50).X)


def test_labels_that_do_not_fit_the_sums_are_refused() -> None:
    X, Y = toy(100)
    hasher = LEMON(bits=16).fit(X).partial_fit(X, Y)
    hasher.columns_.popitem()
    with pytest.raises(BadState):
        LEMON.load(hasher.state())
