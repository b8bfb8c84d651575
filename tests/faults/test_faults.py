"""Lack of memory, threads, file handles and disk, killed readers, a wrong clock: reported, and nothing is lost.

STILLHASH_FAULTS is how many faults of each kind are tried, and STILLHASH_SEED repeats a run. `make faults` tries many,
and prints the tables of docs/guarantees.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stillhash.errors import Busy, OutOfMemory
from tests.faults.injection import MEMORY, PYTHON_ARENA, THREAD, missing
from tests.faults.scenarios import (
    DISK,
    INDEX,
    LIBRARY_FAULTS,
    SERVER_FAULTS,
    Outcome,
    Workshop,
    clock_jumps,
    killed_reader,
    run_library,
)
from tests.support.seeds import run_seed

FAULTS = int(os.environ.get("STILLHASH_FAULTS", "8"))  # of a few, none may be reported: some are harmless
SECONDS = float(os.environ.get("STILLHASH_FAULT_SECONDS", "0.5"))
NO_THREADS = "threads", "process limit"
SYSTEM_FAULTS = [(module, kind) for _, module, kind in LIBRARY_FAULTS.values() if module != DISK]
pytestmark = pytest.mark.xdist_group("faults")  # the libraries are built once


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    if reason := missing():
        pytest.skip(reason)
    return Workshop(tmp_path_factory.mktemp("faults"))


def check(outcome: Outcome) -> Outcome:
    assert not outcome.wrong, "\n".join([f"seed {run_seed()}", *outcome.wrong])
    assert outcome.tried and outcome.reported
    return outcome


@pytest.mark.parametrize("kind", NO_THREADS)
def test_indexes_need_no_thread_but_their_own(workshop: Workshop, kind: str) -> None:
    outcome = check(run_library(workshop, INDEX, kind, 1, run_seed()))
    if "not enforced" in outcome.reported:
        pytest.skip("the limit of processes is not enforced here")


@pytest.mark.slow
@pytest.mark.parametrize(("module", "kind"), [pair for pair in SYSTEM_FAULTS if pair[1] not in NO_THREADS])
def test_library_reports_what_lacks_and_changes_nothing(workshop: Workshop, module: str, kind: str) -> None:
    most = 1 if module == INDEX else FAULTS  # of each verb
    check(run_library(workshop, module, kind, max(most, FAULTS // 4), run_seed()))


@pytest.mark.slow
@pytest.mark.parametrize("fault", SERVER_FAULTS)
def test_server_answers_goes_on_and_loses_nothing(workshop: Workshop, fault: str) -> None:
    check(SERVER_FAULTS[fault](workshop, SECONDS))


@pytest.mark.slow
def test_command_line_says_what_lacks(workshop: Workshop) -> None:
    injection, folder = workshop.injection(), workshop.new_folder()
    np.save(folder / "rows.npy", np.random.default_rng(0).standard_normal((4000, 1024)).astype(np.float32))

    def outcome(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "stillhash", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=injection.environment)
        return done.returncode, done.stderr.partition(":")[0].splitlines()[-1] if done.stderr else ""

    path = str(folder / "c")
    assert outcome("create", path, "--dim", "1024") == (0, "")
    for at in (1, 2, 3):
        injection.fail(MEMORY, "from then", at, PYTHON_ARENA + 1)
        assert outcome("add", path, str(folder / "rows.npy")) == (OutOfMemory.exit_code, "OutOfMemory")
    injection.fail(THREAD, "from then", 1)
    assert outcome("serve", path, "--port", "0", "--log", "off") == (Busy.exit_code, "Busy")
    injection.stop()
    assert outcome("add", path, str(folder / "rows.npy")) == (0, "")


@pytest.mark.slow
def test_killed_readers_hold_nothing_back(workshop: Workshop) -> None:
    assert set(check(killed_reader(workshop, 2)).reported) == {"log emptied"}


@pytest.mark.slow
def test_the_clock_may_jump_back(workshop: Workshop) -> None:
    check(clock_jumps(workshop))


def test_tables_of_the_guarantees_name_all_faults() -> None:
    text = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text()
    assert [fault for fault in (*LIBRARY_FAULTS, *SERVER_FAULTS) if f"| {fault} |" not in text] == []
