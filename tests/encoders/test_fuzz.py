"""Damaged files of every kind: each is decoded or refused, within bounds of time and memory, and none is the end of a
process. STILLHASH_FUZZ=5000 tries so many; `-s` shows the counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.encoders.fuzzing import MEMORY, damaged
from tests.encoders.sample_images import samples

FILES = int(os.environ.get("STILLHASH_FUZZ", "320"))
ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("STILLHASH_FUZZ_SEED", "0"))


def run_fuzzing(first: int, end: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.encoders.fuzzing", str(SEED), str(first), str(end)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600 + (end - first), check=False)
    last = child.stdout.strip().rpartition("\n")[2]
    if child.returncode:
        pytest.fail(f"exit code {child.returncode} at file {last} of seed {SEED}\n{child.stderr[-3000:]}")
    counts: dict[str, Any] = json.loads(last)
    return counts


@pytest.mark.nightly
def test_damaged_files_are_decoded_or_refused() -> None:
    counts = run_fuzzing(0, FILES)
    print(counts)
    assert counts["decoded"] + counts["refused"] == FILES
    assert counts["decoded"] > FILES / 20 and counts["refused"] > FILES / 4
    assert counts["peak_mib"] < MEMORY / 2**20


def test_damage_follows_from_the_seed() -> None:
    files = [damaged(3, n) for n in range(len(samples()))]
    assert files == [damaged(3, n) for n in range(len(samples()))] != [damaged(4, n) for n in range(len(samples()))]
    assert [name for name, _ in files] == list(samples())


@pytest.mark.nightly
@pytest.mark.parametrize(("what", "code"), [("memory", 1), ("time", -14), ("crash", -11)])
def test_the_limits_are_enforced(what: str, code: int) -> None:
    """A decoder that takes too much memory or time, or crashes, is counts from one that refuses."""
    statement = {
        "memory": "fuzzing.decode = lambda *a, **k: bytearray(fuzzing.MEMORY + 1)",
        "time": "fuzzing.SECONDS = 1; fuzzing.decode = lambda *a, **k: time.sleep(60)",
        "crash": "fuzzing.decode = lambda *a, **k: os.kill(os.getpid(), 11)",
    }[what]
    script = f"import os, time; from tests.encoders import fuzzing; {statement}; fuzzing.main(0, 0, 1)"
    child = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert child.returncode == code, child.stderr
    assert child.stdout.startswith(b"0 jpeg")
