"""An upgrade that is killed, or whose disk fails, at any moment: both collections are whole, and the next one finishes.

STILLHASH_FAULTS is how many faults of each kind are tried; 2,000 are all there are. STILLHASH_CUTS is how often the
power is cut. STILLHASH_SEED repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.collection import disk
from tests.collection.test_crash import ROOT
from tests.collection.test_failing_disk import FAULTS
from tests.collection.test_power import CUTS
from tests.collection.upgrade_process import check, original
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


@pytest.mark.slow
def test_power_cut(library: Path, tmp_path: Path) -> None:
    seed = run_seed()
    rng, states = random.Random(seed), Counter[str]()
    (tmp_path / "disk").mkdir()
    command = [sys.executable, "-m", "tests.collection.upgrade_process", "record"]
    command += [str(tmp_path / "disk"), str(tmp_path / "log")]
    subprocess.run(command, check=True, cwd=ROOT, env=disk.preloaded(library))
    log, power = list(disk.changes(tmp_path / "log")), disk.Disk(tmp_path / "disk")
    start = next(place for place, change in enumerate(log) if change.what == "a") + 1
    _, before, expected = original(tmp_path / "sound")
    positions, played = [rng.randrange(start, len(log) + 1) for _ in range(CUTS - CUTS // 3)], 0
    positions += [rng.randrange(len(log) - 12, len(log) + 1) for _ in range(CUTS // 3)]  # the folders are swapped here
    for position in sorted(positions):
        for change in log[played:position]:
            power.play(change)
        played = position
        power.lose_power(tmp_path / "left", rng)
        try:
            state = check(tmp_path / "left" / "golden", before, expected)
        except Exception as error:
            error.add_note(f"seed {seed}, cut at {position} of {len(log)}")
            raise
        assert power.marked < 2 or state == "format 5"
        states[state] += 1
        shutil.rmtree(tmp_path / "left")
    print(f"{CUTS} cuts of {len(log) - start} changes, left {dict(states)}")
    assert len(states) > 1
