"""Proof that store.db is what was written: checksums of its pages, which SQLite has none of, and of its last commit.

    store.sums    checksums of the pages of store.db, as of the last checkpoint
    acked         the number of the last commit that was acknowledged

SQLite moves pages from the WAL to store.db at a checkpoint. Only the one process that writes does that here, and it
writes the checksums that will hold before it begins. A page that is still in the WAL is read from there, and SQLite
checks it itself; any other page must match store.sums, before as after. So a crash at any moment leaves both sound.

A damaged WAL ends, for SQLite, where the damage begins: later commits are silently gone. `acked`, written after every
commit and synced never, knows better: what is committed is never less than what was acknowledged.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import subprocess
import threading
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import numpy as np

from stillhash.collection.storage.checksums import Sums, packed, pair, unpacked
from stillhash.collection.storage.sealed_files import write_durably
from stillhash.collection.storage.verify_pages import differing, differing_elsewhere
from stillhash.collection.storage.wal import FRAME, PAGE, read_wal
from stillhash.errors import BadState

PATIENCE = 30  # seconds that SQLite waits for a lock
ACKED = struct.Struct("<QI")  # a commit's number, and a checksum

Connection = sqlite3.Connection


def damage(path: Path) -> list[str]:
    """What is wrong with the database file in this folder, as sentences."""
    acknowledged = acked(path)
    try:
        bad = bad_pages(path)
        with once(path) as connection:
            seq = connection.execute("SELECT value FROM meta WHERE key = 'seq'").fetchone()[0]
    except (BadState, TypeError, sqlite3.DatabaseError) as error:
        return [str(error)]
    if seq < acknowledged:
        return [f"store.db-wal lacks the last {acknowledged - seq} of {acknowledged} commits, which were acknowledged"]
    return [f"page {page} of store.db is not what was written" for page in bad]


@contextmanager
def once(path: Path) -> Iterator[Connection]:
    """A connection for reading that does not stay."""
    connection = connected(path / "store.db", "ro")
    try:
        yield connection
    finally:
        connection.close()


def bad_pages(path: Path) -> list[int]:
    """The pages of store.db that do not match their checksums.

    Another process may be moving pages meanwhile: it writes new checksums first, so what differs is looked at again.
    """
    while True:
        sums = read_sums(path)
        try:
            waiting = set(read_wal(path).numbers.tolist())
            with Tracked.touching:
                look = differing_elsewhere if in_use(path) else differing
                found = look(str(path / "store.db"), str(path / "store.sums"))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise BadState(f"store.db cannot be looked at: {error}") from error
        bad = [page for page in found if page not in waiting]
        if not bad or np.array_equal(read_sums(path), sums):
            return bad


def read_sums(path: Path) -> Sums:
    try:
        return unpacked((path / "store.sums").read_bytes(), "store.db")
    except OSError as error:
        raise BadState(f"store.sums cannot be read: {error}") from error


def write_sums(path: Path) -> None:
    """The checksums that hold once the WAL has moved."""
    wal = read_wal(path)
    if not wal.pages:
        return
    sums = np.tile(np.array(pair(bytes(PAGE)), np.uint32), (wal.pages, 1))  # a page never written is zero
    before = read_sums(path)[: wal.pages]
    sums[: len(before)] = before
    latest = dict(zip(wal.numbers.tolist(), range(len(wal.frames)), strict=True))
    for number, frame in latest.items():
        if number < wal.pages:
            sums[number] = pair(wal.frames[frame, FRAME:])
    write_durably(path / "store.sums", [packed(sums)])


def acked(path: Path) -> int:
    """The last commit that was acknowledged, as far as is known."""
    try:
        seq, crc = ACKED.unpack((path / "acked").read_bytes())
    except (OSError, struct.error):
        return 0
    return seq if zlib.crc32(seq.to_bytes(8, "little")) == crc else 0


def acknowledge(path: Path, seq: int) -> None:
    """Notes that this commit was acknowledged, without waiting for the disk."""
    handle = os.open(path / "acked", os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(handle, ACKED.pack(seq, zlib.crc32(seq.to_bytes(8, "little"))), 0)
    finally:
        os.close(handle)


class Tracked(sqlite3.Connection):
    """A connection that is known for as long as it is open."""

    open_: ClassVar[weakref.WeakSet[Tracked]] = weakref.WeakSet()  # in this process
    touching: ClassVar[threading.RLock] = threading.RLock()  # held while a file is opened that SQLite may have open
    file: tuple[int, int] | None = None

    def close(self) -> None:
        super().close()
        with Tracked.touching:
            Tracked.open_.discard(self)


def in_use(path: Path) -> bool:
    """Whether this process has store.db open, under whatever name."""
    return any(connection.file == _identity(path / "store.db") for connection in Tracked.open_)


def connected(file: Path, mode: str) -> Connection:
    try:
        where = f"file:{quote(str(file.absolute()))}?mode={mode}"
        with Tracked.touching:
            connection = sqlite3.connect(
                where,
                uri=True,
                isolation_level=None,
                timeout=PATIENCE,
                check_same_thread=mode == "ro",
                factory=Tracked,
            )
            connection.file = _identity(file)
            Tracked.open_.add(connection)
        if mode == "rw":
            connection.execute("PRAGMA synchronous = FULL")
    except (sqlite3.DatabaseError, OSError) as error:
        raise BadState(f"{file.parent.name} cannot be opened: {error}") from error
    return connection


def _identity(file: Path) -> tuple[int, int]:
    about = file.stat()
    return about.st_dev, about.st_ino
