"""Groups by the cosine of rescoring codes: those of all pairs, without bias, whatever the number of rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhash.errors import TooLarge
from stillhash.numeric import cosine_groups as module
from stillhash.numeric.cosine_groups import (
    cosine_groups,
    count_tables,
    feature_groups,
    level_cosine,
    level_threshold,
)
from stillhash.numeric.near_groups import compress, join
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.rescoring import Rescorer


def turned(X: Any, cosines: Any, rng: np.random.Generator) -> Any:
    """Return rows that have these cosines with unit rows X."""
    away = rng.standard_normal(X.shape).astype(np.float32)
    away = unit_rows(away - np.einsum("ij,ij->i", away, X)[:, None] * X)
    return (cosines[:, None] * X + np.sqrt(1 - cosines**2)[:, None] * away).astype(np.float32)


def some_rows(n: int, dim: int, rng: np.random.Generator, lowest: float = 0.9) -> Any:
    """Return unit rows, of which a half are near others."""
    X = unit_rows(rng.standard_normal((n, dim)).astype(np.float32))
    half = n // 2
    if half:
        X[:half] = turned(X[half : 2 * half], rng.uniform(lowest, 1, half).astype(np.float32), rng)
    return X[rng.permutation(n)]


def all_pairs(units: Any, threshold: float) -> Any:
    """Return the groups by comparing every pair."""
    parent = np.arange(len(units))
    left, right = np.nonzero(units @ units.T >= threshold)
    join(parent, left, right)
    compress(parent)
    return parent


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("dim", [128, 1280])
def test_the_cosine_of_levels_is_that_of_the_arcsine_law(bits: int, dim: int) -> None:
    rng, rescorer = np.random.default_rng([bits, dim]), Rescorer(dim, bits)
    X = unit_rows(rng.standard_normal((2000, dim)).astype(np.float32))
    assert level_cosine(bits, 1.0) == 1
    for cosine in (0.5, 0.9, 0.97, 0.99):
        Y = turned(X, np.full(len(X), cosine, np.float32), rng)
        levels = [unit_rows(rescorer.levels(rescorer.encode(rows))) for rows in (X, Y)]
        measured = np.einsum("ij,ij->i", *levels)
        assert measured.mean() == pytest.approx(level_cosine(bits, cosine), abs=0.02 / math.sqrt(dim) + 0.001)
        assert (measured >= level_threshold(rescorer, cosine)).mean() > 0.95


def test_one_bit_has_the_arcsine_law() -> None:
    for cosine in (0.5, 0.9, 0.999):
        assert level_cosine(1, cosine) == pytest.approx(2 / math.pi * math.asin(cosine))


@given(
    st.integers(0, 150),
    st.sampled_from([5, 16, 100]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([0.5, 0.8, 0.97, 1.0]),
    st.integers(0, 2**31),
)
def test_groups_of_few_rows_equal_those_of_all_pairs(n: int, dim: int, bits: int, cosine: float, seed: int) -> None:
    rescorer, rng = Rescorer(dim, bits), np.random.default_rng(seed)
    codes = rescorer.encode(some_rows(n, dim, rng, 0.7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_ROWS", 32)
        shares: list[float] = []
        groups = cosine_groups(lambda places: codes[places], n, rescorer, cosine, shares.append)
    units = unit_rows(rescorer.levels(codes))
    threshold, products = level_threshold(rescorer, cosine), units @ units.T
    if not (np.abs(products - threshold) < 1e-5).any():  # else rounding decides
        assert np.array_equal(groups, all_pairs(units, threshold))
    assert shares[-1] == 1 and all(0 <= share <= 1 for share in shares)


@pytest.mark.medium
@pytest.mark.parametrize("dim", [64, 384, 1280])
def test_many_rows_find_nearly_all_pairs(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCANNED_ROWS", 100)
    rescorer, rng = Rescorer(dim, 2), np.random.default_rng(dim)
    X = some_rows(6000, dim, rng, 0.95)
    codes = rescorer.encode(X)
    groups = cosine_groups(lambda places: codes[places], len(codes), rescorer, 0.97)
    left, right = np.array(np.nonzero(np.triu(X @ X.T >= 0.97, 1)))
    assert len(left) > 1000 and (groups[left] == groups[right]).mean() >= 0.99
    units = unit_rows(rescorer.levels(codes))
    left, right = np.array(np.nonzero(np.triu(units @ units.T >= level_threshold(rescorer, 0.97), 1)))
    assert (groups[left] == groups[right]).mean() >= 0.99
    expected = all_pairs(units, level_threshold(rescorer, 0.97) - 1e-5)
    assert np.array_equal(expected[groups], expected)  # no group reaches beyond one of all pairs


def test_equal_rows_are_a_group_and_lost_rows_are_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rescorer, rng = Rescorer(24, 2), np.random.default_rng(0)
    X = unit_rows(rng.standard_normal((40, 24)).astype(np.float32))
    X[10:20] = X[3]
    X[20:22] = 0
    codes = rescorer.encode(X)
    codes[30:33] = 0xFF
    expected = np.arange(40)
    expected[10:20], expected[21] = 3, 20
    for scanned in (8192, 8):
        monkeypatch.setattr(module, "SCANNED_ROWS", scanned)
        assert np.array_equal(cosine_groups(lambda places: codes[places], 40, rescorer, 1.0), expected)


def test_features_are_compared_themselves() -> None:
    X = some_rows(50, 8, np.random.default_rng(1))
    assert np.array_equal(feature_groups(3 * X, 0.97), all_pairs(X, 0.97 - 1e-6))
    assert len(feature_groups(X[:0], 0.97)) == 0


def test_more_equal_bits_take_more_choices() -> None:
    counts = [count_tables(512, 0.08, equal) for equal in (4, 8, 16, 32)]
    assert counts == sorted(counts) and counts[0] > 1
    assert count_tables(512, 0.0, 32) == 1


def test_work_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCANNED_ROWS", 8)
    monkeypatch.setattr(module, "MAX_COMPARISONS", 10)
    rescorer = Rescorer(16, 2)
    codes = rescorer.encode(some_rows(500, 16, np.random.default_rng(2)))
    with pytest.raises(TooLarge, match="cosine"):
        cosine_groups(lambda places: codes[places], 500, rescorer, 0.6)
