"""Seeds, markers and fixtures of all tests."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from stillhash.numeric import kernels
from tests.support.seeds import SEED_VARIABLE, run_seed

NEEDS_POSIX = (  # limits of the process, modes of files, signals, links, pipes and /proc
    *("cluster", "faults", "fuzz", "encoders/test_fuzz.py", "encoders/test_files.py", "numeric/test_threads.py"),
    *("collection/test_read_only_folder.py", "collection/test_hostile_store.py", "collection/test_crash.py"),
    *("server/test_limits.py", "server/test_crash.py", "server/test_tls.py"),
)
collect_ignore = list(NEEDS_POSIX) if sys.platform == "win32" else []

NIGHTLY = ("benchmarks", "faults", "server/browser")  # folders of which `make test` runs the smoke tests

# Examples of each property whose test does not say how many: --hypothesis-profile quick. Of a test that does, none has
# more if quick, and every night it has as many times more as the others.
EXAMPLES = {"quick": 20, "standard": 100, "nightly": 500}
for profile, examples in EXAMPLES.items():
    settings.register_profile(
        profile, deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
settings.load_profile("standard")


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its option
def pytest_configure(config: pytest.Config) -> None:
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = run_seed()


def pytest_report_header() -> list[str]:
    """Say which tests are left out."""
    return [f"left out, since they need a POSIX system: {', '.join(collect_ignore)}"] if collect_ignore else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"{SEED_VARIABLE}={run_seed()}")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a test by the length of a long text, not by the text: workers send each other all names."""
    return f"{argname} of {len(val)}" if isinstance(val, str | bytes) and len(val) > 100 else None


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start Ray or a browser, and nightly ones; keep in one worker what shares Ray or a page.

    Each worker may have a browser of its own: they take turns with the files of browser tests.
    """
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
        scale_examples(getattr(item, "obj", None), item.config.getoption("--hypothesis-profile") or "standard")
        folder = item.path.parent.relative_to(Path(__file__).parent).as_posix()
        is_long = item.get_closest_marker("cluster") or (folder == "cluster" and item.get_closest_marker("slow"))
        if (folder in NIGHTLY or is_long) and not item.get_closest_marker("smoke"):
            item.add_marker("nightly")
        groups = ["cluster"] if item.get_closest_marker("cluster") else []
        if item.get_closest_marker("browser"):
            groups.append("browser" if item.get_closest_marker("smoke") else f"browser-{item.path.stem}")
        if item.path.parent.name == "benchmarks":
            groups.append(f"bench-{item.path.stem}")
        if groups:
            item.add_marker(pytest.mark.xdist_group(groups[0]))


def scale_examples(test: Any, profile: str) -> None:
    """Let a property whose test says how many examples it has follow the profile, too."""
    own = getattr(test, "_hypothesis_internal_use_settings", None)
    if own is None or own.max_examples == EXAMPLES[profile] or hasattr(test, "is_scaled"):
        return
    factor = EXAMPLES[profile] // EXAMPLES["standard"]
    count = own.max_examples * factor if factor else min(own.max_examples, EXAMPLES[profile])
    test._hypothesis_internal_use_settings = settings(own, max_examples=count)
    test.is_scaled = True  # once, though it may be of several tests


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail where pytest-xdist has not read the groups, since each worker would start Ray and browsers of its own."""
    if session.config.getoption("loadgroup", False):
        alone = [
            item.nodeid for item in session.items if item.get_closest_marker("xdist_group") and "@" not in item.nodeid
        ]
        if alone:
            raise pytest.UsageError(f"pytest-xdist: expected {alone[0]} to name its group; is pytest too new for it?")
    gc.freeze()  # thousands of tests live until the end, so no collection of garbage need look at them


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
