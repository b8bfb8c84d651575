"""Repair of more than a bit: everything on sound pages and blocks is restored, the rest is reported."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import stillhash
from stillhash.collection.storage.segments import TILES_OFFSET
from stillhash.errors import BadState, Conflict, InvalidInput
from stillhash.files.checksums import (
    BLOCK_SIZE,
    block_checksums,
    checksum_pair,
    pack_checksums,
    repair_block,
    repair_packed_checksums,
)
from tests.collection.fixtures import BITS, DIM, begin, some_rows
from tests.support.toys import toy

QUERY = toy(1, DIM, 4, seed=77).X[0]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repair") / "c"
    collection, _ = begin(path, 320)
    collection.add([f"a{r}" for r in range(5000)], *some_rows(5000, seed=1), learn=False)
    collection.seal()
    collection.delete([f"a{r}" for r in range(100, 200)])
    collection.add([f"b{r}" for r in range(500)], *some_rows(500, seed=2), learn=False)
    collection.close()
    return path


def items_at(path: Path) -> dict[object, object]:
    """Return all items, by id, with their scores."""
    with stillhash.open(path) as collection:
        assert collection.verify() == []
        answer = collection.search(QUERY, 10_000)
        assert len(answer.hits) == collection.count()
        return {hit.id: hit for hit in answer.hits}


def overwrite(file: Path, start: int, size: int) -> None:
    with file.open("r+b") as f:
        f.seek(start)
        f.write(np.random.default_rng(0).bytes(size))


def leaf_pages(path: Path, table: str) -> list[int]:
    """Return the leaf pages of a table."""
    with closing(sqlite3.connect(path / "store.db")) as db:
        pages = db.execute("SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY path", [table])
        return [page - 1 for (page,) in pages]


def test_sound_collections_are_left_alone(template: Path, tmp_path: Path) -> None:
    shutil.copytree(template, tmp_path / "c")
    files = {file: file.read_bytes() for file in (tmp_path / "c").rglob("*") if file.is_file()}
    assert stillhash.repair(tmp_path / "c") == ([], [])
    assert {file: file.read_bytes() for file in files} == files


def test_a_lost_page_costs_the_items_on_it_alone(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    before = items_at(path)
    try:
        page = leaf_pages(path, "items")[20]
    except sqlite3.OperationalError:
        pytest.skip("SQLite was built without dbstat")
    overwrite(path / "store.db", page * BLOCK_SIZE, BLOCK_SIZE)
    with stillhash.open(path, read_only=True) as collection, pytest.raises(BadState, match=rf"page {page}\b"):
        collection.count()
    actions, lost = stillhash.repair(path)
    assert actions[0].startswith("store.db: 1 pages")
    assert 10 < len(lost) < 200
    after = items_at(path)
    assert after == {id_: hit for id_, hit in before.items() if id_ not in lost}
    with stillhash.open(path) as collection:
        names = [id_ for id_ in lost if isinstance(id_, str)]
        collection.add(names, some_rows(len(names)).X)  # they can be added again
        assert collection.learn(*some_rows(50)[:2]) > 1


def test_a_lost_block_of_a_segment_costs_its_tile_alone(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    before = items_at(path)
    (segment,) = (path / "segments").glob("*.tiles")
    overwrite(segment, TILES_OFFSET + 2 * 2 * 1024 + 10, 100)  # 16 bits: the third tile
    actions, lost = stillhash.repair(path)
    assert actions[0].startswith(f"segments/{segment.name}: ") and "1 blocks" in actions[0]
    assert 0 < len(lost) <= 2048  # a block of 4,096 bytes holds two tiles of 16 bits
    assert items_at(path) == {id_: hit for id_, hit in before.items() if id_ not in lost}


def test_a_lost_header_costs_nothing(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    before = items_at(path)
    (segment,) = (path / "segments").glob("*.tiles")
    overwrite(segment, 0, 30)
    stillhash.repair(path)
    assert items_at(path) == before


def test_a_lost_segment_costs_its_items(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    before = items_at(path)
    (segment,) = (path / "segments").glob("*.tiles")
    segment.unlink()
    actions, lost = stillhash.repair(path)
    sums_again = "learner: its sums were computed again from what is stored"
    assert actions == [f"segments/{segment.name}: lost", sums_again]
    assert len(lost) == 320 + 4900 and items_at(path) == {id_: before[id_] for id_ in (f"b{r}" for r in range(500))}


@pytest.mark.parametrize("files", [1, 2])
def test_lost_learner_leaves_searches_unchanged(template: Path, tmp_path: Path, files: int) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    before = items_at(path)
    for learner in sorted((path / "learner").iterdir())[-files:]:
        overwrite(learner, 0, 5000)
    actions, lost = stillhash.repair(path)
    assert lost == [] and items_at(path) == before
    with stillhash.open(path) as collection:
        if files == 1:
            assert "version 1" in actions[-2] and "sums were computed again" in actions[-1]
            assert collection.verify() == []  # what the lost file had learnt is learnt again, of what is stored
            collection.learn(*some_rows(50)[:2])
        else:
            assert actions[-1].startswith("learner: none")


def test_a_torn_log_costs_the_commits_after_the_tear(template: Path, tmp_path: Path) -> None:
    whole = shutil.copytree(template, tmp_path / "whole")
    collection = stillhash.open(whole)
    for n in range(6):
        collection.add([f"c{n}"], some_rows(1, seed=n).X)
    path = shutil.copytree(whole, tmp_path / "c")
    collection.close()
    overwrite(path / "store.db-wal", (path / "store.db-wal").stat().st_size // 2, 4000)
    for read_only in (True, False):
        with (
            stillhash.open(path, read_only=read_only) as damaged,
            pytest.raises(BadState, match="acknowledged"),
        ):
            damaged.count()
    actions, lost = stillhash.repair(path)
    assert actions[-1].startswith("store.db-wal: the last ") and lost == []
    with stillhash.open(path) as repaired:
        exists = [item is not None for item in repaired.get([f"c{n}" for n in range(6)])]
    assert exists == sorted(exists, reverse=True) and 0 < sum(exists) < 6


def test_interrupted_repair_is_finished(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    before = items_at(path)
    shutil.move(path / "store.db", path / "store.db.new")  # complete, with its checksums; the old one is damaged
    (path / "store.db").write_bytes(np.random.default_rng(0).bytes(10 * BLOCK_SIZE))
    assert "interrupted repair" in stillhash.repair(path).actions[0]
    assert items_at(path) == before


def test_lost_checksums_are_computed_again(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    before = items_at(path)
    (path / "store.sums").unlink()
    with stillhash.open(path) as collection, pytest.raises(BadState, match=r"store\.sums"):
        collection.count()
    (action,) = stillhash.repair(path).actions
    assert action.startswith("store.sums: ")
    assert items_at(path) == before


def test_damage_beyond_repair_is_an_error(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    overwrite(path / "store.db", 0, 3 * BLOCK_SIZE)
    for _ in range(2):  # and the lock is free again
        with pytest.raises(BadState, match="settings"):
            stillhash.repair(path)
    with pytest.raises(InvalidInput, match="collection"):
        stillhash.repair(tmp_path / "nowhere")


def test_repair_needs_the_write_lock(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    with stillhash.open(path), pytest.raises(Conflict, match="read_only=True"):
        stillhash.repair(path)


# ---- checksums ----


def test_any_flipped_bit_is_flipped_back_and_two_are_not() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 32, 100, BLOCK_SIZE):
        block = rng.bytes(size)
        for place in rng.integers(0, 8 * size, 20):
            data = bytearray(block)
            data[place // 8] ^= 1 << place % 8
            assert repair_block(bytes(data), checksum_pair(block)) == block
            if size > 1:
                data[(place // 8 + size // 2) % size] ^= 4
                assert repair_block(bytes(data), checksum_pair(block)) is None


def test_any_flipped_bit_of_the_checksums_is_flipped_back() -> None:
    table = pack_checksums(block_checksums(np.random.default_rng(0).bytes(20 * BLOCK_SIZE + 5)))
    for place in range(8 * len(table)):
        data = bytearray(table)
        data[place // 8] ^= 1 << place % 8
        assert repair_packed_checksums(bytes(data)) == table
    assert repair_packed_checksums(table[:-3]) is None


def test_a_segment_of_another_collection_is_refused_and_counts_as_lost(tmp_path: Path) -> None:
    """Its checksums are sound, but its codes are those of other items."""
    for name in ("one", "two"):
        with begin(tmp_path / name)[0] as collection:
            collection.seal()
    (own,), (other,) = ((tmp_path / name / "segments").glob("*.tiles") for name in ("one", "two"))
    assert own.name == other.name and own.stat().st_size == other.stat().st_size
    shutil.copyfile(other, own)
    expected = rf"segments/{own.name}: expected segment \d+ of this collection, got another"
    with stillhash.open(tmp_path / "one") as collection:
        with pytest.raises(BadState, match=expected):
            collection.search(some_rows(1).X[0])
        (problem,) = collection.verify()
        assert re.fullmatch(expected, problem)
        report = collection.repair()
        lost = f"segments/{own.name}: lost; the file there is another segment"
        assert report.actions == [lost, "learner: its sums were computed again from what is stored"]
        assert sorted(map(str, report.lost_ids)) == sorted(map(str, range(320)))
        assert collection.count() == 0 and collection.verify() == []


def test_repair_keeps_the_digests_of_features(tmp_path: Path) -> None:
    """A block of digests that is lost costs these alone; the items stay, and so do the other digests."""
    X, labels = toy(20_000, DIM, 4, seed=3)[0], [["a"]] * 20_000
    with stillhash.open(tmp_path / "c", DIM, BITS, init=(some_rows(300).X, some_rows(300).labels)) as collection:
        collection.add(range(20_000), X, labels, learn=False)
        collection.seal()
    (file,) = (tmp_path / "c" / "segments").glob("*.tiles")
    place = file.stat().st_size - 20_000 * 6  # among the digests, which are 8 bytes each, before 4 for each place
    damaged = bytearray(file.read_bytes())
    damaged[place : place + 10] = bytes(byte ^ 255 for byte in damaged[place : place + 10])
    file.write_bytes(damaged)
    assert not stillhash.repair(tmp_path / "c").lost_ids
    with stillhash.open(tmp_path / "c") as collection:
        assert collection.count() == 20_000 and collection.verify() == []
        (segment,) = collection._store.codes.segments(collection._view.store.db._writer_connection())
        assert 20_000 - 4096 // 8 - 1 <= len(segment.digests) < 20_000
