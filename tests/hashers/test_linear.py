"""Linear hash functions encode in one pass, and refuse what is not finite within it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stillhash.errors import InvalidInput
from stillhash.hashers import LSH, OHWEU
from stillhash.numeric.codes import pack
from stillhash.numeric.validation import check_features
from tests.support.toys import toy


@pytest.mark.parametrize("params", [{}, {"center": False}, {"unit_norm": False}, {"center": False, "unit_norm": False}])
def test_codes_are_the_signs_of_the_projections_of_prepared_rows(lanes: str, params: dict[str, Any]) -> None:
    X = toy(300).X
    hasher = LSH(bits=40, **params).fit(X[:100])
    codes = hasher.encode(X)
    for rows in (X[:9], X) if lanes != "numpy" else (X[:100],):
        np.testing.assert_array_equal(pack(hasher.project(hasher.prepare(rows))), codes[: len(rows)])
    np.testing.assert_array_equal(hasher.encode(X, threads=3), codes)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 2e15, -3e38])
@pytest.mark.parametrize("at", [(0, 0), (70, 5), (99, -1)])
def test_a_row_that_is_not_finite_is_refused_as_everywhere(lanes: str, wrong: float, at: tuple[int, int]) -> None:
    X = toy(100).X.copy()
    hasher = LSH(bits=16).fit(X)
    X[at] = wrong
    with pytest.raises(InvalidInput) as expected:
        check_features(X)
    with pytest.raises(InvalidInput) as refused:
        hasher.encode(X)
    assert str(refused.value) == str(expected.value)


def test_large_magnitudes_within_the_limit_are_encoded(lanes: str) -> None:
    X = toy(60).X.copy()
    hasher = LSH(bits=16).fit(X)
    expected = hasher.encode(X)
    X[3, 0] = 9e14
    np.testing.assert_array_equal(np.delete(hasher.encode(X), 3, axis=0), np.delete(expected, 3, axis=0))


@pytest.mark.parametrize("threads", [0, -1, 1.5])
def test_threads_are_a_positive_integer(threads: Any) -> None:
    X = toy(60).X
    with pytest.raises((InvalidInput, TypeError), match=r"^threads"):
        LSH(bits=16).fit(X).encode(X, threads=threads)


def test_fixed_codes_that_are_projected_again_keep_both_steps(lanes: str) -> None:
    X, Y = toy(200)
    hasher = OHWEU(bits=16).partial_fit(X, Y)
    np.testing.assert_array_equal(hasher.refresh(hasher.keep(X), lambda: X), hasher.encode(X))


@pytest.mark.medium
@pytest.mark.parametrize("unit_norm", [True, False])
def test_a_row_is_decoded_to_the_same_bits_in_any_batch(lanes: str, unit_norm: bool) -> None:
    X = toy(600).X
    hasher = LSH(bits=70, unit_norm=unit_norm).fit(X)  # more bits than features: some rows take all steps
    codes = hasher.encode(X)
    features = hasher.decode(codes)
    one_by_one = np.concatenate([hasher.decode(codes[r : r + 1]) for r in range(0, 600, 37)])
    np.testing.assert_array_equal(one_by_one, features[::37])
    np.testing.assert_array_equal(hasher.decode(codes[5:300]), features[5:300])
    assert (hasher.encode(features) == codes).mean() > 0.9
    assert hasher.decode(codes[:0]).shape == (0, X.shape[1])
