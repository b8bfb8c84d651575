"""Bridges between feature spaces."""

from __future__ import annotations

import numpy as np
import pytest

from stillhash.numeric.regression import RIDGES, fit_alignment, unit_rows


def described(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The same things in two spaces: two linear views of what they are, with noise."""
    rng = np.random.default_rng(seed)
    views = np.random.default_rng(9).standard_normal((6, 30 + 20))
    both = rng.standard_normal((rows, 6)) @ views + 0.3 * rng.standard_normal((rows, 50)) + 2.0
    return both[:, :30].astype(np.float32), both[:, 30:].astype(np.float32)


def cosines(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->i", unit_rows(X), unit_rows(Y))


@pytest.mark.medium
@pytest.mark.parametrize("rows", [25, 40, 200])
def test_what_crosses_points_where_it_should(rows: int) -> None:
    theirs, ours = described(rows)
    alignment, explained = fit_alignment(theirs, ours)
    X, Y = described(100, seed=1)
    middle = ours.mean(axis=0)
    right = cosines(alignment.apply(X) - middle, Y - middle)
    wrong = cosines(alignment.apply(X[::-1].copy()) - middle, Y - middle)
    assert np.median(right) > 0.85 and np.median(np.abs(wrong)) < 0.6
    assert 0.5 < explained <= 1


def test_the_error_of_leaving_one_out_is_what_fitting_without_it_gives() -> None:
    theirs, ours = described(24)
    Z, T = (unit_rows(X - X.mean(axis=0)).astype(np.float64) for X in (theirs, ours))
    Z -= Z.mean(axis=0)
    errors = []
    for ridge in RIDGES * np.square(Z).sum() / len(Z):
        squared = []
        for i in range(len(T)):
            keep = np.arange(len(T)) != i
            level, their_level = T[keep].mean(axis=0), Z[keep].mean(axis=0)
            X = Z[keep] - their_level
            A = np.linalg.solve(X.T @ X + ridge * np.eye(X.shape[1]), X.T @ (T[keep] - level))
            squared.append(np.square(T[i] - level - (Z[i] - their_level) @ A))
        errors.append(np.mean(squared))
    _, explained = fit_alignment(theirs, ours)
    chosen = errors[max(0, int(np.argmin(errors)) - 1)]
    assert explained == pytest.approx(1 - chosen / np.square(T - T.mean(axis=0)).mean(), abs=1e-5)


def test_what_few_pairs_explain_is_what_they_explain_of_others() -> None:
    rng = np.random.default_rng(5)
    theirs, ours = rng.standard_normal((40, 300)).astype(np.float32), rng.standard_normal((40, 20)).astype(np.float32)
    _, explained = fit_alignment(theirs, ours)  # which have nothing in common
    assert abs(explained) < 0.1


def test_what_is_all_alike_explains_nothing_and_crosses_finitely() -> None:
    same = np.ones((30, 4), np.float32)
    alignment, explained = fit_alignment(same, same)
    assert explained == 0 and np.isfinite(alignment.apply(same)).all()
