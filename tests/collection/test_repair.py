"""Repair where more than a bit is lost: everything on sound pages and blocks comes back, the rest is named."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

import stillhash
from stillhash.collection.storage.checksums import BLOCK, mended, mended_table, packed, pair, sums_of
from stillhash.collection.storage.segments import START
from stillhash.errors import BadState, Conflict, InvalidInput
from tests.collection.fixtures import DIM, begin, some_rows
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


def held(path: Path) -> dict[object, object]:
    """All items, by id, with their scores."""
    with stillhash.open(path) as collection:
        assert collection.verify() == []
        answer = collection.search(QUERY, 10_000)
        assert len(answer.hits) == collection.count()
        return {hit.id: hit for hit in answer.hits}


def overwrite(file: Path, start: int, size: int) -> None:
    with file.open("r+b") as f:
        f.seek(start)
        f.write(np.random.default_rng(0).bytes(size))


def leaves(path: Path, table: str) -> list[int]:
    """Pages of a table, those of its inner nodes left out."""
    db = sqlite3.connect(path / "store.db")
    found = db.execute("SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY path", [table])
    return [page - 1 for (page,) in found]


def test_sound_collections_are_left_alone(template: Path, tmp_path: Path) -> None:
    shutil.copytree(template, tmp_path / "c")
    files = {file: file.read_bytes() for file in (tmp_path / "c").rglob("*") if file.is_file()}
    assert stillhash.repair(tmp_path / "c") == ([], [])
    assert {file: file.read_bytes() for file in files} == files


def test_a_lost_page_costs_the_items_on_it_alone(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    before = held(path)
    try:
        page = leaves(path, "items")[20]
    except sqlite3.OperationalError:
        pytest.skip("SQLite was built without dbstat")
    overwrite(path / "store.db", page * BLOCK, BLOCK)
    with stillhash.open(path, read_only=True) as collection, pytest.raises(BadState, match=f"page {page} of store.db"):
        collection.count()
    done, lost = stillhash.repair(path)
    assert "1 pages of store.db are lost" in done[0]
    assert 10 < len(lost) < 200
    after = held(path)
    assert after == {id_: hit for id_, hit in before.items() if id_ not in lost}
    with stillhash.open(path) as collection:
        names = [id_ for id_ in lost if isinstance(id_, str)]
        collection.add(names, some_rows(len(names)).X)  # they can come again
        assert collection.learn(*some_rows(50)[:2]) > 1


def test_a_lost_block_of_a_segment_costs_its_tile_alone(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    before = held(path)
    (segment,) = (path / "segments").iterdir()
    overwrite(segment, START + 2 * 2 * 1024 + 10, 100)  # 16 bits: the third tile
    done, lost = stillhash.repair(path)
    assert done[0] == f"segments/{segment.name} was mended, but for 1 blocks"
    assert 0 < len(lost) <= 2048  # a block of 4,096 bytes holds two tiles of 16 bits
    assert held(path) == {id_: hit for id_, hit in before.items() if id_ not in lost}


def test_a_lost_header_costs_nothing(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    before = held(path)
    (segment,) = (path / "segments").iterdir()
    overwrite(segment, 0, 30)
    stillhash.repair(path)
    assert held(path) == before


def test_a_lost_segment_costs_its_items(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    before = held(path)
    (segment,) = (path / "segments").iterdir()
    segment.unlink()
    done, lost = stillhash.repair(path)
    assert done == [f"segments/{segment.name} is lost"]
    assert len(lost) == 320 + 4900 and held(path) == {id_: before[id_] for id_ in (f"b{r}" for r in range(500))}


@pytest.mark.parametrize("files", [1, 2])
def test_a_lost_learner_leaves_searches_as_they_were(template: Path, tmp_path: Path, files: int) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    before = held(path)
    for learner in sorted((path / "learner").iterdir())[-files:]:
        overwrite(learner, 0, 5000)
    done, lost = stillhash.repair(path)
    assert lost == [] and held(path) == before
    with stillhash.open(path) as collection:
        if files == 1:
            assert "learning goes on from what version 1 had learnt" in done
            collection.learn(*some_rows(50)[:2])
        else:
            assert "nothing is left to learn on from; searches are as before" in done


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
            pytest.raises(BadState, match="which were acknowledged"),
        ):
            damaged.count()
    done, lost = stillhash.repair(path)
    assert "commits are lost" in done[-1] and lost == []
    with stillhash.open(path) as repaired:
        there = [item is not None for item in repaired.get([f"c{n}" for n in range(6)])]
    assert there == sorted(there, reverse=True) and 0 < sum(there) < 6


def test_a_repair_that_was_cut_short_is_finished(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    before = held(path)
    shutil.move(path / "store.db", path / "store.db.new")  # complete, with its checksums; what it replaces is in pieces
    overwrite_new = np.random.default_rng(0).bytes(10 * BLOCK)
    (path / "store.db").write_bytes(overwrite_new)
    assert stillhash.repair(path).done[0] == "a repair that was cut short is finished"
    assert held(path) == before


def test_lost_checksums_are_made_anew(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    before = held(path)
    (path / "store.sums").unlink()
    with stillhash.open(path) as collection, pytest.raises(BadState, match=r"store\.sums cannot be read"):
        collection.count()
    assert stillhash.repair(path).done == ["store.sums was made anew; SQLite finds nothing wrong with store.db"]
    assert held(path) == before


def test_what_cannot_be_repaired_says_so(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    overwrite(path / "store.db", 0, 3 * BLOCK)
    for _ in range(2):  # and the lock is free again
        with pytest.raises(BadState, match="lost its settings"):
            stillhash.repair(path)
    with pytest.raises(InvalidInput, match="there is no collection"):
        stillhash.repair(tmp_path / "nowhere")


def test_nobody_may_write_meanwhile(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    with stillhash.open(path), pytest.raises(Conflict, match="being written"):
        stillhash.repair(path)


# ---- checksums ----


def test_any_flipped_bit_is_flipped_back_and_two_are_not() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 32, 100, BLOCK):
        block = rng.bytes(size)
        for place in rng.integers(0, 8 * size, 20):
            data = bytearray(block)
            data[place // 8] ^= 1 << place % 8
            assert mended(bytes(data), pair(block)) == block
            if size > 1:
                data[(place // 8 + size // 2) % size] ^= 4
                assert mended(bytes(data), pair(block)) is None


def test_any_flipped_bit_of_the_checksums_is_flipped_back() -> None:
    table = packed(sums_of(np.random.default_rng(0).bytes(20 * BLOCK + 5)))
    for place in range(8 * len(table)):
        data = bytearray(table)
        data[place // 8] ^= 1 << place % 8
        assert mended_table(bytes(data)) == table
    assert mended_table(table[:-3]) is None
