"""Belief in labels: the share of wrong ones is estimated, and the chance that those of a row are right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhash.numeric.labels import BINS, MIN_ROWS, LabelBelief, agreement, parse_labels
from stillhash.numeric.regression import regress
from stillhash.numeric.sufficient_stats import SufficientStats, unit_labels


@pytest.mark.parametrize("wrong", [0.0, 0.2, 0.5])
def test_the_share_of_wrong_labels_is_estimated(wrong: float) -> None:
    rng = np.random.default_rng(0)
    is_wrong = rng.random(20_000) < wrong
    agreements = np.where(is_wrong, rng.normal(0, 0.2, 20_000), rng.normal(0.7, 0.15, 20_000)).astype(np.float32)
    belief = LabelBelief.estimate(agreements, rng.normal(0, 0.2, 20_000).astype(np.float32))
    assert belief.wrong_share == pytest.approx(wrong, abs=0.05)
    chance = belief.chance(agreements)
    if wrong:
        assert chance[is_wrong].mean() < 0.3 < 0.9 < chance[~is_wrong].mean()
        assert len(belief.edges) == BINS - 1 and (np.diff(belief.right) >= 0).all()
    else:
        assert (chance == 1).all()


def test_few_rows_are_believed() -> None:
    belief = LabelBelief.estimate(np.zeros(MIN_ROWS - 1, np.float32), np.zeros(MIN_ROWS - 1, np.float32))
    assert belief.wrong_share == 0 and (belief.chance(np.float32([-1, 1])) == 1).all()


def test_agreement_is_a_cosine() -> None:
    A, B = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]]), np.array([[3.0, 4.0], [0.0, 2.0], [1.0, 1.0]])
    np.testing.assert_allclose(agreement(A, B), [1, 0, 0], atol=1e-6)


@given(st.integers(0, 2**32), st.integers(0, 200))
def test_labels_are_regressed_on_all_that_is_stored(seed: int, unlabelled: int) -> None:
    """Each unlabelled row is represented by the labelled ones, with their codes without labels."""
    rng = np.random.default_rng(seed)
    X, codes, plain = rng.standard_normal((40, 3)), *(rng.choice([-1.0, 1.0], (2, 40, 8)))
    labels = parse_labels([[int(c)] for c in rng.integers(0, 3, 40)], 40)
    stats = SufficientStats(3, 8)
    stats.add(X.astype(np.float32), codes.astype(np.float32), labels, plain=plain.astype(np.float32))
    stats.unlabelled = unlabelled
    sides = stats.sides(1.0)
    rows = np.concatenate([np.insert(codes, 0, 1, axis=1), np.insert(plain, 0, 1, axis=1)])
    weights = np.repeat([40 / (40 + unlabelled), unlabelled / (40 + unlabelled)], 40)[:, None]
    Y, names = unit_labels(labels)
    places = [list(stats.names).index(name) for name in names]
    targets = np.concatenate([Y, Y]).astype(np.float64)
    expected = regress(rows.T @ (weights * rows), (weights * targets).T @ rows, 1.0)
    assert sides is not None
    np.testing.assert_allclose(sides.V[:, places], expected.slopes, atol=1e-4)
    np.testing.assert_allclose(sides.v[places], expected.intercepts, atol=1e-4)
