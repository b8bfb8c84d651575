from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from stillhash.errors import InvalidInput, WrongType
from stillhash.numeric.labels import canonical, jaccard, label_jaccard, parse_labels, share_label, stable_key


class Colour(enum.Enum):
    RED = 1


INDICATOR = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]])


@pytest.mark.parametrize(
    "Y",
    [
        INDICATOR,
        INDICATOR.astype(bool),
        INDICATOR.astype(float),
        np.asfortranarray(INDICATOR),
        scipy.sparse.csr_matrix(INDICATOR),
        scipy.sparse.coo_array(INDICATOR),
        [[0, 2], [], [1]],
        [{2, 0}, None, (1,)],
        [np.array([2.0, 0.0, 2.0]), [], np.int64(1)],
    ],
)
def test_all_shapes_give_the_same_labels(Y: Any) -> None:
    labels = parse_labels(Y, 3)
    assert [set(labels.row(r)) for r in range(3)] == [{0, 2}, set(), {1}]
    assert labels.labelled.tolist() == [True, False, True]
    labelled = labels.rows(labels.labelled)
    assert len(labelled) == 2 and [set(labelled.row(r)) for r in range(2)] == [{0, 2}, {1}]


@pytest.mark.parametrize(
    ("Y", "expected"),
    [
        (np.array([3, 1, 3]), [3, 1, 3]),
        (["cat", "dog", None], ["cat", "dog", None]),
        (np.array(["a", "b", "a"]), ["a", "b", "a"]),
        ([1.0, 1.5, True], [1, 1.5, 1]),
    ],
)
def test_flat_labels_are_single_labels(Y: Any, expected: list[Any]) -> None:
    labels = parse_labels(Y, 3)
    assert [labels.row(r) for r in range(3)] == [[] if w is None else [w] for w in expected]


def test_no_labels_at_all() -> None:
    assert not parse_labels(None, 4).labelled.any()


@pytest.mark.parametrize(
    ("Y", "error"),
    [
        ([1, 2], InvalidInput),
        ([[1], [2], [3], [4]], InvalidInput),
        (np.array([[0, 2], [1, 0], [0, 0]]), InvalidInput),
        (np.array([[0.0, np.nan], [1, 0], [0, 0]]), InvalidInput),
        (np.zeros((3, 2, 2)), InvalidInput),
        ([[1, float("nan")], [1], [2]], InvalidInput),
        ([float("inf"), 1, 2], InvalidInput),
        ([[{}], [1], [2]], WrongType),
        ([[None], [1], [2]], WrongType),
        (scipy.sparse.csr_matrix([[2], [0], [1]]), InvalidInput),
        (5, InvalidInput),
    ],
)
def test_bad_labels_are_named(Y: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^Y\b"):
        parse_labels(Y, 3)


def test_keys_are_stable_and_distinct() -> None:
    labels = [1, "1", 1.5, b"1", (1,), (1, 2), (12,), ("a", ("b",)), frozenset({1, 2}), Colour.RED, "ä", ""]
    keys = [stable_key(canonical(label)) for label in labels]
    assert len(set(keys)) == len(labels)
    assert stable_key(frozenset({"x", "y", "z"})) == stable_key(frozenset({"z", "y", "x"}))
    with pytest.raises(WrongType, match=r"^label\b"):
        stable_key(canonical(object()))


def test_jaccard_is_shared_labels_over_all_labels() -> None:
    rng = np.random.default_rng(0)
    Y = (rng.random((30, 5)) < 0.4).astype(np.float32)
    Y[[0, 20]] = 0
    labels, first = parse_labels(Y, len(Y)), np.arange(len(Y)) < 12
    A, B = Y[first] > 0, Y[~first] > 0
    expected = [[(a & b).sum() / max(1, (a | b).sum()) for b in B] for a in A]
    found = label_jaccard(labels.rows(first), labels.rows(~first))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(found > 0, share_label(labels.rows(first), labels.rows(~first)))
    np.testing.assert_array_equal(found, jaccard(Y[first] @ Y[~first].T, A.sum(axis=1), B.sum(axis=1)))
