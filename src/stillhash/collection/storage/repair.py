"""Repair: brings back what is not damaged, and says what was done and what is lost.

A single flipped bit of a page, a block or a frame is flipped back, to the byte. What is damaged beyond that is left
out: rows that SQLite cannot reach any more, codes of damaged tiles. Nobody else may have the collection open.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stillhash.collection.storage.checksums import damaged, mended, mended_table, packed, sums_of, unpacked
from stillhash.collection.storage.database import Database, put_in_place
from stillhash.collection.storage.integrity import acked, acknowledge, once, read_sums
from stillhash.collection.storage.sealed_files import content_size, locked, mend_sealed, write_durably
from stillhash.collection.storage.segments import FORMAT, HEADER, MAGIC, START
from stillhash.collection.storage.store import SCHEMA, Store
from stillhash.collection.storage.wal import PAGE, mend, read_wal
from stillhash.collection.types import Id, check_path
from stillhash.errors import BadState, InvalidInput, StillhashError
from stillhash.numeric.codes import TILE, Tiles, from_tiles, width

FURTHEST = 1 << 42  # rows that are skipped in search of one that can be read
TABLES = {"items": "row", "dead": "row", "segments": "number"}
TABLES |= {"pictures": "row", "lessons": "number", "feedback": "number", "versions": "version"}


class Repaired(NamedTuple):
    """What was done, as sentences; and the ids of items that are lost, as far as they are known."""

    done: list[str]
    lost: list[Id]


def repair(path: str | Path) -> Repaired:
    """Repairs the collection in this folder, which nobody has open."""
    path = check_path(path)
    if not (path / "store.db").is_file():
        raise InvalidInput(f"path is {str(path)!r}; there is no collection")
    lock = locked(path)
    try:
        lost: list[Id] = []
        done = [*_mend_database(path, lost)]
    finally:
        os.close(lock)
    store = Store(path, writer=True)
    try:
        done += _mend_segments(store)
        done += _mend_learners(store)
        lost += _drop_lost(store)
        if left := store.verify():
            raise BadState(f"{path.name} is still damaged: {left[0]}")
    finally:
        store.close()
    return Repaired(done, lost)


# ---- store.db ----


def _mend_database(path: Path, gone: list[Id]) -> Iterator[str]:
    if _finish(path):
        yield "a repair that was cut short is finished"
    yield from _mend_sums(path)
    yield from _mend_wal(path)
    lost = yield from _mend_pages(path)
    if lost:
        yield f"{len(lost)} pages of store.db are lost; what the others hold was copied to a new one"
        yield from _salvage(path, lost, gone)
    yield from _mend_wal(path)
    committed_now, acknowledged = _seq(path), acked(path)
    if committed_now is not None and committed_now < acknowledged:
        yield f"the last {acknowledged - committed_now} of {acknowledged} commits are lost"
        acknowledge(path, committed_now)


def _finish(path: Path) -> bool:
    """Puts a new store.db in its place that is complete, and was to have it."""
    new, sums = path / "store.db.new", path / "store.sums"
    if not new.exists() or not sums.exists() or packed(sums_of(new.read_bytes())) != sums.read_bytes():
        return False
    put_in_place(path)
    return True


def _mend_sums(path: Path) -> Iterator[str]:
    file = path / "store.sums"
    data = file.read_bytes() if file.exists() else b""
    try:
        unpacked(data, "store.db")
        return
    except BadState:
        table = mended_table(data)
    if table is None:
        if not _integral(path):
            raise BadState(f"{path.name} has lost the checksums of store.db, and SQLite finds it damaged")
        table = packed(sums_of((path / "store.db").read_bytes()))
        yield "store.sums was made anew; SQLite finds nothing wrong with store.db"
    else:
        yield "store.sums: a bit was flipped back"
    write_durably(file, [table])


def _mend_wal(path: Path) -> Iterator[str]:
    """While it lacks commits that were acknowledged."""
    while (seq := _seq(path)) is not None and seq < acked(path) and mend(path):
        yield "store.db-wal: a bit was flipped back"


def _mend_pages(path: Path) -> Any:
    """Mends the pages of store.db; returns those that cannot be."""
    sums, waiting, lost = read_sums(path), set(read_wal(path).numbers.tolist()), []
    with (path / "store.db").open("r+b") as file:
        data = file.read()
        for page in damaged(data, sums):
            if page in waiting:
                continue
            fixed = mended(data[page * PAGE : (page + 1) * PAGE], sums[page])
            if fixed is None:
                lost.append(page)
                continue
            file.seek(page * PAGE)
            file.write(fixed)
            yield f"store.db: a bit of page {page} was flipped back"
        file.flush()
        os.fsync(file.fileno())
    return lost


def _salvage(path: Path, lost: list[int], gone: list[Id]) -> Iterator[str]:
    """A new store.db of all rows that are on sound pages; the ids of the others, where they can be read, are `gone`."""
    bad = path / "store.db.damaged"
    for rest in ("", "-wal"):
        if (path / f"store.db{rest}").exists():
            shutil.copyfile(path / f"store.db{rest}", path / f"{bad.name}{rest}")
    with bad.open("r+b") as file:
        for page in lost:  # SQLite must not take what is there for rows
            file.seek(page * PAGE)
            file.write(bytes(PAGE))
    old = sqlite3.connect(bad)
    try:
        meta = dict(old.execute("SELECT key, value FROM meta").fetchall())
        tables = {table: list(_readable(old, table, key)) for table, key in TABLES.items()}
        names = _names(old)
    except sqlite3.DatabaseError as error:
        raise BadState(f"{path.name} has lost its settings or its hash functions: {error}") from error
    finally:
        old.close()
    there, versions = {row[0] for row in tables["items"]}, {row[0] for row in tables["versions"]}
    gone += [name for name, row in names if row not in there]
    if meta["version"] not in versions:
        meta["version"] = max(versions, default=0)
    meta["items"] = len(there)
    Database.create(path, SCHEMA, {"meta": list(meta.items()), **tables})
    for rest in ("", "-wal", "-shm"):
        (path / f"{bad.name}{rest}").unlink(missing_ok=True)
    yield ", ".join(f"{len(rows)} {table}" for table, rows in tables.items()) + " were found"


def _names(connection: sqlite3.Connection) -> list[tuple[Id, int]]:
    """Ids and rows by the index of ids alone, which is on other pages than the items."""
    try:
        return connection.execute("SELECT id, row FROM items INDEXED BY sqlite_autoindex_items_1").fetchall()
    except sqlite3.DatabaseError:
        return []


def _readable(connection: sqlite3.Connection, table: str, key: str) -> Iterator[tuple[Any, ...]]:
    """The rows of a table, those on lost pages left out."""
    last = -1
    while True:
        try:
            for row in connection.execute(f"SELECT * FROM {table} WHERE {key} > ? ORDER BY {key}", [last]):
                yield row
                last = row[0]
            return
        except sqlite3.DatabaseError:
            step = 1
            while not _reachable(connection, table, key, last + step):
                step *= 2
                if step > FURTHEST:
                    return
            low, high = step // 2, step  # nothing after last + low can be read, something after last + high can
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if _reachable(connection, table, key, last + middle) else (middle, high)
            last += high


def _reachable(connection: sqlite3.Connection, table: str, key: str, after: int) -> bool:
    try:
        connection.execute(f"SELECT * FROM {table} WHERE {key} > ? ORDER BY {key} LIMIT 1", [after]).fetchall()
    except sqlite3.DatabaseError:
        return False
    return True


def _seq(path: Path) -> int | None:
    """The last commit that can be read; None if nothing can."""
    try:
        with once(path) as connection:
            return int(connection.execute("SELECT value FROM meta WHERE key = 'seq'").fetchone()[0])
    except (BadState, sqlite3.DatabaseError, TypeError, ValueError):
        return None


def _integral(path: Path) -> bool:
    try:
        with once(path) as connection:
            return bool(connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)])
    except (BadState, sqlite3.DatabaseError):
        return False


# ---- segments and learners ----


def _mend_segments(store: Store) -> Iterator[str]:
    """Mends the segments; if some codes are beyond that, all others are put into a new one."""
    with store.reading() as connection:
        told = connection.execute("SELECT file, rows, first, last FROM segments ORDER BY number").fetchall()
        tail = store.tail(connection)
    found, whole = [tail], True
    for file, rows, first, last in told:
        path = store.path / "segments" / file
        consecutive = last - first == rows - 1
        lost: list[int] = []
        try:
            store.segment(file)
        except BadState:
            try:
                lost = mend_sealed(path)
            except (OSError, StillhashError):
                yield f"segments/{file} is lost"
                whole = False
                continue
            yield f"segments/{file} was mended" + (f", but for {len(lost)} blocks" if lost else "")
        whole = whole and not lost
        found.append(_surviving(path, store.settings["bits"], rows, first if consecutive else -1, lost))
    if not whole:
        numbers = np.concatenate([some for some, _ in found])
        order = np.argsort(numbers)
        store.replace_segments(numbers[order], np.concatenate([codes for _, codes in found])[order])


def _surviving(path: Path, bits: int, rows: int, first: int, lost: list[int]) -> Any:
    """Row numbers and codes of a segment that are on none of these blocks; the header is told."""
    content = np.fromfile(path, np.uint8, content_size(path))
    planes = -(-rows // TILE) * width(bits) * TILE
    head = HEADER.pack(MAGIC, FORMAT, bits, rows, first)
    content[: len(head)] = np.frombuffer(head, np.uint8)
    tiles: Tiles = content[START : START + planes].reshape(-1, width(bits), TILE)
    numbers = np.arange(first, first + rows) if first >= 0 else content[START + planes :].view("<i8")
    good = np.ones(rows, bool)
    for block in lost:
        start, stop = block * PAGE - START, (block + 1) * PAGE - START
        size = width(bits) * TILE
        good[max(0, start) // size * TILE : -(-max(0, min(stop, planes)) // size) * TILE] = False
        good[max(0, start - planes) // 8 : -(-max(0, stop - planes) // 8)] = False
    return numbers[good].astype(np.int64), from_tiles(tiles, rows)[good]


def _mend_learners(store: Store) -> Iterator[str]:
    with store.reading() as connection:
        told = connection.execute("SELECT version, learner FROM versions WHERE learner NOT NULL ORDER BY version")
        learners = told.fetchall()
        current = store.meta(connection, "version")
    sound = {}
    for version, file in learners:
        try:
            store.learner(file)
            sound[version] = file
        except BadState:
            try:
                lost = mend_sealed(store.path / "learner" / file)
            except (OSError, StillhashError):
                lost = [0]
            yield f"learner/{file} was mended" if not lost else f"learner/{file} is lost"
            if not lost:
                sound[version] = file
    gone = [version for version, _ in learners if version not in sound]
    if not gone:
        return
    with store.writing() as connection:
        connection.executemany("UPDATE versions SET learner = NULL WHERE version = ?", [(v,) for v in gone])
        if current in gone and sound:
            last = max(sound)
            connection.execute("UPDATE versions SET learner = ? WHERE version = ?", [sound[last], current])
            yield f"learning goes on from what version {last} had learnt"
    if current in gone and not sound:
        yield "nothing is left to learn on from; searches are as before"


def _drop_lost(store: Store) -> list[Id]:
    """Deletes the items that have no code any more; their ids."""
    with store.reading() as connection:
        rows, stray = store.astray(connection)
        items = store.items(connection, rows.tolist())
    lost = [item.id for item in items.values()]
    if len(rows) or len(stray):
        with store.writing() as connection:
            store.remove(connection, lost)
            seq = store.meta(connection, "seq") + 1
            connection.executemany("INSERT OR IGNORE INTO dead VALUES (?, ?)", [(int(row), seq) for row in stray])
    return lost
