"""What the paper says of OSupH: one codeword a label, and steps towards it, label after label."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stillhash import LSH
from stillhash.experiments.metrics import evaluate
from stillhash.hashers.osuph import UPDATE_ROWS, OSupH
from stillhash.numeric.labels import parse_labels
from tests.support.toys import toy


def codewords(hasher: OSupH, names: list[Any]) -> NDArray[np.int8]:
    return hasher.codewords_(parse_labels(names, len(names)))


def literal(hasher: OSupH, X: NDArray[Any], Y: NDArray[Any]) -> NDArray[np.float64]:
    """W after the rows of X one at a time, in float64, from the text."""
    W, G = hasher.W_.astype(np.float64), codewords(hasher, list(range(Y.shape[1])))
    for x, row in zip(hasher.prepare(X).astype(np.float64), Y, strict=True):
        for c in np.flatnonzero(row):
            g = G[c].astype(np.float64)
            W += np.outer(x, 0.1 * g * (g * (x @ W) < 1))
    return W


@pytest.mark.parametrize("n", [1, UPDATE_ROWS - 1, UPDATE_ROWS, 3 * UPDATE_ROWS + 5])
def test_blocks_equal_the_loop_over_rows(n: int) -> None:
    X, Y = toy(400)
    hasher = OSupH(bits=24).fit(X)
    expected = literal(hasher, X[:n], Y[:n])
    hasher.partial_fit(X[:n], Y[:n])
    np.testing.assert_allclose(hasher.W_, expected, atol=2e-5)
    assert not hasher.t_.any()


def test_distinct_labels_have_distinct_codewords() -> None:
    X, _ = toy(50)
    hasher = OSupH(bits=64).fit(X)
    names = [*range(3000), *map(str, range(3000)), ("a", 1), b"raw", 2.5]
    codes = codewords(hasher, names)
    assert len(np.unique(codes, axis=0)) == len(names)
    assert abs(float(codes.mean())) < 0.02  # fair bits
    for other in (OSupH(bits=64).fit(X[:20]), OSupH.load(hasher.state())):  # which have not learnt the labels
        np.testing.assert_array_equal(codewords(other, names[::-1]), codes[::-1])
    assert (codewords(OSupH(bits=64, random_state=1).fit(X), names) != codes).any()


def test_the_order_in_which_labels_are_named_does_not_matter() -> None:
    X, Y = toy()
    sets = [[f"label {j}" for j in np.flatnonzero(row)] for row in Y]
    first = OSupH(bits=16).fit(X[:300]).partial_fit(X, sets)
    second = OSupH(bits=16).fit(X[:300]).partial_fit(X, [row[::-1] for row in sets])
    assert first.state() == second.state()
    parts = OSupH(bits=16).fit(X[:300])
    for s in range(0, 1200, 7):  # each chunk meets the labels in another order
        parts.partial_fit(X[s : s + 7], sets[s : s + 7])
    np.testing.assert_allclose(parts.W_, first.W_, atol=1e-4)


def test_codes_are_stale_only_if_something_was_learnt() -> None:
    X, Y = toy(50)
    hasher = OSupH(bits=16).fit(X)
    assert not hasher.stale_
    for _ in range(11):  # the margins of one row start above -1 and rise by 0.1 |x|^2 = 0.1 a time
        assert not hasher.partial_fit(X[:0], Y[:0]).stale_
        assert hasher.partial_fit(X[:1], [["cat"]]).stale_
    for _ in range(10):
        hasher.partial_fit(X[:1], [["cat"]])
    assert not hasher.partial_fit(X[:1], [["cat"]]).stale_
    np.testing.assert_array_equal(hasher.weigh(X[:1]), codewords(hasher, ["cat"]))


def test_it_beats_random_projections() -> None:
    X, Y = toy(3000)
    queries, answers = toy(200, seed=5)
    maps = []
    for hasher in (LSH(bits=32), OSupH(bits=32)):
        hasher.fit(X[:300])
        for s in range(0, 3000, 500):
            hasher.partial_fit(X[s : s + 500], Y[s : s + 500])
        maps.append(evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y).map)
    assert maps[1] > maps[0] + 0.03
