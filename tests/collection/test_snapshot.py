"""Snapshots are collections of their own, of one commit, also while others write."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import stillhash
from stillhash.errors import Conflict
from tests.collection.fixtures import DIM, begin, some_rows
from tests.collection.reference import agree
from tests.support.toys import toy

QUERIES = toy(3, DIM, 4, seed=77).X


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("rows", [0, 20, 320])
def test_snapshot_answers_as_the_original(tmp_path: Path, rows: int, read_only: bool) -> None:
    collection, twin = begin(tmp_path / "c", rows)
    collection.seal()
    collection.upsert(["x", "y"], *some_rows(2, seed=3))
    twin.put(["x", "y"], *some_rows(2, seed=3))
    source = stillhash.open(tmp_path / "c", read_only=True) if read_only else collection
    before = source.search(QUERIES, 50)
    size = source.snapshot(tmp_path / "copies" / "s")
    collection.delete(["x"])
    with stillhash.open(tmp_path / "copies" / "s") as copy:
        assert copy.verify() == []
        assert copy.stats()["disk_bytes"] > 0 and size > 4096
        assert copy.search(QUERIES, 50) == before
        copy.upsert(["z"], *some_rows(1, seed=4))
        twin.put(["z"], *some_rows(1, seed=4))
        if rows == 320:
            assert copy.learn(*some_rows(30, seed=5)[:2]) == twin.learn(*some_rows(30, seed=5)[:2])
            agree(copy, twin, QUERIES[0], 50)
    assert collection.get(["z"]) == [None]
    assert [file.name for file in (tmp_path / "copies").iterdir()] == ["s"]
    source.close()


def test_existing_folder_is_refused(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 20)
    (tmp_path / "existing").mkdir()
    for name in ("existing", "c"):
        with pytest.raises(Conflict, match=r"^path"):
            collection.snapshot(tmp_path / name)
    assert not list((tmp_path / "existing").iterdir())
    collection.close()


def test_snapshots_while_writing_are_of_one_commit(tmp_path: Path) -> None:
    """Each commit adds a pair: a snapshot must not hold half of one."""
    collection, _ = begin(tmp_path / "c", 320)
    done = threading.Event()

    def write() -> None:
        rng = np.random.default_rng(0)
        for n in range(60):
            collection.add([f"p{n}", f"q{n}"], *some_rows(2, seed=n))
            if rng.random() < 0.3:
                collection.compact()
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    snapshots = 0
    with stillhash.open(tmp_path / "c", read_only=True) as reader:
        while not done.is_set() or not snapshots:
            reader.snapshot(tmp_path / f"s{snapshots}")
            snapshots += 1
    writer.join()
    collection.close()
    for n in range(snapshots):
        with stillhash.open(tmp_path / f"s{n}", read_only=True) as copy:
            assert copy.verify() == []
            count = copy.count()
            assert count % 2 == 0
            pairs = [item is not None for p in range(60) for item in copy.get([f"p{p}", f"q{p}"])]
            assert sum(pairs) == count - 320 and pairs == sorted(pairs, reverse=True)
            assert len(copy.search(QUERIES[0], 10_000).hits) == count
