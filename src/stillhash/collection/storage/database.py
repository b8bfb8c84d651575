"""The database file store.db: connections, transactions, and who may write.

It is SQLite, with journal_mode=WAL and synchronous=FULL. What proves that it is sound is in proof.py, the one
connection that changes it in writer.py, and its log in wal.py.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from stillhash.collection.storage.checksums import packed, sums_of
from stillhash.collection.storage.integrity import Connection, connected, damage
from stillhash.collection.storage.sealed_files import sync_folder, write_durably
from stillhash.collection.storage.wal import PAGE
from stillhash.collection.storage.writer import Writer
from stillhash.errors import BadState, Conflict, StoreFailed


class Database:
    """Readers have a connection for each thread; the one writer of all processes has one in addition."""

    def __init__(self, path: Path, *, writer: bool) -> None:
        self.path, self.file = path, path / "store.db"
        self._here = threading.local()
        self._checked = self._closed = False
        self._checking = threading.Lock()
        self._writer: Writer | None = None
        if writer:
            self._writer = Writer(path)
            self._finished = weakref.finalize(self, self._writer.close)  # at the end of the process, at the latest

    @classmethod
    def create(cls, path: Path, script: str, tables: dict[str, list[Any]]) -> None:
        """Makes the file, with these tables and their rows."""
        new = path / "store.db.new"
        for rest in ("", "-journal", "-wal", "-shm"):
            new.with_name(new.name + rest).unlink(missing_ok=True)
        try:
            with closing(sqlite3.connect(new, isolation_level=None)) as connection:
                connection.execute(f"PRAGMA page_size = {PAGE}")
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
                if mode != "wal":  # SQLite does not say why
                    raise StoreFailed(f"{path.name} could not be written: it has no write-ahead log")
                connection.execute("PRAGMA synchronous = FULL")
                connection.executescript("BEGIN IMMEDIATE;" + script)
                for table, rows in tables.items():
                    for row in rows:
                        connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
                connection.execute("COMMIT")
                (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                if busy:  # the file gets another name, its WAL does not
                    raise StoreFailed(f"{path.name} could not be written: its write-ahead log did not empty")
        except sqlite3.DatabaseError as error:
            raise StoreFailed(f"{path.name} could not be written: {error}") from error
        write_durably(path / "store.sums", [packed(sums_of(new.read_bytes()))])
        put_in_place(path)

    def close(self) -> None:
        """Ends this thread's connection, and lets another process write."""
        self._closed = True
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
            self._here.connection = connected(self.file, "ro")
        connection: Connection = self._here.connection
        return connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """All that is read within is of one moment."""
        if self._closed:
            raise Conflict(f"{self.path.name} is closed; open it again")
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
        writer.checkpoint()

    def check_writer(self) -> Writer:
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
        with self._checking:
            if not self._checked:
                if wrong := damage(self.path):
                    raise BadState(f"{self.path.name} is damaged: {wrong[0]}; repair brings back what can be")
                self._checked = True


def put_in_place(path: Path) -> None:
    """Makes store.db.new, which is complete and has its checksums, the database; nothing of an older one stays."""
    for rest in ("acked", "store.db-wal", "store.db-shm"):
        (path / rest).unlink(missing_ok=True)
    (path / "store.db.new").rename(path / "store.db")
    sync_folder(path)
    sync_folder(path.parent)
