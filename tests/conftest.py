"""What all tests share: the lanes that run on this machine, and where real data lies, if it is given."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from stillhash.numeric import kernels

# New examples at every run here; the same ones each time where a red run would stand in somebody else's way.
settings.register_profile(
    "stillhash",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("stillhash")


@pytest.fixture(params=kernels.available())
def lanes(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each set of kernels in turn, the NumPy reference included."""
    with kernels.using(request.param):
        yield request.param


@pytest.fixture
def data_folder() -> Path:
    """The folder of real evaluation data, named by STILLHASH_DATA."""
    folder = os.environ.get("STILLHASH_DATA")
    if not folder:
        pytest.skip("STILLHASH_DATA does not name a folder of evaluation data")
    return Path(folder)
