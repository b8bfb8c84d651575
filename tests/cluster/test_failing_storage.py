"""A disk of a storage that fails, fills up or loses its power: commits are there as a whole or not at all.

STILLHASH_FAULTS is how many faults of each kind are tried, STILLHASH_CUTS how many cuts; STILLHASH_SEED repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stillhash.cluster.storage import Storage
from stillhash.errors import StoreFailed
from tests.cluster.storage_writer import check, take_step
from tests.collection import disk
from tests.collection.test_crash import ROOT
from tests.support.seeds import run_seed

STORAGE_FAULTS = int(os.environ.get("STILLHASH_FAULTS", "5"))
STORAGE_CUTS = int(os.environ.get("STILLHASH_CUTS", "60"))
RECORDED_STEPS = 9


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.platform != "linux":
        pytest.skip("LD_PRELOAD needs Linux")
    path = tmp_path_factory.mktemp("library") / "disk.so"
    disk.build(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", disk.KINDS)
def test_a_failing_disk_loses_no_commit(library: Path, tmp_path: Path, kind: str) -> None:
    seed = str(int(run_seed()) % 2**31)
    command = [sys.executable, "-m", "tests.cluster.storage_writer", "faults", str(tmp_path), str(STORAGE_FAULTS), seed]
    process = subprocess.run(
        [*command, kind], check=True, stdout=subprocess.PIPE, cwd=ROOT, env=disk.preloaded(library), timeout=500
    )
    result = json.loads(process.stdout)
    print(f"{kind}: {result['tried']} faults of {result['calls']}, {result['failed']} calls failed")
    assert not result["wrong"], "\n".join([f"seed {seed}", *result["wrong"]])
    assert result["tried"] and result["failed"]
    assert result["reported"] or kind in ("remove", "shaky")  # what cannot be removed is garbage for a while


@pytest.mark.slow
def test_a_power_cut_loses_no_commit(library: Path, tmp_path: Path) -> None:
    seed = int(run_seed()) % 2**31
    (tmp_path / "disk").mkdir()
    command = [sys.executable, "-m", "tests.cluster.storage_writer", "record", str(tmp_path / "disk")]
    environment = disk.preloaded(library)
    subprocess.run([*command, str(tmp_path / "log"), str(RECORDED_STEPS)], check=True, cwd=ROOT, env=environment)
    log = list(disk.changes(tmp_path / "log"))
    rng, power, played, interrupted = random.Random(seed), disk.Disk(tmp_path / "disk"), 0, 0
    for position in sorted(rng.randrange(len(log) + 1) for _ in range(STORAGE_CUTS)):
        for change in log[played:position]:
            power.play(change)
        played = position
        power.lose_power(tmp_path / "left", rng)
        try:
            storage = Storage(tmp_path / "left" / "storage", create=not power.marked)
            after = check(storage)
            assert after in (power.marked, power.marked + 1)
            interrupted += after > power.marked
            assert take_step(storage).number == after + 1 and check(storage) == after + 1
        except Exception as error:
            error.add_note(f"seed {seed}, cut at {position} of {len(log)}, {power.marked} commits acknowledged")
            raise
        shutil.rmtree(tmp_path / "left")
    assert power.marked and STORAGE_CUTS >= 30


def test_a_full_disk_is_reported_and_works_again(tmp_path: Path) -> None:
    """On a real file system of 256 KiB, where this process may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("this process may not mount a file system")
    try:
        storage = Storage(folder / "storage")
        for _ in range(3):
            take_step(storage)
        filler = folder / "filler"
        with pytest.raises(OSError), filler.open("wb") as file:
            file.write(bytes(1 << 20))
        for _ in range(2):
            with pytest.raises(StoreFailed):
                take_step(storage)
        assert check(storage) == 3
        filler.unlink()
        assert take_step(storage).number == 4 and check(storage) == 4
    finally:
        subprocess.run(["umount", str(folder)], check=True)
