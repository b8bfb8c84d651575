"""A disk that fails: each step is done or says what failed, and what was acknowledged is there afterwards.

STILLHASH_FAULTS is how many faults of each kind are tried, each in a process of its own; 2000 are all there are, a
campaign. STILLHASH_FAULT_KINDS chooses among the kinds (disk.py), and STILLHASH_SEED repeats a run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.collection import disk
from tests.collection.test_crash import ROOT
from tests.support.seeds import run_seed

FAULTS = int(os.environ.get("STILLHASH_FAULTS", "4"))
KINDS = os.environ.get("STILLHASH_FAULT_KINDS", " ".join(disk.KINDS)).split()


def test_a_failing_disk_is_told_and_loses_nothing_that_was_acknowledged(library: Path, tmp_path: Path) -> None:
    seed = run_seed()
    (tmp_path / "disk").mkdir()
    command = [sys.executable, "-m", "tests.collection.faulty", str(tmp_path / "disk"), str(FAULTS), seed, *KINDS]
    process = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT, env=disk.preloaded(library))
    found = json.loads(process.stdout)
    for kind, told in found.items():
        print(f"{kind}: {told['tried']} faults of {told['calls']}, {len(told['wrong'])} of them wrong")
    wrong = [f"{kind} {at}:\n{text}" for kind, told in found.items() for at, text in told["wrong"].items()]
    assert not wrong, "\n".join([f"seed {seed}", *wrong])
    assert all(told["tried"] for told in found.values())
