"""The grid makes sums exact, and moves a weight only below what a double could keep."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stillhash.numeric import reference
from stillhash.numeric.exact_scores import snap

weights = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(8, 64)),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
)


@given(weights, st.randoms())
def test_sums_are_exact_in_any_order(w: np.ndarray, random: object) -> None:
    for row in snap(w):
        exact = sum((Fraction(float(x)) for x in row), Fraction(0))
        shuffled = list(row)
        random.shuffle(shuffled)  # type: ignore[attr-defined]
        total = 0.0
        for x in shuffled:
            total += x
        assert Fraction(total) == exact


@given(weights)
def test_the_grid_moves_only_negligible_weights(w: np.ndarray) -> None:
    exact = w.astype(np.float64)
    total = np.abs(exact).sum(axis=1, keepdims=True)
    moved = np.abs(snap(w) - exact)
    assert (moved <= total * 2.0**-51).all()
    assert (moved[np.abs(exact) >= total * 2.0**-26] == 0).all()


@given(weights)
def test_the_grid_is_that_of_the_twin(w: np.ndarray) -> None:
    assert np.array_equal(snap(w), reference.snap(w))
