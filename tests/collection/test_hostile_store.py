"""A folder that comes from someone else: nothing in it runs, leads elsewhere, or raises anything but our errors.

STILLHASH_HOSTILE is how many changed stores are read and written; 2,000 make a campaign. STILLHASH_SEED repeats a run.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import stillhash
from stillhash.collection.storage.database import connect
from stillhash.collection.storage.schema import COUNTERS
from stillhash.errors import BadState, StillhashError
from stillhash.files import write_sealed
from stillhash.hashers import LSH
from tests.collection.fixtures import BITS, DIM, some_rows
from tests.collection.hostile import (
    DEEP,
    QUERIES,
    create_template,
    edit,
    meta,
    read_all,
    set_functions,
    set_meta,
)
from tests.collection.test_crash import ROOT
from tests.support.seeds import run_seed

CASES = int(os.environ.get("STILLHASH_HOSTILE", "6"))
HUGE = 1 << 43  # bytes of a file with a hole
UNEXPECTED = {
    "view in place of a table": ["ALTER TABLE items RENAME TO i", "CREATE VIEW items AS SELECT * FROM i"],
    "trigger": ["CREATE TRIGGER t AFTER INSERT ON items BEGIN DELETE FROM items; END"],
    "view": ["CREATE VIEW more AS SELECT 1"],
    "table": ["CREATE TABLE more (x)"],
    "index": ["CREATE INDEX more ON items (abs(row))"],
    "virtual table": ["CREATE VIRTUAL TABLE more USING fts5(x)"],
    "generated column": ["ALTER TABLE pictures ADD COLUMN more AS (hex(row))"],
    "missing table": ["DROP TABLE doubtful_labels"],
    "audit with other columns": ["DROP TABLE audit", "CREATE TABLE audit (number INTEGER PRIMARY KEY)"],
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "template"
    create_template(path)
    assert read_all(path) == []
    return path


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "c")
    return tmp_path / "c"


def refused(path: Path, match: str) -> None:
    """Check that the store is refused, when it is opened or first used, for reading and for writing."""
    for read_only in (True, False):
        with pytest.raises(BadState, match=match), stillhash.open(path, read_only=read_only) as collection:
            collection.search(QUERIES[0])


# ---- tables ----


@pytest.mark.parametrize("statements", UNEXPECTED.values(), ids=UNEXPECTED)
def test_other_tables_than_those_of_a_store_are_refused(path: Path, statements: list[str]) -> None:
    edit(path, *statements)
    refused(path, r"store\.db: expected the tables of a collection")
    with pytest.raises(BadState):
        stillhash.repair(path)


def test_an_optional_table_is_accepted(path: Path) -> None:
    assert read_all(path) == []
    edit(path, "DROP TABLE audit")
    assert read_all(path) == []
    with stillhash.open(path) as collection:
        assert collection.upsert(["new"], some_rows(1).X) == 1 and collection.verify() == []


def test_connections_trust_no_schema_and_take_no_value_of_any_size(path: Path) -> None:
    for mode in ("ro", "rw"):
        with closing(connect(path, mode)) as connection:
            assert connection.execute("PRAGMA trusted_schema").fetchone() == (0,)
            assert connection.execute("PRAGMA cell_size_check").fetchone() == (1,)
            with pytest.raises(sqlite3.DatabaseError, match="too big"):
                connection.execute("SELECT length(zeroblob(900000000))")


# ---- files ----


@pytest.mark.parametrize("name", ["../learner/00000001.safetensors", "/etc/passwd", "..", "", ".x", "a\0b", "a/b"])
def test_names_of_files_that_lead_elsewhere_are_refused(path: Path, name: str) -> None:
    edit(path, ("UPDATE segments SET file = ?", [name]))
    refused(path, "segments: expected the name of a file")
    edit(path, "DELETE FROM segments", ("UPDATE versions SET learner = ?", [json.dumps([name])]))
    with stillhash.open(path) as collection:
        with pytest.raises(BadState, match="learner: expected the name of a file"):
            collection.learn(*some_rows(30)[:2])
        with pytest.raises(BadState, match="learner: expected the name of a file"):
            collection.snapshot(path.with_name("s"))


def link_to_zeros(file: Path) -> None:
    file.symlink_to("/dev/zero")


def link_to_copy(file: Path) -> None:
    file.symlink_to(shutil.move(f"{file}.moved", file.parent.parent.parent / "moved"))


NOT_FILES: dict[str, Callable[[Path], None]] = {
    "/dev/zero": link_to_zeros,
    "a link to another file": link_to_copy,
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("make", NOT_FILES.values(), ids=NOT_FILES)
@pytest.mark.parametrize("name", ["segment", "learner", "store.db-wal", "store.sums"])
def test_what_is_no_file_is_refused(path: Path, name: str, make: Callable[[Path], None]) -> None:
    files = {"segment": path.glob("segments/*.tiles"), "learner": path.glob("learner/*.safetensors")}
    file = next(files[name]) if name in files else path / name
    file.touch()
    file.rename(f"{file}.moved")
    make(file)
    with pytest.raises(BadState, match=r"expected a file|store\.sums"), stillhash.open(path) as collection:
        if name == "learner":
            assert "expected a file" in collection.verify()[0]
            collection.rollback(1)
        collection.search(QUERIES[0])


def test_a_database_that_is_a_link_is_refused(path: Path) -> None:
    (path / "store.db").rename(path / "moved")
    (path / "store.db").symlink_to(path / "moved")
    refused(path, r"store\.db: expected a file")
    with pytest.raises(BadState, match="expected a file"):
        stillhash.repair(path)


def test_a_journal_that_sqlite_would_play_back_is_refused(path: Path) -> None:
    (path / "store.db-journal").write_bytes(bytes(512))
    refused(path, "store.db-journal")


def test_a_folder_that_is_a_link_loses_no_files(path: Path) -> None:
    precious = path.with_name("precious")
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    for folder in ("segments", "learner"):
        shutil.move(path / folder, path / "moved")
        (path / folder).symlink_to(precious)
        with pytest.raises(BadState, match=f"{folder}: expected a folder"), stillhash.open(path) as collection:
            collection.compact()
        (path / folder).unlink()
        shutil.move(path / "moved", path / folder)
    assert (precious / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("name", ["lock", "acked"])
def test_a_link_in_the_place_of_a_file_that_is_written_changes_nothing_elsewhere(path: Path, name: str) -> None:
    other = path.with_name("other")
    other.write_text("unchanged")
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(other)
    try:
        with stillhash.open(path) as collection:
            collection.upsert(["new"], some_rows(1).X)
    except StillhashError:
        pass
    assert other.read_text() == "unchanged"


@pytest.mark.parametrize("name", ["store.sums", "store.db-wal", "segment", "learner"])
def test_a_huge_file_with_a_hole_is_refused_or_not_read(path: Path, name: str) -> None:
    files = {"segment": path.glob("segments/*.tiles"), "learner": path.glob("learner/*.safetensors")}
    file = next(files[name]) if name in files else path / name
    with file.open("ab") as opened:
        opened.truncate(HUGE)
    errors = read_all(path)
    assert all(isinstance(error, BadState) for error in errors)
    if name != "learner":  # which searches do not need
        assert errors or name == "store.db-wal"


# ---- values ----


@pytest.mark.parametrize("key", ["format", "collection", "settings", *COUNTERS])
def test_a_missing_entry_is_a_bad_state(path: Path, key: str) -> None:
    edit(path, ("DELETE FROM meta WHERE key = ?", [key]))
    refused(path, "expected")


def test_json_of_any_depth_is_a_bad_state(path: Path) -> None:
    for sql in (
        "UPDATE items SET metadata = ? WHERE id = 5",
        "UPDATE items SET labels = ? WHERE id = 9",
        "UPDATE versions SET notes = ?",
        "UPDATE meta SET value = ? WHERE key = 'curve'",
    ):
        edit(path, (sql, ["[" * DEEP + "]" * DEEP]))
    errors = read_all(path)
    assert len(errors) > 5 and all(isinstance(error, BadState) for error in errors)


def test_row_numbers_take_no_memory_without_bound(path: Path) -> None:
    set_meta(path, next_row=2**62)
    refused(path, "next_row")


# ---- hash functions and models ----


def functions_of(dim: int, bits: int) -> bytes:
    return LSH(bits).fit(np.random.default_rng(0).standard_normal((50, dim))).functions().state()


def with_nan(state: bytes) -> bytes:
    return state[:-8] + b"\xff" * 8


@pytest.mark.parametrize(
    "make",
    [
        lambda state: b"garbage " * 100,
        lambda state: b"",
        with_nan,
        lambda state: functions_of(DIM + 1, BITS),
        lambda state: functions_of(DIM, BITS + 8),
    ],
    ids=["garbage", "nothing", "NaN", "other dim", "other bits"],
)
def test_hash_functions_that_do_not_fit_are_refused_and_reported(path: Path, make: Callable[[bytes], bytes]) -> None:
    set_functions(path, make(meta(path, "functions")))
    refused(path, "functions|state")
    with stillhash.open(path, read_only=True) as collection:
        assert any("state" in problem or "functions" in problem for problem in collection.verify())


def change_model(path: Path, **changes: Any) -> None:
    with closing(sqlite3.connect(path / "store.db")) as connection:
        ((version, data),) = connection.execute("SELECT version, model FROM versions ORDER BY version DESC LIMIT 1")
    arrays = safetensors.numpy.load(data)
    for name, change in changes.items():
        arrays[name] = np.ascontiguousarray(change(arrays[name]))
    edit(path, ("UPDATE versions SET model = ? WHERE version = ?", [safetensors.numpy.save(arrays), version]))


@pytest.mark.parametrize(
    "changes",
    [
        {"M": lambda M: M[:, :-1]},
        {"U": lambda U: U[1:]},
        {"u": lambda u: u * np.nan},
        {"V": lambda V: V.astype(np.float64)},
        {"v": lambda v: v[None]},
        {"power": lambda power: power * -1},
        {"balance": lambda balance: balance + 2},
        {"label_bits": lambda bits: bits + 10**6},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_model_that_does_not_fit_is_refused_and_reported(path: Path, changes: dict[str, Any]) -> None:
    change_model(path, **changes)
    refused(path, "model")
    with stillhash.open(path, read_only=True) as collection:
        assert any("model" in problem for problem in collection.verify())


def test_a_learner_of_other_functions_is_reported(path: Path) -> None:
    (file,) = path.glob("learner/*.safetensors")
    write_sealed(file, [LSH(BITS).fit(some_rows(50).X).state()])
    with stillhash.open(path, read_only=True) as collection:
        assert any("fingerprint" in problem for problem in collection.verify())


# ---- everything ----


@pytest.mark.medium
def test_no_change_of_a_store_raises_anything_but_our_errors(template: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.collection.hostile", str(template), str(tmp_path), run_seed(), str(CASES)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-500:] + result.stderr[-3000:]
    print(result.stdout.splitlines()[-1])
