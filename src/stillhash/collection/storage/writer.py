"""The writer: the one connection of all processes that changes store.db, and the lock that makes it the only one."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from stillhash.collection.storage.integrity import PATIENCE, Connection, acknowledge, connected, once, write_sums
from stillhash.collection.storage.sealed_files import locked
from stillhash.collection.storage.wal import Noted
from stillhash.errors import BadState, Conflict, StillhashError, StoreFailed

FRAMES = 4000  # in the WAL before they are moved
WAL_BYTES = 1 << 26  # that the WAL may keep once it was longer


class Writer:
    """One thing at a time: a transaction, a checkpoint, the end."""

    left: ClassVar[list[Connection]] = []  # connections that could not be closed

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock: int | None = locked(path)
        self._busy = threading.RLock()
        self._process = os.getpid()
        self._connection: Connection | None = None
        self._noted = Noted(path)
        self._tried = 0  # frames that were there when they were last to be moved
        self._unsure = False  # whether a commit that failed may look like one at the end of the WAL

    @property
    def connection(self) -> Connection:
        if self.lock is None or os.getpid() != self._process:
            raise Conflict(f"{self.path.name} is closed, or was opened by another process; open it again")
        if self._connection is None:
            self._connection = connected(self.path / "store.db", "rw")
            self._connection.execute("PRAGMA wal_autocheckpoint = 0")
            self._connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        return self._connection

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        with self._busy:
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
        """Gives the pages that hold nothing back to the disk."""
        with self._busy:
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
            self.checkpoint(1)

    def checkpoint(self, frames: int = FRAMES) -> bool:
        """Moves pages from the WAL to store.db, once there are so many more; False if that failed, which hurts nobody.

        The WAL is then empty, unless somebody reads from it; who does is not waited for.
        """
        with self._busy:
            self._tried = min(self._tried, self._noted.frames)  # less if the WAL began anew
            if self._noted.frames - self._tried < frames:
                return True
            self._tried = self._noted.frames
            try:
                if self._unsure:
                    with self.transaction():  # nothing, in the place of what failed
                        self._noted = Noted(self.path)
                write_sums(self.path)
                self.connection.execute("PRAGMA busy_timeout = 0")
                try:
                    self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                finally:
                    self.connection.execute(f"PRAGMA busy_timeout = {1000 * PATIENCE}")
            except (StillhashError, OSError, sqlite3.DatabaseError):
                return False
            return True

    def close(self) -> None:
        """Ends it, in the process that began it."""
        if os.getpid() != self._process:
            return
        with self._busy:
            if self._connection is not None:
                if self.checkpoint(0):
                    self._connection.close()
                else:
                    self._leave(self._connection)
                self._connection = None
            if self.lock is not None:
                fcntl.flock(self.lock, fcntl.LOCK_UN)  # a child may have inherited the handle
                os.close(self.lock)
                self.lock = None

    def _leave(self, connection: Connection) -> None:
        """Closes a connection without what SQLite does when the last one is closed: move pages, with no checksums."""
        with suppress(sqlite3.DatabaseError, BadState), once(self.path) as other:
            other.execute("SELECT 1 FROM meta").fetchone()
            connection.close()
            return
        Writer.left.append(connection)  # for ever
