"""Damage that `repair` restores, or whose cost it reports; and damage that only a snapshot restores."""

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
from stillhash.files import BLOCK_SIZE
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


def test_a_damaged_page_is_named_and_comes_back_with_a_snapshot(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    before = items_at(path)
    with stillhash.open(path) as collection:
        collection.snapshot(tmp_path / "snapshot")
    try:
        page = leaf_pages(path, "items")[20]
    except sqlite3.OperationalError:
        pytest.skip("SQLite was built without dbstat")
    overwrite(path / "store.db", page * BLOCK_SIZE, BLOCK_SIZE)
    with stillhash.open(path, read_only=True) as collection, pytest.raises(BadState, match=rf"page {page}\b"):
        collection.count()
    damaged = (path / "store.db").read_bytes()
    with pytest.raises(BadState, match=rf"page {page}\b.*snapshot"):
        stillhash.repair(path)
    assert (path / "store.db").read_bytes() == damaged
    assert items_at(tmp_path / "snapshot") == before


@pytest.mark.parametrize("kind", ["tiles", "rescoring", "columns"])
def test_a_damaged_segment_is_restored_from_the_file_of_a_snapshot(template: Path, tmp_path: Path, kind: str) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    before = items_at(path)
    with stillhash.open(path) as collection:
        collection.snapshot(tmp_path / "snapshot")
    (file,) = (path / "segments").glob(f"*.{kind}")
    overwrite(file, BLOCK_SIZE + 10, 100)
    with stillhash.open(path, read_only=True) as collection:
        assert any(file.name in problem for problem in collection.verify())
    shutil.copyfile(tmp_path / "snapshot" / "segments" / file.name, file)
    assert items_at(path) == before and stillhash.repair(path) == ([], [])


@pytest.mark.parametrize("damage", ["codes", "header", "missing"])
def test_a_lost_segment_costs_its_items(template: Path, tmp_path: Path, damage: str) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    before = items_at(path)
    (segment,) = (path / "segments").glob("*.tiles")
    if damage == "missing":
        segment.unlink()
    else:
        overwrite(segment, TILES_OFFSET + 4106 if damage == "codes" else 0, 30)
    actions, lost = stillhash.repair(path)
    assert actions[0].startswith(f"segments/{segment.name}: ") and actions[0].endswith("; its items are lost")
    assert actions[1:] == ["learner: its sums were computed again from what is stored"]
    assert len(lost) == 320 + 4900 and items_at(path) == {id_: before[id_] for id_ in (f"b{r}" for r in range(500))}
    with stillhash.open(path) as collection:
        collection.add([f"a{r}" for r in range(50)], some_rows(50, seed=1).X)  # they can be added again
        collection.seal()
        assert collection.learn(*some_rows(50)[:2]) > 1 and collection.verify() == []


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
        with pytest.raises(BadState, match=r"store\.db"):
            stillhash.repair(path)
    with pytest.raises(InvalidInput, match="collection"):
        stillhash.repair(tmp_path / "nowhere")


def test_repair_needs_the_write_lock(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "c")
    with stillhash.open(path), pytest.raises(Conflict, match="read_only=True"):
        stillhash.repair(path)


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
        assert report.actions[0] == f"{problem}; its items are lost"
        assert sorted(map(str, report.lost_ids)) == sorted(map(str, range(320)))
        assert collection.count() == 0 and collection.verify() == []
