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
import subprocess
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import numpy as np

from stillhash.collection.checksums import Sums, packed, pair, sums_of, unpacked
from stillhash.collection.files import locked, sync_folder, write_durably
from stillhash.collection.looking import differing, differing_elsewhere
from stillhash.collection.wal import FRAME, PAGE, Noted, read_wal
from stillhash.errors import BadState, Conflict, StillhashError, StoreFailed

FRAMES = 1000  # in the WAL before they are moved
PATIENCE = 30  # seconds that SQLite waits for a lock
WAL_BYTES = 1 << 26  # that the WAL may keep once it was longer
ACKED = struct.Struct("<QI")  # a commit's number, and a checksum

Connection = sqlite3.Connection
Look = Callable[[str, str], list[int]]


class Database:
    """Readers have a connection for each thread; the one writer of all processes has one in addition."""

    _open: ClassVar[weakref.WeakSet[Database]] = weakref.WeakSet()  # in this process
    _checking: ClassVar[threading.Lock] = threading.Lock()
    left: ClassVar[list[Connection]] = []  # that could not be closed

    def __init__(self, path: Path, *, writer: bool) -> None:
        self.path, self.file = path, (path / "store.db").absolute()
        self._here = threading.local()
        self._checked = False
        self._writer: _Writer | None = None
        if writer:
            self._writer = _Writer(path)
            self._finished = weakref.finalize(self, self._writer.close)  # at the end of the process, at the latest
        Database._open.add(self)

    @classmethod
    def create(cls, path: Path, script: str, tables: dict[str, list[Any]]) -> None:
        """Makes the file, with these tables and their rows."""
        new = path / "store.db.new"
        new.unlink(missing_ok=True)
        try:
            with closing(sqlite3.connect(new, isolation_level=None)) as connection:
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
        write_durably(path / "store.sums", [packed(sums_of(new.read_bytes()))])
        (path / "acked").unlink(missing_ok=True)
        new.rename(path / "store.db")
        sync_folder(path)
        sync_folder(path.parent)

    def close(self) -> None:
        """Ends this thread's connection, and lets another process write."""
        Database._open.discard(self)
        if connection := getattr(self._here, "connection", None):
            connection.close()
            self._here.connection = None
        if self._writer:
            self._finished()
            self._writer = None

    # ---- transactions ----

    def connection(self) -> Connection:
        """This thread's connection for reading."""
        if getattr(self._here, "connection", None) is None:
            self._here.connection = _connected(self.file, "ro")
        connection: Connection = self._here.connection
        return connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """All that is read within is of one moment."""
        self.check_once()
        try:
            connection = self.connection()
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
        self.check_writer().shrink()

    # ---- soundness ----

    def check_once(self) -> None:
        """Refuses a damaged file, before anything is read of it; a process looks once."""
        if self._checked:
            return
        with Database._checking:  # whoever has it open already has looked; and the file must not be touched beside them
            others = any(other._checked and other.file == self.file for other in Database._open)
            if wrong := [] if others else damage(self.path):
                raise BadState(f"{self.path.name} is damaged: {wrong[0]}; repair brings back what can be")
            self._checked = True

    def damage(self) -> list[str]:
        """What is wrong with the file, as sentences; another process looks, so that no lock of this one is lost."""
        return damage(self.path, differing_elsewhere)


def damage(path: Path, look: Look = differing) -> list[str]:
    """What is wrong with the database file in this folder; `look` as a process must that has it open, or not."""
    acknowledged = acked(path)
    try:
        bad = bad_pages(path, look)
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
    connection = _connected(path / "store.db", "ro")
    try:
        yield connection
    finally:
        connection.close()


class _Writer:
    """The connection that writes, and the lock that makes it the only one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock: int | None = locked(path)
        self._connection: Connection | None = None
        self._noted, self._moved = Noted(path), 0
        self._unsure = False  # whether a commit that failed may look like one at the end of the WAL

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
            self._unsure = True
            raise StoreFailed(f"{self.path.name} could not be written: {error}") from error
        self._unsure = False
        with suppress(OSError):  # the commit stands; only the proof of it is missing
            acknowledge(self.path, seq)
            self._noted.note()

    def shrink(self) -> None:
        try:
            self._unsure = True
            self.connection.execute("VACUUM")
            self._unsure = False
        except sqlite3.DatabaseError as error:
            raise StoreFailed(
                f"{self.path.name} is compacted, but store.db could not be made smaller: {error}"
            ) from error
        with suppress(OSError):
            self._noted.note()
        self.checkpoint(1, "TRUNCATE")

    def checkpoint(self, frames: int, how: str = "PASSIVE") -> bool:
        """Moves pages from the WAL to store.db, once there are so many; False if that failed, which hurts nobody."""
        if self._noted.frames < self._moved:
            self._moved = 0  # the WAL began anew
        if self._noted.frames - self._moved < frames:
            return True
        try:
            if self._unsure:
                with self.transaction():  # nothing, in the place of what failed
                    self._noted = Noted(self.path)
            _write_sums(self.path)
            self.connection.execute("PRAGMA busy_timeout = 0")  # who reads is not waited for
            _, _, self._moved = self.connection.execute(f"PRAGMA wal_checkpoint({how})").fetchone()
            self.connection.execute(f"PRAGMA busy_timeout = {1000 * PATIENCE}")
        except (StillhashError, OSError, sqlite3.DatabaseError):
            return False
        return True

    def close(self) -> None:
        if self._connection is not None:
            if self.checkpoint(0, "TRUNCATE"):
                self._connection.close()
            else:
                self._leave(self._connection)
            self._connection = None
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def _leave(self, connection: Connection) -> None:
        """Closes a connection without what SQLite does when the last one is closed: move pages, with no checksums."""
        with suppress(sqlite3.DatabaseError, BadState), once(self.path) as other:
            other.execute("SELECT 1 FROM meta").fetchone()
            connection.close()
            return
        Database.left.append(connection)  # for ever


def bad_pages(path: Path, look: Look) -> list[int]:
    """The pages of store.db that do not match their checksums.

    Another process may be moving pages meanwhile: it writes new checksums first, so what differs is looked at again.
    """
    while True:
        sums = read_sums(path)
        waiting = set(read_wal(path).numbers.tolist())
        try:
            bad = [page for page in look(str(path / "store.db"), str(path / "store.sums")) if page not in waiting]
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise BadState(f"store.db cannot be looked at: {error}") from error
        if not bad or np.array_equal(read_sums(path), sums):
            return bad


def read_sums(path: Path) -> Sums:
    try:
        return unpacked((path / "store.sums").read_bytes(), "store.db")
    except OSError as error:
        raise BadState(f"store.sums cannot be read: {error}") from error


def _write_sums(path: Path) -> None:
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


def _connected(file: Path, mode: str) -> Connection:
    try:
        where = f"file:{quote(str(file))}?mode={mode}"
        connection = sqlite3.connect(
            where, uri=True, isolation_level=None, timeout=PATIENCE, check_same_thread=mode == "ro"
        )
        if mode == "rw":
            connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.DatabaseError as error:
        raise BadState(f"{file.parent.name} cannot be opened: {error}") from error
    return connection
