from __future__ import annotations

from collections.abc import Iterator

import pytest

from stillhash.numeric import kernels
from stillhash.search.miwq import MIWQ
from tests.contracts.searchers import *  # noqa: F403
from tests.contracts.searchers import Make


class Eager(MIWQ):
    """Merges after every other write, so that most answers come from tables, a tail and masked rows together."""

    writes = 0

    def _publish(self, *args: object) -> None:
        super()._publish(*args)  # type: ignore[arg-type]
        self.writes += 1

    def search(self, *args: object, **options: object) -> object:  # type: ignore[override]
        if self.writes % 2:
            self.merge()
        return super().search(*args, **options)  # type: ignore[arg-type]


@pytest.fixture(params=[(None, None), (None, 5), ("numpy", None)], ids=["native", "five tables", "numpy"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    lanes, tables = request.param
    with kernels.using(lanes or kernels.lanes()):
        yield lambda bits: Eager(bits, tables=tables, threads=2)
