from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhash.numeric.labels import parse_labels
from stillhash.numeric.sufficient_stats import Similarity, SufficientStats, unit_labels

RNG = np.random.default_rng(0)
X = RNG.standard_normal((400, 12)).astype(np.float32)
B = np.where(RNG.standard_normal((400, 9)) + X[:, :9] >= 0, np.float32(1), np.float32(-1))
Y = (X[:, :5] + RNG.standard_normal((400, 5)) > 0.6).astype(np.uint8)
Y[Y.sum(axis=1) == 0, 4] = 1
LABELS = parse_labels(Y, 400)


def summed(*parts: slice | np.ndarray) -> SufficientStats:
    stats = SufficientStats(12, 9)
    for rows in parts:
        stats.add(X[rows], B[rows], parse_labels(Y[rows], len(X[rows])))
    return stats


def same(a: Similarity | None, b: Similarity | None, tolerance: float = 1e-5) -> None:
    assert a is not None and b is not None
    for one, other in zip(a, b, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * max(1.0, float(np.abs(b.M).max())))


def plain_ridge(Z: np.ndarray, T: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Slopes and intercept by least squares on the rows themselves."""
    centre, level = Z.mean(axis=0), T.mean(axis=0)
    shrinkage = ridge * (Z**2).sum(axis=1).mean()
    rows = np.concatenate([Z - centre, np.sqrt(shrinkage) * np.eye(Z.shape[1])])
    slopes = np.linalg.lstsq(rows, np.concatenate([T - level, np.zeros((Z.shape[1], T.shape[1]))]), rcond=None)[0]
    return slopes, level - centre @ slopes


def test_label_sets_are_unit_vectors() -> None:
    unit, names = unit_labels(parse_labels([["a", "b"], ["b"], []], 3))
    assert names == ["a", "b"]
    np.testing.assert_allclose(unit, [[np.sqrt(0.5), np.sqrt(0.5)], [0, 1], [0, 0]])


@pytest.mark.parametrize("ridge", [0.1, 10.0])
def test_the_similarity_is_two_regressions_on_the_rows(ridge: float) -> None:
    T = unit_labels(LABELS)[0].astype(np.float64)
    U, u = plain_ridge(X.astype(np.float64), T, ridge)
    V, _ = plain_ridge(B.astype(np.float64), T, ridge)
    same(summed(slice(None)).similarity(ridge), Similarity(U @ V.T, u @ V.T))


@given(st.lists(st.integers(0, 400), max_size=6), st.randoms())
def test_order_and_chunks_do_not_matter(cuts: list[int], random: object) -> None:
    order = np.arange(400)
    random.shuffle(order)  # type: ignore[attr-defined]
    stats = summed(*(part for part in np.split(order, sorted(cuts)) if len(part)))
    whole = summed(slice(None))
    same(stats.similarity(10.0), whole.similarity(10.0))
    other = SufficientStats(12, 9)
    for part in np.array_split(order, 4):
        other.merge(summed(part))
    same(other.similarity(10.0), whole.similarity(10.0))


def test_label_weights_scale_what_sharing_a_label_counts() -> None:
    stats = summed(slice(None))
    T = unit_labels(LABELS)[0].astype(np.float64)
    weights = np.array([1.0, 0.0, 2.0, 0.5, 1.0])
    U, u = plain_ridge(X.astype(np.float64), T, 10.0)
    V, _ = plain_ridge(B.astype(np.float64), T, 10.0)
    same(stats.similarity(10.0, weights), Similarity((U * weights) @ V.T, (u * weights) @ V.T))


def test_the_deviation_is_that_of_all_scores() -> None:
    stats = summed(slice(None))
    similarity = stats.similarity(10.0)
    assert similarity is not None
    scores = (X @ similarity.M + similarity.m) @ B.T
    about = scores - scores.mean(axis=1, keepdims=True)  # a query's mean score moves no rank
    assert stats.deviation(similarity) == pytest.approx(np.sqrt((about**2).mean()), rel=1e-4)


def test_nothing_follows_from_nothing() -> None:
    assert SufficientStats(12, 9).similarity(10.0) is None
    stats = SufficientStats(12, 9)
    stats.add(X, B, parse_labels(["the same"] * 400, 400))
    assert stats.similarity(10.0) is None


def test_state_round_trips_to_the_byte() -> None:
    stats = summed(slice(None))
    again = SufficientStats.from_arrays(stats.arrays(), list(stats.names), 12, 9)
    for name in ("aa", "cc", "ay", "cy"):
        assert getattr(again, name).tobytes() == np.ascontiguousarray(getattr(stats, name)).tobytes()


def test_sides_multiply_to_the_similarity() -> None:
    stats, weights = summed(slice(None)), np.array([1.0, 2.0, 0.5, 0.0, 3.0])
    sides = stats.sides(3.0, weights)
    assert sides is not None
    same(Similarity(sides.U @ sides.V, sides.u @ sides.V), stats.similarity(3.0, weights), 1e-4)
    assert SufficientStats(12, 9).sides(1.0) is None
