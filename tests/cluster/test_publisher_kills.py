"""Publishers that are killed at any moment: the next one goes on, and no row is lost or doubled."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from stillhash import Collection
from stillhash.cluster.front import FrontCollection
from stillhash.cluster.manifest import read_latest
from stillhash.cluster.publish_plan import PublishedSource
from stillhash.cluster.storage import Storage
from stillhash.collection.storage.schema import get_meta
from tests.cluster.shard_threads import ShardThreads
from tests.collection.fixtures import BITS, begin, some_rows
from tests.support.seeds import run_seed

ROOT = Path(__file__).parents[2]
KILLS = 12


def write_some(collection: Collection, number: int) -> None:
    """Write a little of everything."""
    X, labels, metadata = some_rows(30, seed=number)
    collection.upsert([f"k{number}-{n}" for n in range(30)], X, labels, metadata, learn=False)
    collection.relabel([number, number + 100], [["new"], []], learn=False)
    collection.delete([200 + number, f"k{number - 1}-3"])
    if number % 5 == 4:
        collection.compact()


@pytest.mark.slow
def test_killed_publishers_lose_and_double_nothing(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 320)
    rng = random.Random(run_seed())
    command = [sys.executable, "-m", "tests.cluster.publisher_process"]
    command += [str(tmp_path / "c"), str(tmp_path / "storage"), str(BITS)]
    with collection:
        for number in range(KILLS):
            write_some(collection, number)
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
                assert process.stdout is not None
                if number % 3 == 0 or number == KILLS - 1:  # otherwise it may die before its first publication
                    process.stdout.readline()
                    write_some(collection, 50 + number)
                time.sleep(rng.uniform(0, 1.5))
                process.kill()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            while published_seq(tmp_path) != current_seq(collection):
                assert process.stdout.readline()
            process.kill()
        check_equal(collection, tmp_path)


def published_seq(folder: Path) -> int:
    source = PublishedSource.from_json(read_latest(Storage(folder / "storage")).source)
    return -1 if source is None else source.seq


def current_seq(collection: Collection) -> int:
    with collection._store.reading() as connection:
        return int(get_meta(connection, "seq"))


def check_equal(collection: Collection, folder: Path) -> None:
    shards = ShardThreads(folder / "storage")
    try:
        shards.ensure([0, 1], 1)
        with FrontCollection(folder / "storage") as front:
            front.wait_ready()
            names = collection.ids(limit=5000)
            assert front.ids(limit=5000) == names
            assert front.get(names) == collection.get(names)
            assert np.array_equal(front.codes(names), collection.codes(names))
            Q = some_rows(4, seed=9).X
            assert front.search(Q, 1000) == collection.search(Q, 1000)
            assert front.count({"labels": "new"}) == collection.count({"labels": "new"})
    finally:
        shards.close()
