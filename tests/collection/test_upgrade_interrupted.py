"""An upgrade that is killed, or whose disk fails, at any moment: both collections are whole, and the next one finishes.

STILLHASH_FAULTS is how many faults of each kind are tried; 2,000 are all there are. STILLHASH_SEED repeats a run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.collection import disk
from tests.collection.test_crash import ROOT
from tests.collection.test_failing_disk import FAULTS
from tests.support.seeds import run_seed

FAULT_KINDS = [kind for kind in disk.KINDS if kind != "shaky"]


def run(folder: Path, most: int, kinds: list[str], environment: dict[str, str]) -> dict[str, int]:
    """Try faults in processes of their own; return how often each state was left."""
    seed = run_seed()
    command = [sys.executable, "-m", "tests.collection.upgrade_process", str(folder), str(most), seed, *kinds]
    process = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT, env=environment)
    states: dict[str, int] = {}
    wrong = []
    for kind, result in json.loads(process.stdout).items():
        print(f"{kind}: {result['tried']} faults of {result['calls']}, left {result['states']}")
        wrong += [f"{kind} {at}:\n{text}" for at, text in result["wrong"].items()]
        for state, count in result["states"].items():
            states[state] = states.get(state, 0) + count
    assert not wrong, "\n".join([f"seed {seed}", *wrong])
    return states


def test_killed_at_any_moment(tmp_path: Path) -> None:
    states = run(tmp_path, FAULTS, ["kill"], dict(os.environ))
    assert states["interrupted"] and states["format 1"]  # before the last rename, and before the others


@pytest.mark.slow
def test_failing_disk(library: Path, tmp_path: Path) -> None:
    states = run(tmp_path, FAULTS, FAULT_KINDS, disk.preloaded(library))
    assert states["format 1"]
