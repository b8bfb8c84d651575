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
from stillhash.files.checksums import pack_file_checksums
from stillhash.files.sealed_files import write_sealed
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


def write_segment(path: Path, numbers: np.ndarray, codes: np.ndarray, bits: int) -> None:
    """Write a segment of format 1, code by code."""
    rows, planes = codes.shape
    tiles = np.zeros((-(-rows // 1024), planes, 1024), np.uint8)
    for row, code in enumerate(codes):
        tiles[row // 1024, :, row % 1024] = code
    listed = numbers[-1] - numbers[0] != rows - 1
    head = b"STILLSEG" + np.array([1, bits], "<u4").tobytes()
    head += np.array([rows, -1 if listed else numbers[0]], "<i8").tobytes()
    content = tiles.tobytes() + (numbers.astype("<i8").tobytes() if listed else b"")
    write_sealed(path, [head.ljust(4096, b"\0"), content])


def seal(path: Path, number: int, last: int) -> None:
    """Move the codes of a store, up to a row, to a segment, as 0.1 did."""
    with closing(sqlite3.connect(path / "store.db")) as connection:
        sql = "SELECT row, code FROM items WHERE row <= ? AND code NOT NULL ORDER BY row"
        rows = connection.execute(sql, [last]).fetchall()
    if rows:
        numbers = np.array([row for row, _ in rows])
        codes = np.frombuffer(b"".join(code for _, code in rows), np.uint8).reshape(len(rows), -1)
        write_segment(path / "segments" / f"{number:08d}.tiles", numbers, codes, 16)
        values = f"{number}, '{number:08d}.tiles', {len(rows)}, {numbers[0]}, {numbers[-1]}"
        edit(path, f"INSERT INTO segments VALUES ({values})", f"UPDATE items SET code = NULL WHERE row <= {last}")


def delete(path: Path, rows: list[int]) -> None:
    """Delete rows of a store, as 0.1 did."""
    listed = ", ".join(map(str, rows))
    tables = ("items", "lessons", "pictures")
    edit(
        path,
        f"INSERT INTO dead SELECT row, 1 FROM items WHERE row IN ({listed})",
        *(f"DELETE FROM {table} WHERE row IN ({listed})" for table in tables),
        "UPDATE meta SET value = (SELECT count(*) FROM items) WHERE key = 'items'",
    )


def scores(answer: Answer) -> dict[Any, float]:
    return {hit.id: hit.score for hit in answer.hits}
