"""What the paper says of OHSL, and what the notes say of our reading."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stillhash import LSH, OHSL, PCAITQ, OHSLSym, Scan
from stillhash.errors import InvalidInput
from stillhash.experiments.metrics import evaluate
from stillhash.numeric.codes import signs
from stillhash.numeric.labels import parse_labels
from tests.support.toys import toy


def test_codes_never_change_while_it_learns() -> None:
    X, Y = toy()
    hasher = OHSL(bits=32).fit(X[:300])
    before = hasher.encode(X).tobytes()
    for s in range(0, 1200, 100):
        hasher.partial_fit(X[s : s + 100], Y[s : s + 100])
        assert not hasher.stale_
    assert hasher.encode(X).tobytes() == before == PCAITQ(bits=32).fit(X[:300]).encode(X).tobytes()


def test_it_is_algorithm_1_sample_by_sample() -> None:
    """The method again, from the paper's equations, in a dozen lines."""
    X, Y = toy(200)
    hasher = OHSL(bits=16, C=0.02).fit(X[:100]).partial_fit(X, Y)
    x = X - X[:100].mean(axis=0)
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float64)
    codes = np.where(x @ hasher.W_ + hasher.t_ >= 0, 1.0, -1.0)
    targets = OHSL(bits=16).fit(X[:100]).targets_(parse_labels(Y, 200))
    U, V = np.zeros((48, x.shape[1])), np.zeros((48, 16))
    for xi, ci, g in zip(x, codes, targets, strict=True):
        U += np.outer(g * np.minimum(0.02, np.maximum(0, 1 - g * (U @ xi)) / (xi @ xi)), xi)
        V += np.outer(g * np.minimum(0.02, np.maximum(0, 1 - g * (V @ ci)) / 16), ci)
    np.testing.assert_allclose(hasher.U_, U, atol=1e-5)
    np.testing.assert_allclose(hasher.V_, V, atol=1e-5)
    np.testing.assert_allclose(hasher.weigh(X[:5]), x[:5] @ (U.T @ V), atol=1e-4)  # q^T M x~ = (U q) . (V x~)


def test_learning_beats_hamming_on_the_same_codes_and_the_square_form() -> None:
    X, Y = toy(3000)
    queries, answers = toy(200, seed=5)
    maps = {}
    for method in (LSH, PCAITQ, OHSLSym, OHSL):
        hasher = method(bits=32).fit(X[:300])
        for s in range(0, 3000, 500):
            hasher.partial_fit(X[s : s + 500], Y[s : s + 500])
        maps[method.name] = evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y).map
    assert maps["ohsl"] > maps["pca-itq"] + 0.05 and maps["ohsl"] > maps["ohsl-sym"] and maps["pca-itq"] > maps["lsh"]


def test_quality_rises_along_the_stream() -> None:
    X, Y = toy(4000)
    queries, answers = toy(150, seed=5)
    hasher = OHSL(bits=32).fit(X[:300])
    curve = []
    for s in range(0, 4000, 1000):
        hasher.partial_fit(X[s : s + 1000], Y[s : s + 1000])
        curve.append(evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y).map)
    assert curve[-1] > curve[0] + 0.01


def test_before_learning_it_ranks_by_hamming_distance() -> None:
    X, _ = toy()
    hasher = OHSL(bits=32).fit(X[:300])
    np.testing.assert_array_equal(hasher.weigh(X), signs(hasher.encode(X), 32))


def test_the_square_form_is_v_on_both_sides() -> None:
    X, Y = toy()
    hasher = OHSLSym(bits=32).fit(X[:300]).partial_fit(X, Y)
    np.testing.assert_array_equal(hasher.U_, hasher.V_)
    V = hasher.V_.astype(np.float64)
    np.testing.assert_allclose(hasher.weigh(X[:9]), signs(hasher.encode(X[:9]), 32) @ (V.T @ V), rtol=1e-4, atol=1e-3)


def test_new_labels_may_come_at_any_time() -> None:
    X, Y = toy()
    names = np.array(["cat", "dog", ("a", 1), 7, 2.5, b"raw", "emu", "fox"], dtype=object)
    sets = [[names[j] for j in np.flatnonzero(row)] for row in Y]
    hasher = OHSL(bits=32).fit(X[:300])
    for s in range(0, 1200, 100):
        hasher.partial_fit(X[s : s + 100], sets[s : s + 100])
    quality = evaluate(hasher.weigh(X[:100]), hasher.encode(X), Y[:100], Y)
    assert quality.map > 0.8


def test_it_searches_what_it_encodes() -> None:
    X, Y = toy()
    hasher, index = OHSL(bits=64).fit(X[:300]).partial_fit(X, Y), Scan(bits=64)
    index.add(hasher.encode(X))
    weights = hasher.weigh(X[:20])
    scores, ids = index.search(weights, k=10)
    np.testing.assert_allclose(
        scores, np.sort(weights @ signs(hasher.encode(X), 64).T, axis=1)[:, ::-1][:, :10], rtol=1e-5
    )
    shared = (Y[:20, None] & Y[ids]).any(axis=2)
    assert shared.mean() > 0.95


def test_switched_off_pre_processing_leaves_features_alone() -> None:
    X, _ = toy()
    hasher = OHSL(bits=16, center=False, unit_norm=False).fit(X[:300])
    np.testing.assert_array_equal(hasher.prepare(X), X)
    both = OHSL(bits=16).fit(X[:300])
    norms = np.linalg.norm(both.prepare(np.vstack([X, both.mean_[None]])), axis=1)
    np.testing.assert_allclose(norms[:-1], 1, rtol=1e-5)
    assert norms[-1] == 0  # the mean itself becomes a zero row, and stays one


@pytest.mark.parametrize(
    "params",
    [
        {"C": 0},
        {"C": -1.0},
        {"C": float("nan")},
        {"C": "big"},
        {"target_factor": 0},
        {"target_factor": 1.5},
        {"random_state": -1},
    ],
)
def test_bad_parameters_are_named(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(params))):
        OHSL(bits=16, **params).fit(toy(50).X)


def test_short_target_codes_teach_too() -> None:
    X, Y = toy()
    hasher = OHSL(bits=32, target_factor=1).fit(X[:300]).partial_fit(X, Y)
    plain = OHSL(bits=32, target_factor=1).fit(X[:300])
    after = evaluate(hasher.weigh(X[:100]), hasher.encode(X), Y[:100], Y).map
    assert after > evaluate(plain.weigh(X[:100]), plain.encode(X), Y[:100], Y).map
    assert OHSL.load(hasher.state()).state() == hasher.state()
