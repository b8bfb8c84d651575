"""Groups of near codes equal those of the plain twin, for any data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhash import codes
from stillhash.errors import TooLarge
from stillhash.numeric import near_groups as module
from stillhash.numeric import reference
from stillhash.numeric.near_groups import distinct_words, near_groups


def some_codes(n: int, bits: int, seed: int, flips: float) -> Any:
    """Return codes near a few centres; some bits are the same in all of them."""
    rng = np.random.default_rng(seed)
    centres = rng.random((max(1, n // 4), bits)) < rng.choice([0.0, 0.5, 0.5, 0.9], bits)
    return codes.from_bits(centres[rng.integers(len(centres), size=n)] ^ (rng.random((n, bits)) < flips))


@given(
    st.integers(0, 120),
    st.sampled_from([8, 9, 31, 64, 65, 130]),
    st.integers(0, 12),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.02, 0.1]),
    st.sampled_from([0.0, 1.0, 1e9]),
)
def test_groups_equal_those_of_all_pairs(
    n: int, bits: int, distance: int, seed: int, flips: float, pair_cost: float
) -> None:
    stored = some_codes(n, bits, seed, flips)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PAIR_COST", pair_cost)  # so that few and many parts must be equal
        patch.setattr(module, "COMPARED_ROWS", 16)
        patch.setattr(module, "SAMPLE_ROWS", 10)
        shares: list[float] = []
        groups = near_groups(stored, bits, distance, shares.append)
    assert np.array_equal(groups, reference.near_groups(stored, distance))
    assert all(0 <= share <= 1 for share in shares)


def test_a_chain_is_one_group_and_the_distance_is_exact() -> None:
    chain = codes.from_bits(np.tril(np.ones((40, 40), bool), -1)[:, :39])  # each differs from the next in one bit
    assert near_groups(chain, 39, 1).tolist() == [0] * 40
    assert near_groups(chain[::2], 39, 1).tolist() == list(range(20))
    assert near_groups(chain[::-2], 39, 2).tolist() == [0] * 20


def test_a_million_equal_codes_are_compared_once() -> None:
    stored = np.zeros((1_000_000, 8), np.uint8)
    stored[500_000:] = 255
    assert near_groups(stored, 64, 3).tolist() == [0] * 500_000 + [500_000] * 500_000


def test_many_parts_are_chosen_where_buckets_would_be_large(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    choose = module._choose_parts

    def spy(*arguments: Any) -> Any:
        chosen.append(choose(*arguments))
        return chosen[-1]

    monkeypatch.setattr(module, "_choose_parts", spy)
    rng = np.random.default_rng(0)
    near_groups(rng.integers(0, 256, (20, 8), dtype=np.uint8), 64, 3)
    near_groups(rng.integers(0, 256, (2000, 8), dtype=np.uint8), 64, 3)
    near_groups(rng.integers(0, 256, (30_000, 2), dtype=np.uint8), 16, 1)
    assert [parts for parts, _ in chosen] == [0, 1, 2]


def test_work_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COMPARISONS", 1000)
    with pytest.raises(TooLarge, match="distance"):
        near_groups(some_codes(200, 64, 1, 0.4), 64, 30)


def test_distinct_words_are_those_of_numpy() -> None:
    stored = some_codes(300, 70, 3, 0.01)
    words, first, inverse = distinct_words(stored)
    _, expected, _ = np.unique(stored, axis=0, return_index=True, return_inverse=True)
    assert sorted(first.tolist()) == sorted(expected.tolist())
    assert np.array_equal(stored[first][inverse], stored) and len(words) == len(first)
