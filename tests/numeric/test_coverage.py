"""Greedy coverage equals its slow twin, and a batch does not repeat itself."""

import numpy as np
import pytest

from stillhash.collection.learning.label_quality import cover_greedily, similarity_to
from stillhash.numeric.regression import unit_rows


def slow_cover(similarity: np.ndarray, covered: np.ndarray, weights: np.ndarray, count: int) -> list[int]:
    """Try every column that is left, and take the one that adds most, the first among equals."""
    chosen: list[int] = []
    while len(chosen) < min(count, similarity.shape[1]):
        best, best_gain = -1, -1.0
        for column in range(similarity.shape[1]):
            gain = float((np.maximum(similarity[:, column] - covered, 0) * weights).sum())
            if column not in chosen and gain > best_gain:
                best, best_gain = column, gain
        chosen.append(best)
        covered = np.maximum(covered, similarity[:, best])
    return chosen


@pytest.mark.parametrize("seed", range(8))
def test_equals_the_slow_twin(seed: int) -> None:
    # Multiples of 1/16 and small weights: sums are exact in any order, so equal gains are equal in both.
    rng = np.random.default_rng(seed)
    similarity = rng.integers(0, 17, (40, 25)).astype(np.float32) / np.float32(16)
    covered = rng.integers(0, 9, 40).astype(np.float32) / np.float32(16)
    weights = rng.integers(0, 4, 40).astype(np.float32)
    chosen = cover_greedily(similarity, covered, weights, 12)
    assert chosen.rows.tolist() == slow_cover(similarity, covered, weights, 12)
    assert (np.diff(chosen.gains) <= 0).all()


def test_takes_all_columns_where_there_are_fewer() -> None:
    similarity = np.eye(3, dtype=np.float32)
    assert sorted(cover_greedily(similarity, np.zeros(3, np.float32), np.ones(3, np.float32), 9).rows) == [0, 1, 2]


def test_chooses_one_row_of_each_group_before_any_group_again() -> None:
    rng = np.random.default_rng(0)
    centres, groups = rng.normal(size=(5, 64)), rng.integers(0, 5, 200)
    X = unit_rows((centres[groups] + 0.2 * rng.normal(size=(200, 64))).astype(np.float32))
    chosen = cover_greedily(similarity_to(X, X), np.zeros(200, np.float32), np.ones(200, np.float32), 5)
    assert sorted(groups[chosen.rows]) == [0, 1, 2, 3, 4]
