"""kill -9 at any moment: what was acknowledged is there, and what was under way is there as a whole or not at all.

STILLHASH_KILLS is how many processes are killed; several hundred make a campaign.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import stillhash
from tests.collection.crash_writer import KEEP, imagine, opened, step_at
from tests.collection.fixtures import BITS, DIM, INIT, LEARN
from tests.collection.reference import Twin, agree
from tests.support.seeds import run_seed
from tests.support.toys import toy

KILLS = int(os.environ.get("STILLHASH_KILLS", "15"))
PATIENCE = 0.25  # the longest that a process lives once it is ready, in seconds
QUERIES = toy(2, DIM, 4, seed=77).X
ROOT = Path(__file__).parents[2]


def acknowledged(path: Path, seed: int, number: int, delay: float) -> int:
    """Lets a process take steps from this number on and kills it after a while; the number of the step that is next."""
    command = [sys.executable, "-m", "tests.collection.crash_writer", str(path), str(seed), str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(delay)
        assert process.poll() is None, "it ended before it was killed"
        os.kill(process.pid, signal.SIGKILL)
        told = process.stdout.read().splitlines(keepends=True)
    lines = [line for line in told if line.endswith(b"\n")]
    assert [int(line) for line in lines] == list(range(number, number + len(lines)))
    return number + len(lines)


def differs(collection: stillhash.Collection, twin: Twin) -> bool:
    """Whether the collection holds something else than the twin."""
    stats = collection.stats()
    told = [(v["version"], v["tag"]) for v in collection.versions()]
    if (stats["items"], stats["pending"], stats["version"]) != (len(twin.items), len(twin.lessons), twin.version):
        return True
    if told != [(number, version.tag) for number, version in sorted(twin.versions.items())]:
        return True
    found = collection.get(list(twin.items))
    wanted = [(entry.labels, entry.metadata) for entry in twin.items.values()]
    if [item and (item.labels, item.metadata) for item in found] != wanted:
        return True
    for query in QUERIES:
        hits = [(hit.score, hit.id) for hit in collection.search(query, 10_000).hits]
        if twin.hasher is not None and hits != twin.ranking(query):
            return True
    return False


def survive(path: Path, seed: int, kills: int, chance: random.Random) -> tuple[int, int]:
    """Kills one process after the other over one store; steps that were acknowledged, and steps cut short but kept."""
    twin = Twin(BITS, INIT, LEARN, KEEP)
    number = kept = 0
    for _ in range(kills):
        after = acknowledged(path, seed, number, chance.uniform(0, PATIENCE))
        for step in range(number, after):
            imagine(twin, *step_at(seed, step))
        with opened(str(path)) as collection:
            if differs(collection, twin):
                imagine(twin, *step_at(seed, after))
                after, kept = after + 1, kept + 1
                assert not differs(collection, twin), f"seed {seed}, step {after - 1}: {step_at(seed, after - 1)[0]}"
            assert collection.verify() == []
            if twin.hasher is not None:
                agree(collection, twin, QUERIES[0], 10, {"odd": True})
            collection.delete([])  # the first write tidies up
            stats = collection.stats()
            assert len(list((path / "segments").iterdir())) == stats["segments"]
        number = after
    return number, kept


def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    chance = random.Random(run_seed())
    seed, left, steps, kept = chance.randrange(2**32), KILLS, 0, 0
    while left:  # each store is killed fifteen times, from before it exists
        some = min(left, 15)
        found = survive(tmp_path / str(left), seed + left, some, chance)
        steps, kept, left = steps + found[0], kept + found[1], left - some
    print(f"{KILLS} kills, {steps} acknowledged steps, {kept} that were cut short but kept")
    assert steps > 0
