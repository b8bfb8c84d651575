"""The code for Windows, on a Linux that refuses what Windows refuses (tests/support/windows_stand_in.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in reads /proc, to know the files in use")


def run(*arguments: str) -> str:
    """Run Python at the root of the repository; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8")
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a process saw that went through the whole life of a collection."""
    folder = tmp_path_factory.mktemp("windows")
    strict = ("-X", "warn_default_encoding", "-W", "error")
    result: dict[str, Any] = json.loads(run(*strict, "-m", "tests.platform.windows_process", str(folder)))
    return result


def test_no_row_is_lost(seen: dict[str, Any]) -> None:
    assert seen["items"] == seen["imported"] == 400 - 10 - 2
    assert seen["same in c"] and seen["same in copy"]


def test_compaction_removes_files_that_its_own_process_had_mapped(seen: dict[str, Any]) -> None:
    assert seen["after compact"] == [".columns", ".features", ".rescoring", ".tiles"]


def test_files_that_a_search_uses_are_reported_and_removed_later(seen: dict[str, Any]) -> None:
    assert seen["remains while searched"] == seen["verify while searched"] == 1
    assert seen["remains"] == [] and seen["verify"] == [] and seen["segments"] == 4


def test_a_closed_collection_has_no_file_open_or_mapped(seen: dict[str, Any]) -> None:
    assert seen["open after close"] == []


@pytest.mark.slow
def test_the_tests_of_collections_pass() -> None:
    files = ("forgetting", "snapshot", "repair", "upgrade_folders")
    tests = [f"tests/collection/test_{name}.py" for name in files]
    run("-m", "pytest", "-p", "tests.support.like_windows", "-p", "no:cacheprovider", "-x", "-m", "not slow", *tests)
