"""Digests of features: the same for equal rows, in any batch, and different for others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhash.numeric.codes import feature_digests


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_a_digest_is_its_definition_of_the_row_alone(dim: int, seed: int) -> None:
    X = np.random.default_rng(seed).standard_normal((7, dim)).astype(np.float32)
    factors = [int(number) | 1 for number in np.random.PCG64(0).random_raw(dim)]
    words = X.view(np.uint32).tolist()
    sums = [sum(a * b for a, b in zip(row, factors, strict=True)) % 2**64 for row in words]
    assert feature_digests(X).view(np.uint64).tolist() == sums
    assert [int(feature_digests(row[None])[0]) for row in X] == feature_digests(X).tolist()


def test_digests_stay_what_they_are() -> None:
    """They are stored, so no later release may compute others."""
    X = np.arange(12, dtype=np.float32).reshape(2, 6) / 4
    assert feature_digests(X).tolist() == [4443919568664002560, 4801426656908541952]


def test_zero_has_no_sign() -> None:
    X = np.array([[1, 0.0, 2], [1, -0.0, 2]], np.float32)
    assert len(set(feature_digests(X).tolist())) == 1


@pytest.mark.parametrize("scale", [1.0, 2.0**20, 2.0**-20])
def test_rows_that_differ_in_one_bit_have_other_digests(scale: float) -> None:
    X = np.full((2000, 64), scale, np.float32)
    places = np.random.default_rng(0).integers(0, (64, 32), (1999, 2))
    words = X.view(np.uint32)
    for row, (column, bit) in enumerate(np.unique(places, axis=0), 1):
        words[row, column] ^= np.uint32(1 << int(bit))
    count = 1 + len(np.unique(places, axis=0))
    assert len(set(feature_digests(X[:count]).tolist())) == count
