"""kill -9 at any moment: what was acknowledged is there, and what was under way is there as a whole or not at all.

STILLHASH_KILLS is how many processes are killed; 500 make a campaign.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stillhash
from stillhash.collection.storage.audit import MAX_ENTRIES
from tests.collection.crash_writer import KEEP, open_collection, step_at, take_on_twin
from tests.collection.fixtures import BITS, DIM, INIT, LEARN
from tests.collection.reference import Twin, agree
from tests.support.seeds import run_seed
from tests.support.toys import toy

KILLS = int(os.environ.get("STILLHASH_KILLS", "15"))
KILLS_PER_STORE = 15
MAX_STEPS = 10  # that a process completes before it is killed
MAX_DELAY = 0.05  # seconds from the last of these steps to the kill, so that it hits the next at any moment
QUERIES = toy(2, DIM, 4, seed=77).X
ROOT = Path(__file__).parents[2]


def run_and_kill(path: Path, seed: int, number: int, steps: int, delay: float) -> int:
    """Let a process take steps from this number on, and kill it after so many; return the next step's number."""
    command = [sys.executable, "-m", "tests.collection.crash_writer", str(path), str(seed), str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        lines = [process.stdout.readline() for _ in range(steps)]
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        lines += [line for line in process.stdout.read().splitlines(keepends=True) if line.endswith(b"\n")]
    assert process.returncode == -signal.SIGKILL, "it ended before it was killed"
    assert [int(line) for line in lines] == list(range(number, number + len(lines)))
    return number + len(lines)


def differs(collection: stillhash.Collection, twin: Twin) -> bool:
    """Return whether the collection, or its audit log, holds anything else than the reference model."""
    if len(collection.audit(after=0, limit=MAX_ENTRIES)) != twin.changes:
        return True
    stats = collection.stats()
    versions = [(v["version"], v["tag"]) for v in collection.versions()]
    if (stats["items"], stats["pending"], stats["version"]) != (len(twin.items), len(twin.pending), twin.version):
        return True
    if versions != [(number, version.tag) for number, version in sorted(twin.versions.items())]:
        return True
    items = collection.get(list(twin.items))
    expected = [(entry.labels, entry.metadata) for entry in twin.items.values()]
    if [item and (item.labels, item.metadata) for item in items] != expected:
        return True
    for query in QUERIES:
        hits = [(hit.score, hit.id) for hit in collection.search(query, 10_000).hits]
        if twin.hasher is not None and hits != twin.ranking(query):
            return True
    return False


def survive(path: Path, seed: int, kills: int, rng: random.Random) -> tuple[int, int]:
    """Kill one process after another over one store; count acknowledged steps, and interrupted ones that are there."""
    twin = Twin(BITS, INIT, LEARN, KEEP)
    number = completed = 0
    for _ in range(kills):
        after = run_and_kill(path, seed, number, rng.randrange(MAX_STEPS), rng.uniform(0, MAX_DELAY))
        for step in range(number, after):
            take_on_twin(twin, *step_at(seed, step))
        with open_collection(path) as collection:
            if differs(collection, twin):
                take_on_twin(twin, *step_at(seed, after))
                after, completed = after + 1, completed + 1
                assert not differs(collection, twin), f"seed {seed}, step {after - 1}: {step_at(seed, after - 1)[0]}"
            assert collection.verify() == []
            if twin.hasher is not None:
                agree(collection, twin, QUERIES[0], 10, {"odd": True})
            collection.delete([])  # the first write removes files that are left over
            assert len(list((path / "segments").glob("*.tiles"))) == collection.stats()["segments"]
        number = after
    return number, completed


@pytest.mark.slow
def test_killed_writer_loses_nothing_acknowledged(tmp_path: Path) -> None:
    rng = random.Random(run_seed())
    seed, left, steps, completed = rng.randrange(2**32), KILLS, 0, 0
    while left:  # each store is killed from before it exists
        kills = min(left, KILLS_PER_STORE)
        results = survive(tmp_path / str(left), seed + left, kills, rng)
        steps, completed, left = steps + results[0], completed + results[1], left - kills
    print(f"{KILLS} kills, {steps} steps in the stores, {completed} of them interrupted")
    assert steps > 0
