"""Stores that version 0.1 created, and what it answered; `create.py` in each archive of the golden folder made them.

format-1.zip      the golden store of format 1 (golden.py of 0.1)
0.1-learnt.zip    one store for each method that learns a rectangular similarity
0.1-square.zip    one for each of the other methods with fixed codes
0.1-early.zip     an empty store, and one with rows that wait for hash functions
"""

from __future__ import annotations

import json
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from stillhash import Answer
from stillhash.collection.storage.checksums import pack_file_checksums
from tests.collection.golden import FOLDER

METHOD_STORES = {
    "0.1-learnt.zip": ("tally", "tally-listwise", "tuned", "ohsl", "ohsl-sym"),
    "0.1-square.zip": ("oasis", "lego", "pca-itq", "lsh"),
}
STORED_METHODS = {method: archive for archive, methods in METHOD_STORES.items() for method in methods}
METHOD_QUERIES = np.random.default_rng(5).standard_normal((3, 8), dtype=np.float32)


def unpack(archive: str, name: str, to: Path) -> tuple[Path, Any]:
    """Unpack one store into this folder; return its path, and what 0.1 answered."""
    with zipfile.ZipFile(FOLDER / archive) as opened:
        for file in opened.namelist():
            if file.startswith(f"{name}/"):
                opened.extract(file, to)
        for folder in ("segments", "learner"):
            (to / name / folder).mkdir(exist_ok=True)
        answers = json.loads(opened.read("answers.json"))
    return to / name, answers


def unpack_golden(to: Path) -> tuple[Path, Any]:
    return unpack("format-1.zip", "golden", to)


def method_rows(n: int, seed: int) -> tuple[np.ndarray, list[list[str]]]:
    """Return the rows of `create.py`."""
    rng = np.random.default_rng(seed)
    present = rng.random((n, 4)) < 0.4
    X = (present @ np.random.default_rng(0).normal(size=(4, 8)) + 0.5 * rng.normal(size=(n, 8))).astype(np.float32)
    return X, [["abcd"[c] for c in np.flatnonzero(y)] for y in present]


def contents(path: Path) -> dict[str, bytes]:
    """Return all files of a store, but for those that SQLite creates to read: shared memory, and an empty log."""
    files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return {name: data for name, data in files.items() if data and not name.endswith("-shm")}


def edit(path: Path, *statements: str) -> None:
    """Change a store of format 1 that was closed, as 0.1 could have written it: its checksums match."""
    with closing(sqlite3.connect(path / "store.db")) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (path / "store.sums").write_bytes(pack_file_checksums(path / "store.db"))


def scores(answer: Answer) -> dict[Any, float]:
    return {hit.id: hit.score for hit in answer.hits}
