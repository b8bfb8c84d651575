"""A failing disk: each step succeeds or reports the failure, and what was acknowledged is there afterwards.

STILLHASH_FAULTS is how many faults of each kind are tried, each in a process of its own; 2,000 are all there are, a
campaign. STILLHASH_FAULT_KINDS selects kinds (disk.py), and STILLHASH_SEED repeats a run.
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
from tests.support.seeds import run_seed

FAULTS = int(os.environ.get("STILLHASH_FAULTS", "4"))
KINDS = os.environ.get("STILLHASH_FAULT_KINDS", " ".join(disk.KINDS)).split()


@pytest.mark.slow
def test_failing_disk_loses_nothing_acknowledged(library: Path, tmp_path: Path) -> None:
    seed = run_seed()
    (tmp_path / "disk").mkdir()
    command = [
        sys.executable,
        "-m",
        "tests.collection.fault_process",
        str(tmp_path / "disk"),
        str(FAULTS),
        seed,
        *KINDS,
    ]
    process = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT, env=disk.preloaded(library))
    results = json.loads(process.stdout)
    for kind, result in results.items():
        print(f"{kind}: {result['tried']} faults of {result['calls']}, {len(result['wrong'])} of them wrong")
    wrong = [f"{kind} {at}:\n{text}" for kind, result in results.items() for at, text in result["wrong"].items()]
    assert not wrong, "\n".join([f"seed {seed}", *wrong])
    assert all(result["tried"] for result in results.values())
