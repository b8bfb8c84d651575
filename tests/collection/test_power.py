"""The power is cut at any moment: what was acknowledged is there, what was under way is there as a whole or not at all.

A process writes down each change it makes to its disk; where the log is cut, disk.py makes a folder that may be left.
STILLHASH_CUTS is how many cuts are tried; some thousands make a campaign. STILLHASH_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

from tests.collection import disk
from tests.collection.crash_writer import KEEP, imagine, opened, take
from tests.collection.fixtures import BITS, INIT, LEARN
from tests.collection.recorder import step_of
from tests.collection.reference import Twin
from tests.collection.test_crash import ROOT, differs
from tests.support.seeds import run_seed

CUTS = int(os.environ.get("STILLHASH_CUTS", "60"))
MOST = 150  # cuts of one log


def recorded(library: Path, folder: Path, seed: int) -> list[disk.Change]:
    """All that a process did to the disk, in order."""
    (folder / "disk").mkdir(parents=True)
    command = [sys.executable, "-m", "tests.collection.recorder", str(folder / "disk"), str(folder / "log"), str(seed)]
    subprocess.run(command, check=True, cwd=ROOT, env=disk.preloaded(library), timeout=120)
    return list(disk.changes(folder / "log"))


class Twins:
    """What a collection should hold after as many steps as are acknowledged, and after one more."""

    def __init__(self, seed: int) -> None:
        self.seed, self.steps = seed, [0, 1]
        self.both = [Twin(BITS, INIT, LEARN, KEEP) for _ in range(2)]
        imagine(self.both[1], *step_of(seed, 0))

    def reach(self, acknowledged: int) -> None:
        for which, twin in enumerate(self.both):
            for number in range(self.steps[which], acknowledged + which):
                imagine(twin, *step_of(self.seed, number))
            self.steps[which] = acknowledged + which


def check(store: Path, twins: Twins) -> bool:
    """Opens what is left; whether the step that was under way is there."""
    with opened(str(store)) as collection:
        kept = differs(collection, twins.both[0])
        assert not kept or not differs(collection, twins.both[1])
        assert collection.verify() == []
        if not kept:  # and all goes on from there
            take(collection, *step_of(twins.seed, twins.steps[0]))
            assert not differs(collection, twins.both[1])
    return kept


def cut(library: Path, folder: Path, seed: int, cuts: int) -> tuple[int, int]:
    """Cuts one log in so many places; the steps it has, and how often one that was under way was kept."""
    chance, log = random.Random(seed), recorded(library, folder, seed)
    power, twins, kept, played = disk.Disk(folder / "disk"), Twins(seed), 0, 0
    for place in sorted(chance.randrange(len(log) + 1) for _ in range(cuts)):
        for change in log[played:place]:
            power.play(change)
        played = place
        twins.reach(power.marked)
        power.lose_power(folder / "left", chance)
        try:
            kept += check(folder / "left" / "store", twins)
        except Exception as error:
            error.add_note(f"seed {seed}, cut at {place} of {len(log)}, {power.marked} steps acknowledged")
            raise
        shutil.rmtree(folder / "left")
    shutil.rmtree(folder)
    return sum(change.what == "a" for change in log), kept


def test_a_power_cut_loses_nothing_that_was_acknowledged(library: Path, tmp_path: Path) -> None:
    chance = random.Random(run_seed())
    left, steps, kept = CUTS, 0, 0
    while left:
        some = min(left, MOST)
        found = cut(library, tmp_path / str(left), chance.randrange(2**32), some)
        steps, kept, left = steps + found[0], kept + found[1], left - some
    print(f"{CUTS} cuts of {steps} steps; {kept} times a step that was under way was kept")
    assert steps > 0
