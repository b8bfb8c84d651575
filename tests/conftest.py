"""Seeds, markers and fixtures of all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from stillhash.numeric import kernels
from tests.support.seeds import SEED_VARIABLE, run_seed

settings.register_profile("stillhash", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
settings.load_profile("stillhash")


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its option
def pytest_configure(config: pytest.Config) -> None:
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = run_seed()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"{SEED_VARIABLE}={run_seed()}")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start Ray, and keep in one worker what shares Ray, a browser or the result of a benchmark."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")
        groups = [marker for marker in ("cluster", "browser") if item.get_closest_marker(marker)]
        if item.path.parent.name == "bench":
            groups = groups or [f"bench-{item.path.stem}"]
        if groups:
            item.add_marker(pytest.mark.xdist_group(groups[0]))


@pytest.fixture(params=kernels.available())
def lanes(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run with each set of kernels in turn, the NumPy reference included."""
    with kernels.using(request.param):
        yield request.param


@pytest.fixture
def data_folder() -> Path:
    """Return the folder of real evaluation data that STILLHASH_DATA names, or skip."""
    folder = os.environ.get("STILLHASH_DATA")
    if not folder:
        pytest.skip("STILLHASH_DATA: expected a folder of evaluation data, got nothing")
    return Path(folder)
