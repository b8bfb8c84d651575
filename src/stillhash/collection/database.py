"""The database file: SQLite with checksums for its pages, which it has none of itself, and proof of its last commit.

    store.db, -wal, -shm    SQLite, journal_mode=WAL, synchronous=FULL
    store.sums              checksums of the pages of store.db, as of the last checkpoint
    acked                   the number of the last commit that was acknowledged
    wal.sums                checksums of the frames of the WAL, to mend them by (wal.py)

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
import threading
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from stillhash.collection.checksums import Sums, damaged, packed, pair, sums_of, unpacked
from stillhash.collection.files import locked, sync_folder, write_durably
from stillhash.collection.wal import PAGE, Noted, Wal
from stillhash.errors import BadState, Conflict, StillhashError, StoreFailed

FRAMES = 1000  # in the WAL before they are moved
WAL_BYTES = 1 << 26  # that the WAL may keep once it was longer
ACKED = struct.Struct("<QI")  # a commit's number, and a checksum

Connection = sqlite3.Connection


class Database:
    """Readers have a connection for each thread; the one writer of all processes has one in addition."""

    def __init__(self, path: Path, *, writer: bool) -> None:
        self.path, self.file = path, path / "store.db"
        self._here = threading.local()
        self._checked = False
        self._checking = threading.Lock()
        self._writer: _Writer | None = None
        if writer:
            self._writer = _Writer(path)
            self._finished = weakref.finalize(self, self._writer.close)  # at the end of the process, at the latest

    @classmethod
    def create(cls, path: Path, script: str, tables: dict[str, list[Any]]) -> None:
        """Makes the file, with these tables and their rows."""
        new = path / "store.db.new"
        new.unlink(missing_ok=True)
        connection = sqlite3.connect(new, isolation_level=None)
        try:
            connection.execute(f"PRAGMA page_size = {PAGE}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript("BEGIN IMMEDIATE;" + script)
            for table, rows in tables.items():
                for row in rows:
                    connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
            connection.execute("COMMIT")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the file gets another name, its WAL does not
        except sqlite3.DatabaseError as error:
            raise StoreFailed(f"{path.name} could not be written: {error}") from error
        finally:
            connection.close()
        write_durably(path / "store.sums", [packed(sums_of(new.read_bytes()))])
        (path / "acked").unlink(missing_ok=True)
        new.rename(path / "store.db")
        sync_folder(path)
        sync_folder(path.parent)

    def close(self) -> None:
        """Ends this thread's connection, and lets another process write."""
        self.let_go()
        if self._writer:
            self._finished()
            self._writer = None

    def let_go(self) -> None:
        """Ends this thread's connection for reading; the next read makes a new one."""
        if connection := getattr(self._here, "connection", None):
            connection.close()
            self._here.connection = None

    # ---- transactions ----

    def unchecked(self) -> Connection:
        """This thread's connection for reading."""
        if getattr(self._here, "connection", None) is None:
            self._here.connection = _connected(self.file, "ro")
        connection: Connection = self._here.connection
        return connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """All that is read within is of one moment."""
        self.check_once()
        with self._reading() as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            connection = self.unchecked()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")
        except sqlite3.DatabaseError as error:
            raise BadState(f"{self.path.name} cannot be read: {error}") from error

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction: all of it is on disk when this ends, or nothing of it ever was."""
        writer = self.check_writer()
        self.check_once()
        with writer.transaction() as connection:
            yield connection
        writer.checkpoint(FRAMES)

    def check_writer(self) -> _Writer:
        if self._writer is None:
            raise Conflict(f"{self.path.name} is open for reading; open it for writing to change it")
        return self._writer

    def shrink(self) -> None:
        """Gives the pages that hold nothing back to the disk."""
        try:
            writer = self.check_writer()
            writer.connection.execute("VACUUM")
            writer.checkpoint(1)
        except sqlite3.DatabaseError as error:
            raise StoreFailed(
                f"{self.path.name} is compacted, but store.db could not be made smaller: {error}"
            ) from error

    # ---- soundness ----

    def check_once(self) -> None:
        """Refuses a damaged file, before anything is read of it; a process looks once."""
        if not self._checked:
            with self._checking:
                if not self._checked:
                    if wrong := self.damage():
                        raise BadState(f"{self.path.name} is damaged: {wrong[0]}; repair brings back what can be")
                    self._checked = True

    def damage(self) -> list[str]:
        """What is wrong with the file, as sentences."""
        try:
            acknowledged = acked(self.path)
            with self._reading() as connection:
                seq = connection.execute("SELECT value FROM meta WHERE key = 'seq'").fetchone()[0]
                if seq < acknowledged:
                    lost = acknowledged - seq
                    return [f"store.db-wal lacks the last {lost} of {acknowledged} commits, which were acknowledged"]
                return [f"page {page} of store.db is not what was written" for page in bad_pages(self.path)]
        except (BadState, TypeError) as error:
            return [str(error)]


class _Writer:
    """The connection that writes, and the lock that makes it the only one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock: int | None = locked(path)
        self._connection: Connection | None = None
        self._noted = Noted(path)

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            self._connection = _connected(self.path / "store.db", "rw")
            self._connection.execute("PRAGMA wal_autocheckpoint = 0")
            self._connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        return self._connection

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        connection, seq = self.connection, None
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'seq'")
                seq = connection.execute("SELECT value FROM meta WHERE key = 'seq'").fetchone()[0]
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.DatabaseError as error:
            raise StoreFailed(f"{self.path.name} could not be written: {error}") from error
        with suppress(OSError):  # the commit stands; only the proof of it is missing
            acknowledge(self.path, seq)
            self._noted.note()

    def checkpoint(self, frames: int) -> None:
        """Moves pages from the WAL to store.db, once there are so many. That nothing moved hurts nobody."""
        wal = Wal.of(self.path)
        if wal.frames - wal.moved >= frames:
            with suppress(StoreFailed, sqlite3.DatabaseError):
                _write_sums(self.path, wal)
                self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        if self._connection is not None:
            with suppress(StillhashError, sqlite3.DatabaseError):
                self._connection.execute("PRAGMA busy_timeout = 0")
                if (wal := Wal.of(self.path)).frames:
                    _write_sums(self.path, wal)
                    self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.close()
            self._connection = None
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


def bad_pages(path: Path) -> list[int]:
    """The pages of store.db that do not match their checksums; for use within a transaction."""
    while True:
        sums = read_sums(path)
        wal = Wal.of(path)
        waiting = set(wal.mapped()[0].tolist()) if wal.moved < wal.frames else set()
        bad = [page for page in damaged(np.memmap(path / "store.db", np.uint8, "r"), sums) if page not in waiting]
        if not bad or np.array_equal(read_sums(path), sums):  # else a checkpoint came between
            return bad


def read_sums(path: Path) -> Sums:
    try:
        return unpacked((path / "store.sums").read_bytes(), "store.db")
    except OSError as error:
        raise BadState(f"store.sums cannot be read: {error}") from error


def _write_sums(path: Path, wal: Wal) -> None:
    """The checksums that hold once the WAL has moved."""
    sums = np.tile(np.array(pair(bytes(PAGE)), np.uint32), (wal.pages, 1))  # a page never written is zero
    before = read_sums(path)[: wal.pages]
    sums[: len(before)] = before
    numbers, pages = wal.mapped()
    latest = dict(zip(numbers.tolist(), range(len(numbers)), strict=True))
    for number, frame in latest.items():
        if number < wal.pages:
            sums[number] = pair(pages[frame])
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


def _connected(file: Path, mode: str) -> Connection:
    try:
        where = f"file:{quote(str(file))}?mode={mode}"
        connection = sqlite3.connect(where, uri=True, isolation_level=None, timeout=30, check_same_thread=mode == "ro")
        if mode == "rw":
            connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.DatabaseError as error:
        raise BadState(f"{file.parent.name} cannot be opened: {error}") from error
    return connection
