"""The log is cut: acknowledged commits that are lost are noticed, also where the file that counts them is gone."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

import stillhash
from stillhash.collection.storage.database import ACKED_KEY, acknowledge, acknowledged_commit
from stillhash.errors import BadState
from tests.collection.fixtures import begin, some_rows
from tests.collection.golden import FOLDER, answers, close
from tests.collection.hostile import edit, meta


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """Return a store as a crash leaves it: some commits are only in the log."""
    with begin(tmp_path / "open")[0] as collection:
        for n in range(5):
            collection.upsert([f"new{n}"], some_rows(1, seed=n).X)
        shutil.copytree(tmp_path / "open", tmp_path / "c")
    return tmp_path / "c"


def refused(path: Path, match: str) -> None:
    for read_only in (True, False):
        with stillhash.open(path, read_only=read_only) as collection:
            with pytest.raises(BadState, match=match):
                collection.count()
            assert match in collection.verify()[0]


@pytest.mark.parametrize("cut", ["half", "all", "removed"])
def test_a_cut_log_without_its_count_is_reported_and_repaired(crashed: Path, cut: str) -> None:
    log = crashed / "store.db-wal"
    if cut == "removed":
        log.unlink()
    else:
        with log.open("r+b") as file:
            file.truncate(log.stat().st_size // 2 if cut == "half" else 0)
    (crashed / "acked").unlink()
    refused(crashed, "acked")
    (action,) = stillhash.repair(crashed).actions
    assert action.startswith("acked: written again")
    with stillhash.open(crashed) as collection:
        assert collection.verify() == []
        assert collection.get([f"new{n}" for n in range(5)])[4] is None  # lost, and reported
        collection.upsert(["more"], some_rows(1).X)
    assert stillhash.repair(crashed) == ([], [])


def test_a_closed_store_without_its_count_is_reported(tmp_path: Path) -> None:
    with begin(tmp_path / "c")[0] as collection:
        collection.snapshot(tmp_path / "s")
    for path in (tmp_path / "c", tmp_path / "s"):
        (path / "acked").unlink()
        refused(path, "acked")
        stillhash.repair(path)
        with stillhash.open(path) as collection:
            assert collection.count() == 320 and collection.verify() == []


def test_a_damaged_count_is_reported(crashed: Path) -> None:
    (crashed / "acked").write_bytes(b"\x01" * 24)
    refused(crashed, "acked")
    stillhash.repair(crashed)
    with stillhash.open(crashed) as collection:
        assert collection.count() == 325


@pytest.mark.parametrize("cut", range(13))
def test_a_count_that_was_written_in_part_is_the_one_before_it(tmp_path: Path, cut: int) -> None:
    for number in (6, 7):
        acknowledge(tmp_path, number, durably=True)
        before = (tmp_path / "acked").read_bytes()
        acknowledge(tmp_path, number + 1)
        after = (tmp_path / "acked").read_bytes()
        start = (number + 1) % 2 * 12
        (tmp_path / "acked").write_bytes(before[:start] + after[start : start + cut] + before[start + cut :])
        assert acknowledged_commit(tmp_path) == (number if cut == 0 else number + (cut == 12))


def test_a_count_of_one_record_is_read_and_continued(tmp_path: Path) -> None:
    acknowledge(tmp_path, 5, durably=True)
    (tmp_path / "acked").write_bytes((tmp_path / "acked").read_bytes()[:12])
    assert acknowledged_commit(tmp_path) == 5
    for number in (6, 7, 8):
        acknowledge(tmp_path, number)
        assert acknowledged_commit(tmp_path) == number


def test_new_stores_and_snapshots_have_a_count(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "new", 8) as collection:
        assert acknowledged_commit(tmp_path / "new") == 0
        collection.snapshot(tmp_path / "s")
        assert acknowledged_commit(tmp_path / "s") == 0
        collection.upsert(["a"], some_rows(1).X)
        assert acknowledged_commit(tmp_path / "new") == 1


def as_previous_release(path: Path) -> None:
    """Make this the store of a release that did not always write `acked`."""
    edit(path, ("DELETE FROM meta WHERE key = ?", [ACKED_KEY]))
    (path / "acked").unlink()


def test_a_store_of_the_previous_release_without_a_count_opens_and_gets_one(tmp_path: Path) -> None:
    with begin(tmp_path / "c")[0] as collection:
        pass
    as_previous_release(tmp_path / "c")
    with stillhash.open(tmp_path / "c", read_only=True) as collection:
        assert collection.count() == 320 and collection.verify() == []
    assert stillhash.repair(tmp_path / "c") == ([], [])
    with stillhash.open(tmp_path / "c") as collection:
        collection.upsert(["a"], some_rows(1).X)
    assert meta(tmp_path / "c", ACKED_KEY) == 1 and acknowledged_commit(tmp_path / "c") == meta(tmp_path / "c", "seq")
    (tmp_path / "c" / "acked").unlink()
    refused(tmp_path / "c", "acked")


def test_the_golden_store_without_its_count_answers_as_it_did(tmp_path: Path) -> None:
    with zipfile.ZipFile(FOLDER / "format-5.zip") as archive:
        archive.extractall(tmp_path)
    (tmp_path / "golden" / "acked").unlink()
    expected = json.loads((tmp_path / "answers.json").read_text())
    with stillhash.open(tmp_path / "golden", read_only=True) as collection:
        assert collection.verify() == [] and close(answers(collection)["items"], expected["items"])


def test_a_creation_that_was_interrupted_can_be_repeated(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", 8):
        pass
    (tmp_path / "c" / "store.db").unlink()  # as if the process had ended before it had its name
    with stillhash.open(tmp_path / "c", 8) as collection:
        collection.upsert(["a"], some_rows(1).X)
    (tmp_path / "c" / "store.db").unlink()
    with pytest.raises(BadState, match=r"without its store\.db"):
        stillhash.open(tmp_path / "c", 8)
