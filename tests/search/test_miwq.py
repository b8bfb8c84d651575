from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stillhash import Scan
from stillhash.errors import InvalidInput
from stillhash.numeric import kernels
from stillhash.search.miwq import MIWQ
from tests.contracts.saved_indexes import *  # noqa: F403
from tests.contracts.searchers import *  # noqa: F403
from tests.contracts.searchers import Make, random_codes


class EagerMIWQ(MIWQ):
    """Merges after every other write, so that most answers come from tables, unmerged and masked rows together."""

    writes = 0

    def _publish(self, *args: object) -> None:
        super()._publish(*args)  # type: ignore[arg-type]
        self.writes += 1

    def search(self, *args: object, **options: object) -> object:  # type: ignore[override]
        if self.writes % 2:
            self.merge()
        return super().search(*args, **options)  # type: ignore[arg-type]


@pytest.fixture(
    params=[(None, None), (None, 5), pytest.param(("numpy", None), marks=pytest.mark.slow)],
    ids=["native", "five tables", "numpy"],
)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    lanes, tables = request.param
    with kernels.using(lanes or kernels.lanes()):
        yield lambda bits: EagerMIWQ(bits, tables=tables, threads=2)


def test_merges_happen_in_the_background_and_drop_removed_rows() -> None:
    rng = np.random.default_rng(0)
    codes, weights = random_codes(rng, 60_000, 32), rng.standard_normal((3, 32)).astype(np.float32)
    index, plain = MIWQ(32), Scan(32)
    for part in np.array_split(codes, 30):
        index.add(part)
        plain.add(part)
        removed = np.unique(rng.integers(0, len(plain), 50))
        assert index.remove(removed) == plain.remove(removed)
        for got, expected in zip(index.search(weights, 20), plain.search(weights, 20), strict=True):
            np.testing.assert_array_equal(got, expected)
    index.wait_for_merge()
    assert index.state.tables is not None
    index.merge()
    assert index.state.tables.rows == len(index) and not index.state.unmerged and index.state.tables.live is None
    for got, expected in zip(index.search(weights, 20), plain.search(weights, 20), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_ids_far_apart_are_kept_as_they_are() -> None:
    rng = np.random.default_rng(1)
    codes, weights = random_codes(rng, 3000, 32), rng.standard_normal((3, 32)).astype(np.float32)
    ids = rng.choice(2**60, 3000, replace=False)
    index, plain = MIWQ(32), Scan(32)
    for searcher in (index, plain):
        searcher.add(codes, ids)
    index.merge()
    assert index.remove(ids[:100]) == plain.remove(ids[:100]) == 100
    for got, expected in zip(index.search(weights, 20), plain.search(weights, 20), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_memory_is_as_documented() -> None:
    index = MIWQ(64, tables=4)
    index.add(random_codes(np.random.default_rng(2), 100_000, 64))
    index.merge()
    tables = index.state.tables
    assert tables is not None
    assert tables.nbytes == 4 * 100_000 * (4 + 8) + 4 * 4 * (2**16 + 1)


@pytest.mark.parametrize("tables", [0, 1, 33, 2.0, "2"])
def test_bad_numbers_of_tables(tables: Any) -> None:
    with pytest.raises(InvalidInput, match="tables"):
        MIWQ(32, tables=tables)
