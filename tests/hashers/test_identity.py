"""Hash functions that are the features themselves: codes of signs are exact, and all else learns as ever."""

from __future__ import annotations

import numpy as np
import pytest

from stillhash import Tally, codes, load
from stillhash.errors import InvalidInput
from stillhash.numeric.codes import signs
from tests.support.toys import toy

BITS = 20


def fitted() -> tuple[Tally, np.ndarray, np.ndarray]:
    X, Y = toy(400, BITS, 4)
    stored = codes.from_floats(X - X.mean(axis=0))
    hasher = Tally(bits=BITS, init="identity", center=False, codes_see_labels=False)
    return hasher.fit(signs(stored, BITS)), stored, Y


@pytest.mark.parametrize("unit_norm", [True, False])
def test_signs_are_encoded_and_decoded_exactly(lanes: str, unit_norm: bool) -> None:
    _, stored, _ = fitted()
    hasher = Tally(bits=BITS, init="identity", center=False, unit_norm=unit_norm).fit(signs(stored, BITS))
    assert np.array_equal(hasher.encode(signs(stored, BITS)), stored)
    assert np.array_equal(hasher.functions().decode(stored), signs(stored, BITS))
    assert np.array_equal(hasher.weigh(signs(stored, BITS)), signs(stored, BITS))  # Hamming distance, at first


def test_it_learns_and_is_saved() -> None:
    hasher, stored, Y = fitted()
    hasher.partial_fit(signs(stored, BITS), Y)
    assert hasher.model().learnt and np.array_equal(hasher.encode(signs(stored, BITS)), stored)
    assert load(hasher.state()).state() == hasher.state()


def test_features_are_as_many_as_bits() -> None:
    with pytest.raises(InvalidInput, match="init"):
        Tally(bits=BITS, init="identity").fit(toy(40, BITS + 1, 4).X)
