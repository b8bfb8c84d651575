"""The power is cut at any moment: what was acknowledged is there, what was under way is there as a whole or not at all.

A process logs each change it makes to its disk; where the log is cut, disk.py makes a folder that may be left.
STILLHASH_CUTS is how many cuts are tried; 2,000 make a campaign. STILLHASH_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.collection import disk
from tests.collection.crash_writer import KEEP, open_collection, take, take_on_twin
from tests.collection.fixtures import BITS, INIT, LEARN
from tests.collection.recorder import step_of
from tests.collection.reference import Twin
from tests.collection.test_crash import ROOT, differs
from tests.support.seeds import run_seed

CUTS = int(os.environ.get("STILLHASH_CUTS", "60"))
CUTS_PER_LOG = 150


def record_changes(library: Path, folder: Path, seed: int) -> list[disk.Change]:
    """Return all that a process did to the disk, in order."""
    (folder / "disk").mkdir(parents=True)
    command = [sys.executable, "-m", "tests.collection.recorder", str(folder / "disk"), str(folder / "log"), str(seed)]
    subprocess.run(command, check=True, cwd=ROOT, env=disk.preloaded(library), timeout=600)
    return list(disk.changes(folder / "log"))


class Twins:
    """Reference models after as many steps as are acknowledged, and after one more."""

    def __init__(self, seed: int) -> None:
        self.seed, self.steps = seed, [0, 1]
        self.both = [Twin(BITS, INIT, LEARN, KEEP) for _ in range(2)]
        take_on_twin(self.both[1], *step_of(seed, 0))

    def advance(self, acknowledged: int) -> None:
        for which, twin in enumerate(self.both):
            for number in range(self.steps[which], acknowledged + which):
                take_on_twin(twin, *step_of(self.seed, number))
            self.steps[which] = acknowledged + which


def check(store: Path, twins: Twins) -> bool:
    """Open what is left; return whether the interrupted step is there."""
    with open_collection(store) as collection:
        completed = differs(collection, twins.both[0])
        assert not completed or not differs(collection, twins.both[1])
        assert collection.verify() == []
        if not completed:  # and all continues from there
            take(store, collection, *step_of(twins.seed, twins.steps[0]))
            assert not differs(collection, twins.both[1])
    return completed


def cut(library: Path, folder: Path, seed: int, cuts: int) -> tuple[int, int]:
    """Cut one log in so many places; count its steps, and the interrupted ones that are there."""
    rng, log = random.Random(seed), record_changes(library, folder, seed)
    power, twins, completed, played = disk.Disk(folder / "disk"), Twins(seed), 0, 0
    for position in sorted(rng.randrange(len(log) + 1) for _ in range(cuts)):
        for change in log[played:position]:
            power.play(change)
        played = position
        twins.advance(power.marked)
        power.lose_power(folder / "left", rng)
        try:
            completed += check(folder / "left" / "store", twins)
        except Exception as error:
            error.add_note(f"seed {seed}, cut at {position} of {len(log)}, {power.marked} steps acknowledged")
            raise
        shutil.rmtree(folder / "left")
    shutil.rmtree(folder)
    return sum(change.what == "a" for change in log), completed


@pytest.mark.slow
def test_power_cut_loses_nothing_acknowledged(library: Path, tmp_path: Path) -> None:
    rng = random.Random(run_seed())
    left, steps, completed = CUTS, 0, 0
    while left:
        cuts = min(left, CUTS_PER_LOG)
        results = cut(library, tmp_path / str(left), rng.randrange(2**32), cuts)
        steps, completed, left = steps + results[0], completed + results[1], left - cuts
    print(f"{CUTS} cuts of {steps} steps; {completed} times an interrupted step was there")
    assert steps > 0
