"""The folders of an upgrade: what is damaged, locked or in the way is refused, and nothing has changed then."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import stillhash
from stillhash.collection.storage.format_1 import stored_format
from stillhash.collection.storage.schema import STORE_FORMAT
from stillhash.errors import BadState, Conflict, InvalidInput, StillhashError, StoreFailed
from stillhash.files.sealed_files import lock_folder
from tests.collection.fixtures import some_rows
from tests.collection.format_1 import contents, edit, unpack, unpack_golden
from tests.collection.golden import QUERIES, answers
from tests.collection.test_crash import ROOT
from tests.support.seeds import run_seed

FLIPS = 40
READ_AND_EXIT = """
import os, sys, tempfile, stillhash
tempfile.tempdir = sys.argv[2]
collection = stillhash.open(sys.argv[1], read_only=True)
if os.fork() == 0:
    sys.exit()  # a child does not remove the folder of its parent
os.wait()
print(len(os.listdir(sys.argv[2])), collection.count())
"""


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def refused(path: Path, error: type[StillhashError], match: str | None = None) -> None:
    """Check that an upgrade is refused, and that nothing has changed."""
    before, beside = contents(path), names(path.parent)
    with pytest.raises(error, match=match):
        stillhash.upgrade(path)
    assert contents(path) == before and names(path.parent) == beside


def test_upgrade_keeps_the_old_collection_or_deletes_it(tmp_path: Path) -> None:
    path, _ = unpack_golden(tmp_path)
    before = contents(path)
    report = stillhash.upgrade(str(path))
    assert report.old_path == tmp_path / "golden.format-1" and "354 items" in report.actions[0]
    assert contents(report.old_path) == before and names(tmp_path) == {"golden", "golden.format-1"}
    assert stillhash.upgrade(path) == ([], None)
    again, _ = unpack("0.1-square.zip", "lsh", tmp_path)
    assert stillhash.upgrade(again, delete_old=True).old_path is None
    assert names(tmp_path) == {"golden", "golden.format-1", "lsh"}
    assert stored_format(path) == stored_format(again) == STORE_FORMAT


def test_upgrade_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    path, _ = unpack_golden(tmp_path / "disk")
    (tmp_path / "link").symlink_to(path)
    assert stillhash.upgrade(tmp_path / "link").old_path == tmp_path / "disk" / "golden.format-1"
    with stillhash.open(tmp_path / "link") as collection:
        assert collection.count() == 354


def test_a_flipped_bit_is_refused_or_makes_no_difference(tmp_path: Path) -> None:
    rng = random.Random(run_seed())
    path, _ = unpack_golden(tmp_path / "sound")
    with stillhash.open(path, read_only=True) as collection:
        expected = answers(collection)
    damaged = 0
    for flip in range(FLIPS):
        path, _ = unpack_golden(tmp_path / str(flip))
        file = rng.choice([file for file in sorted(path.rglob("*")) if file.is_file() and file.stat().st_size])
        data = bytearray(file.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
        before = contents(path)
        try:
            with stillhash.open(path, read_only=True) as collection:
                assert answers(collection) == expected, file.name
            assert contents(path) == before
            stillhash.upgrade(path)
        except BadState:
            damaged += 1
            assert contents(path) == before and names(path.parent) == {"golden"}, file.name
        else:
            with stillhash.open(path, read_only=True) as collection:
                assert answers(collection) == expected, file.name
    assert damaged > FLIPS // 4


@pytest.mark.parametrize("file", ["segments/00000002.tiles", "learner/00000002.safetensors", "store.sums"])
def test_a_lost_file_is_refused(tmp_path: Path, file: str) -> None:
    path, _ = unpack_golden(tmp_path)
    (path / file).unlink()
    refused(path, BadState, Path(file).name)
    with pytest.raises(BadState):
        stillhash.open(path, read_only=True)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE items SET code = NULL WHERE row = 340",
        "DELETE FROM items WHERE row = 340",
        "UPDATE meta SET value = value + 1 WHERE key = 'items'",
        "UPDATE meta SET value = 'ab' WHERE key = 'fingerprint'",
        "UPDATE meta SET value = x'00' WHERE key = 'settings'",
        "UPDATE lessons SET features = x'00'",
        "UPDATE feedback SET item = 'no JSON'",
        "DELETE FROM meta WHERE key = 'next_row'",
        "DROP TABLE versions",
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, statement: str) -> None:
    path, _ = unpack("0.1-learnt.zip", "tally", tmp_path)
    edit(path, "INSERT INTO feedback SELECT 1, 2, x'00', '1', x'0000', '[]', 1, ''", statement)
    refused(path, BadState)


def test_lost_commits_are_refused(tmp_path: Path) -> None:
    path, _ = unpack_golden(tmp_path)
    (path / "store.db-wal").write_bytes(b"")
    refused(path, BadState, "acknowledged")


@pytest.mark.parametrize("number", [2, 3, 4, 8])
def test_other_formats_are_refused_by_both_numbers(tmp_path: Path, number: int) -> None:
    path, _ = unpack("0.1-early.zip", "empty", tmp_path)
    edit(path, f"UPDATE meta SET value = {number} WHERE key = 'format'")
    refused(path, BadState, f"expected store format 1, got {number}")
    for read_only in (True, False):
        with pytest.raises(BadState, match=f"expected store format {STORE_FORMAT}, got {number}$"):
            stillhash.open(path, read_only=read_only)


def test_what_is_locked_or_in_the_way_is_refused(tmp_path: Path) -> None:
    path, _ = unpack_golden(tmp_path)
    with os.fdopen(lock_folder(path)):
        refused(path, Conflict, "another process")
    (tmp_path / "golden.format-1").mkdir()
    refused(path, Conflict, "golden.format-1")
    (tmp_path / "golden.format-1").rmdir()
    (tmp_path / ".golden.upgrading").write_text("a file of someone else")
    refused(path, StoreFailed)
    with pytest.raises(InvalidInput, match="path"):
        stillhash.upgrade(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="path"):
        stillhash.open("/", read_only=True)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write to any folder")
    path, _ = unpack_golden(tmp_path)
    for folder in (path, tmp_path):
        folder.chmod(0o555)
        refused(path, StoreFailed)
        folder.chmod(0o755)
    assert stillhash.upgrade(path).actions


def test_only_reading_opens_format_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = unpack_golden(tmp_path)
    before = contents(path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with pytest.raises(BadState, match="Run `stillhash upgrade"):
        stillhash.open(path)
    with pytest.raises(BadState, match="repair"):
        stillhash.repair(path)
    with os.fdopen(lock_folder(path)), stillhash.open(path, 8, 16, read_only=True) as collection:
        assert "golden" in repr(collection) and len(names(tmp_path / "temporary")) == 1
        for change in (lambda: collection.add([1], *some_rows(1)), collection.flush, collection.compact):
            with pytest.raises(Conflict, match="reading only"):
                change()
        collection.snapshot(tmp_path / "copy")
        hits = collection.search(QUERIES[1], 5).hits
    with stillhash.open(tmp_path / "copy") as copy:
        assert copy.search(QUERIES[1], 5).hits == hits and copy.flush() == 4
    with pytest.raises(Conflict, match="dim"):
        stillhash.open(path, 9, read_only=True)
    assert contents(path) == before and not names(tmp_path / "temporary")


def test_the_temporary_folder_is_removed_at_exit(tmp_path: Path) -> None:
    path, _ = unpack_golden(tmp_path)
    (tmp_path / "temporary").mkdir()
    command = [sys.executable, "-c", READ_AND_EXIT, str(path), str(tmp_path / "temporary")]
    assert subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout == b"1 354\n"
    assert not names(tmp_path / "temporary")
