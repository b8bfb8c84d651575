"""A collection takes little more disk than its content: unused pages are given back, and snapshots do not copy them."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import stillhash
from stillhash.collection.storage.database import MIN_CHECKPOINT_FRAMES, MIN_UNUSED_PAGES, PAGE_SIZE
from stillhash.files import pack_file_checksums

DIM, CHUNK_ROWS = 256, 1000
CHUNK_BYTES = CHUNK_ROWS * DIM * 4
LOG_BYTES = MIN_CHECKPOINT_FRAMES * PAGE_SIZE  # of the write-ahead log beside a small store.db
NOT_WORTH_FREEING = MIN_UNUSED_PAGES * PAGE_SIZE


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def compacted_bytes(collection: stillhash.Collection, copy: Path) -> int:
    """Return what a compaction would leave."""
    collection.snapshot(copy)
    with closing(stillhash.open(copy)) as other:
        other.compact()
    return folder_bytes(copy)


@pytest.mark.medium
@pytest.mark.parametrize("sizes", [[6000], [1000] * 6, [100] * 35, [2999, 1, 3000]])
@pytest.mark.parametrize("labelled", [True, False])
def test_after_any_add_little_is_unused(tmp_path: Path, sizes: list[int], labelled: bool) -> None:
    rng, path, stored = np.random.default_rng(0), tmp_path / "c", 0
    with closing(stillhash.open(path, dim=DIM, bits=64)) as collection:
        for number, size in enumerate(sizes):
            labels = rng.integers(0, 5, size) if labelled else None
            collection.add(range(stored, stored + size), rng.standard_normal((size, DIM)), labels)
            stored += size
            if stored % 1000 == 0 or size > 100:
                most = 1.5 * compacted_bytes(collection, tmp_path / f"copy {number}") + CHUNK_BYTES + LOG_BYTES
                assert folder_bytes(path) <= most


def test_pages_of_deleted_items_are_given_back(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "c"
    with closing(stillhash.open(path, dim=8, bits=16, init_rows=300)) as collection:
        collection.add(range(9000), rng.standard_normal((9000, 8)), metadata=[{"text": "x" * 500}] * 9000)
        collection.flush()
        before = folder_bytes(path)
        collection.delete(range(8500))
        collection.add([-1], rng.standard_normal((1, 8)))
        assert not collection.verify()
    assert (path / "store.db").stat().st_size < before / 4 + NOT_WORTH_FREEING
    with closing(stillhash.open(path)) as collection:
        assert collection.ids(limit=2) == [-1, 8500] and not collection.verify()


def test_a_snapshot_copies_what_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stillhash.collection.storage.database.MIN_UNUSED_PAGES", 10**9)
    rng, path = np.random.default_rng(0), tmp_path / "c"
    with closing(stillhash.open(path, dim=8, bits=16, init_rows=300)) as collection:
        collection.add(range(3000), rng.standard_normal((3000, 8)), metadata=[{"text": "x" * 500}] * 3000)
        collection.delete(range(2900))
        collection.snapshot(tmp_path / "copy")
    copy = tmp_path / "copy" / "store.db"
    assert copy.stat().st_size < (path / "store.db").stat().st_size / 3
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)
    with closing(stillhash.open(tmp_path / "copy")) as collection:
        assert len(collection) == 100 and not collection.verify()
        collection.add([-1], rng.standard_normal((1, 8)))


def test_a_store_without_incremental_vacuum_has_it_after_a_compaction(tmp_path: Path) -> None:
    """Stores of earlier releases were created without."""
    rng, path = np.random.default_rng(0), tmp_path / "c"
    with closing(stillhash.open(path, dim=8, bits=16, init_rows=300)) as collection:
        collection.add(range(300), rng.standard_normal((300, 8)))
    with closing(sqlite3.connect(path / "store.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA auto_vacuum = NONE")
        connection.execute("VACUUM")
    (path / "store.sums").write_bytes(pack_file_checksums(path / "store.db"))
    with closing(stillhash.open(path)) as collection:
        collection.add([-1], rng.standard_normal((1, 8)))
        collection.compact()
        assert not collection.verify()
    with closing(sqlite3.connect(path / "store.db")) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
