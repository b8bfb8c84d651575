"""The database file store.db: one connection for each reading thread, and one that writes.

It is SQLite with journal_mode=WAL and synchronous=FULL. integrity.py detects damage, wal.py reads the log.
"""

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from stillhash.collection.storage.connections import LOCK_TIMEOUT, connect, is_stale, wal_bytes
from stillhash.collection.storage.integrity import (
    acknowledge,
    begin_acknowledging,
    committed_seq,
    find_damage,
    write_page_checksums,
)
from stillhash.collection.storage.schema import check_counters, parsing
from stillhash.collection.storage.wal import WalFrames
from stillhash.errors import BadState, Closed, Conflict, StillhashError, StoreFailed
from stillhash.files import holds_lock, lock_folder, unlock_folder
from stillhash.platform import SYSTEM

CHECKPOINT_FRAMES = 4000  # in the WAL before they are moved to store.db
MIN_CHECKPOINT_FRAMES = 500  # the same while store.db is small: a quarter of its pages, and at least so many
UNUSED_SHARE = 8  # store.db gives unused pages back to the disk once more than one in so many is unused,
MIN_UNUSED_PAGES = 256  # and they are at least this many,
FREED_AT_ONCE = 1 << 16  # so many after one write
FREED_BY_COMPACTION = 1 << 12  # so many at a time
INCREMENTAL = 2  # as PRAGMA auto_vacuum has it
PAGE_COUNTS = ("freelist_count", "page_count")
MAX_WAL_BYTES = 1 << 26  # that an emptied WAL keeps on disk


class Database:
    """Read in a connection per thread; write in one connection, which only one process has at a time.

    The owner must call `close` before the process ends, so that pages are moved to store.db with their checksums.
    """

    unclosed: ClassVar[list[sqlite3.Connection]] = []  # connections that could not be closed safely

    def __init__(self, path: Path, *, writer: bool, wait: float = 0.0) -> None:
        self.path = path
        self._local = threading.local()
        self._read_connections: weakref.WeakSet[sqlite3.Connection] = weakref.WeakSet()  # of all threads
        self._verified = self._closed = False
        self._verify_lock = threading.Lock()
        self._process = os.getpid()
        self._folder_lock = lock_folder(path, wait) if writer else None
        self._write_lock = threading.RLock()
        self._writer: sqlite3.Connection | None = None
        self._wal_frames = WalFrames(path)
        self._attempted_frames = 0  # in the WAL at the last attempt of a checkpoint
        self._commit_failed = False  # then the WAL may end with something that looks like a commit

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Read in one transaction: everything in the block is of the same commit."""
        self._check_open()
        self.verify_once()
        try:
            connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
            if connection is not None and is_stale(connection, self.path):
                connection.close()
                connection = None
            if connection is None:
                connection = self._local.connection = connect(self.path, "ro")
                self._read_connections.add(connection)
            connection.execute("BEGIN")
            try:
                with parsing(self.path.name):
                    yield connection
            finally:
                if connection.in_transaction:  # without memory SQLite ends it by itself
                    connection.execute("ROLLBACK")
        except sqlite3.DatabaseError as error:
            raise BadState(f"{self.path.name}: cannot be read: {error}") from error

    def verify_once(self) -> None:
        """Raise BadState if the file is damaged; verified before the first use, once for each process."""
        if self._verified:
            return
        with self._verify_lock:
            if not self._verified:
                if damage := find_damage(self.path, check_counters):
                    raise BadState(f"{self.path.name}: damaged: {damage[0]}. Use repair, or a snapshot.")
                self._verified = True

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write in one transaction: all of it is on disk when the block ends, or nothing of it ever was."""
        self.check_writer()
        self.verify_once()
        with self._write_lock:
            connection, seq = self._writer_connection(), 0
            try:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    begin_acknowledging(connection, self.path)
                    yield connection
                    connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'seq'")
                    seq = committed_seq(connection)
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
            except sqlite3.DatabaseError as error:
                self._commit_failed = True
                raise StoreFailed(f"{self.path.name}: could not be written: {error}") from error
            except MemoryError:  # perhaps after the commit
                if not seq or committed_seq(connection) != seq:
                    self._commit_failed = True
                    raise
            self._commit_failed = False
            with suppress(OSError, MemoryError):  # the commit is on disk
                acknowledge(self.path, seq)
                self._wal_frames.update()
            self._free_pages(connection)
            self.checkpoint(self._most_frames(connection))

    def check_writer(self) -> None:
        """Raise Conflict if this was opened for reading only."""
        self._check_open()
        if self._folder_lock is None:
            raise Conflict(f"{self.path.name}: open for reading only. Open it without read_only=True to change it.")
        if not holds_lock(self.path, self._folder_lock):
            replaced = "its file lock was removed or replaced, so another process may be writing"
            raise Conflict(f"{self.path.name}: {replaced}. Close the collection and open it again.")

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.path.name}: the collection is closed. Open it again.")

    def _most_frames(self, connection: sqlite3.Connection) -> int:
        """Return how many frames the WAL may have: few while store.db is small, so that it is no multiple of it."""
        with suppress(sqlite3.DatabaseError, MemoryError):
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            return min(CHECKPOINT_FRAMES, max(MIN_CHECKPOINT_FRAMES, int(pages) // 4))
        return CHECKPOINT_FRAMES

    def _free_pages(self, connection: sqlite3.Connection) -> None:
        """Give unused pages back to the disk if they are many; a later write tries again if that fails.

        A store of an earlier release does so from its next compaction on.
        """
        with suppress(sqlite3.DatabaseError, OSError, MemoryError):
            (unused,), (pages,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in PAGE_COUNTS)
            if unused < MIN_UNUSED_PAGES or unused * UNUSED_SHARE < pages:
                return
            self._commit_failed = True
            connection.executescript(f"PRAGMA incremental_vacuum({FREED_AT_ONCE})")  # `execute` frees one page
            self._commit_failed = False
            self._wal_frames.update()
            self.checkpoint(1)

    def frees_pages(self) -> bool:
        """Return whether `free_pages` can free any: not in a store of an earlier release, before its compaction."""
        with self._write_lock:
            return int(self._writer_connection().execute("PRAGMA auto_vacuum").fetchone()[0]) == INCREMENTAL

    def free_pages(self) -> None:
        """Give all unused pages back to the disk, so many in one transaction that other writes wait for a moment."""
        self.check_writer()
        left = 0
        while True:
            with self._write_lock:
                connection = self._writer_connection()
                unused = int(connection.execute("PRAGMA freelist_count").fetchone()[0])
                if not unused or unused == left:
                    return
                left = unused
                self._vacuum(connection, f"PRAGMA incremental_vacuum({FREED_BY_COMPACTION})")

    def _vacuum(self, connection: sqlite3.Connection, sql: str) -> None:
        try:
            self._commit_failed = True
            connection.executescript(sql)
            self._commit_failed = False
        except sqlite3.DatabaseError as error:
            raise StoreFailed(f"{self.path.name}: compacted, but store.db could not be shrunk: {error}") from error
        with suppress(OSError):
            self._wal_frames.update()
        self.checkpoint(1)

    def shrink(self) -> None:
        """Write store.db again, without unused pages and without anything of what was deleted."""
        self.check_writer()
        with self._write_lock:
            self._vacuum(self._writer_connection(), "PRAGMA auto_vacuum = INCREMENTAL; VACUUM")

    def checkpoint(self, min_frames: int) -> bool:
        """Move pages from the WAL to store.db, once it has so many new frames; return False on failure.

        The WAL is empty afterwards, unless another process reads from it, which is not waited for. After a failure the
        WAL is as good as before, and the next write tries again.
        """
        with self._write_lock:
            frames = self._wal_frames.count
            self._attempted_frames = min(self._attempted_frames, frames)  # fewer if the WAL started again
            if frames - self._attempted_frames < min_frames:
                return True
            self._attempted_frames = frames
            try:
                if self._commit_failed:
                    with self.transaction():  # an empty commit overwrites the failed one
                        self._wal_frames = WalFrames(self.path)
                write_page_checksums(self.path)
                connection = self._writer_connection()
                connection.execute("PRAGMA busy_timeout = 0")
                try:
                    (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                    if not busy:
                        self._attempted_frames = 0  # the WAL is empty
                finally:
                    connection.execute(f"PRAGMA busy_timeout = {1000 * LOCK_TIMEOUT}")
            except (StillhashError, OSError, MemoryError, sqlite3.DatabaseError):
                return False
            return True

    def empty_log(self, seconds: float) -> bool:
        """Move all pages from the WAL to store.db, and empty it; return False if others read from it for so long."""
        deadline = time.monotonic() + seconds
        while not (self.checkpoint(0) and not wal_bytes(self.path)):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        return True

    def close(self) -> None:
        """Close this thread's connection, move pages to store.db, and release the write lock."""
        if connection := getattr(self._local, "connection", None):
            connection.close()
            self._local.connection = None
        if os.getpid() == self._process:  # a fork must not release the lock of its parent
            with self._write_lock:
                self._close_writer()
        self._closed = True
        if not SYSTEM.open_files_can_move:  # a folder with an open file can be neither renamed nor removed
            for other in list(self._read_connections):
                with suppress(sqlite3.ProgrammingError):  # closed already
                    if not other.in_transaction:
                        other.close()

    def _close_writer(self) -> None:
        if self._writer is not None:
            mine = self._folder_lock is not None and holds_lock(self.path, self._folder_lock)
            if mine and self.checkpoint(0):
                self._writer.close()
            else:
                self._close_without_checkpoint(self._writer)
            self._writer = None
        if self._folder_lock is not None:
            unlock_folder(self._folder_lock)
            self._folder_lock = None

    def _writer_connection(self) -> sqlite3.Connection:
        if self._folder_lock is None or os.getpid() != self._process:
            raise Closed(f"{self.path.name}: closed, or opened by the parent process. Open it again.")
        if self._writer is None:
            self._writer = connect(self.path, "rw")
            self._writer.execute("PRAGMA wal_autocheckpoint = 0")
            self._writer.execute("PRAGMA secure_delete = FAST")  # nothing of deleted rows in pages that are written
            self._writer.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
        return self._writer

    def _close_without_checkpoint(self, connection: sqlite3.Connection) -> None:
        """Close a connection while another is open: the last to close would move pages without their checksums."""
        with suppress(sqlite3.DatabaseError, MemoryError, BadState), closing(connect(self.path, "ro")) as other:
            other.execute("SELECT 1 FROM meta").fetchone()
            connection.close()
            return
        Database.unclosed.append(connection)  # permanently
