"""The writer: the one connection of all processes that changes store.db, and the lock that makes it the only one."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from stillhash.collection.files import locked
from stillhash.collection.proof import PATIENCE, Connection, acknowledge, connected, once, write_sums
from stillhash.collection.wal import Noted
from stillhash.errors import BadState, StillhashError, StoreFailed

FRAMES = 1000  # in the WAL before they are moved
WAL_BYTES = 1 << 26  # that the WAL may keep once it was longer


class Writer:
    left: ClassVar[list[Connection]] = []  # connections that could not be closed

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock: int | None = locked(path)
        self._connection: Connection | None = None
        self._noted, self._moved = Noted(path), 0
        self._unsure = False  # whether a commit that failed may look like one at the end of the WAL

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            self._connection = connected(self.path / "store.db", "rw")
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
            write_sums(self.path)
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
        Writer.left.append(connection)  # for ever
