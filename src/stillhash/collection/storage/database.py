"""The database file store.db: one connection for each reading thread, and one that writes.

It is SQLite with journal_mode=WAL and synchronous=FULL. Closing any file handle on store.db drops all locks that SQLite
has on it in this process. So connections are tracked, and a process that has one open does not open the file by other
means.

Damage is detected by checksums of the pages, which SQLite lacks, and by the number of the last commit:

    store.sums    checksums of the pages of store.db, as of the last checkpoint
    acked         the number of the last commit that was acknowledged

A checkpoint moves pages from the WAL to store.db. Only the one writing process does that, and it writes the checksums
that will hold before it begins. A page that is in the WAL is read from there, and SQLite checks it (wal.py); any other
page must match store.sums, before the checkpoint as after. So a crash at any moment leaves both consistent.

To SQLite a damaged WAL ends where the damage begins, and later commits are silently lost. `acked` is written after
every commit and is not fsynced; it reveals lost commits: what is committed is never less than what was acknowledged.

A store is created with `acked`, fsynced, and says so in `meta`. Each later commit overwrites one of its two records in
place, and the next commit the other, so that a power cut leaves the old number or the new one, even where it cuts a
record in two. In such a store `acked` is missing only if it was removed, and that is damage: nothing else would reveal
that the log was cut. Stores of earlier releases lack the entry in `meta`, until their first write.
"""

import os
import shlex
import sqlite3
import struct
import subprocess
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path, PurePath
from typing import ClassVar, Literal
from urllib.parse import quote

import numpy as np

from stillhash.collection.storage.schema import check_counters, check_schema, get_meta, parsing, set_meta
from stillhash.collection.storage.verify_pages import PAGE_SIZE, mismatched_pages, mismatched_pages_in_subprocess
from stillhash.collection.storage.wal import WalFrames, read_wal
from stillhash.errors import BadState, Closed, Conflict, InvalidInput, StillhashError, StoreFailed
from stillhash.files import (
    BlockChecksums,
    check_kind,
    checksum_pair,
    holds_lock,
    lock_folder,
    open_regular,
    open_to_write,
    pack_checksums,
    read_regular,
    translate_read_errors,
    unlock_folder,
    unpack_checksums,
    write_durably,
)
from stillhash.platform import SYSTEM

LOCK_TIMEOUT = 30  # seconds that SQLite waits for a lock
MAX_VALUE_BYTES = 1 << 29  # is how long one value, or one row of a table, may be


class TrackedConnection(sqlite3.Connection):
    """A SQLite connection that is listed while it is open."""

    open_connections: ClassVar[weakref.WeakSet["TrackedConnection"]] = weakref.WeakSet()  # in this process
    file_lock: ClassVar[threading.RLock] = threading.RLock()  # held while a file is opened that SQLite may have open
    file_status: os.stat_result
    immutable: bool  # nothing changes while it is open

    def close(self) -> None:
        super().close()
        with TrackedConnection.file_lock:
            TrackedConnection.open_connections.discard(self)

    def __del__(self) -> None:
        """Close the connection of a thread that has ended; Python 3.13 and newer warn of one that is left open."""
        with suppress(sqlite3.ProgrammingError):  # it was never opened
            super().close()


def check_exists(path: Path) -> None:
    """Raise InvalidInput, which says how a collection is created, if the folder holds none."""
    if not (path / "store.db").is_file():
        command = f"stillhash create {shlex.quote(str(path))} --dim N"
        use = f"Create it by `{command}`; in Python, by stillhash.open(path, dim=N)."
        raise InvalidInput(f"path: no collection at {str(path)!r}. {use}")


def connect(path: Path, mode: Literal["ro", "rw"]) -> sqlite3.Connection:
    """Open store.db in this folder; a connection for writing may be used by several threads, one for reading is not.

    A connection for reading has the tables of a store, or BadState is raised; one for writing comes after such a one.
    """
    file = path / "store.db"
    check_files(path)
    immutable = mode == "ro" and is_immutable(path)
    with ExitStack() as on_error:
        try:
            with TrackedConnection.file_lock:
                connection = sqlite3.connect(
                    f"{sqlite_uri(file.absolute())}?mode={mode}{'&immutable=1' if immutable else ''}",
                    uri=True,
                    isolation_level=None,
                    timeout=LOCK_TIMEOUT,
                    check_same_thread=False,  # the garbage collector may close it in any thread
                    factory=TrackedConnection,
                )
                on_error.callback(connection.close)
                connection.file_status, connection.immutable = file.stat(), immutable
                TrackedConnection.open_connections.add(connection)
            restrict(connection)
            if mode == "rw":
                sync_commits(connection)
            else:
                check_schema(connection)
        except (sqlite3.DatabaseError, OSError) as error:
            if mode == "ro" and wal_bytes(path) and not SYSTEM.can_write(path):
                use = "Run `stillhash flush` on it where it can be written, or use a snapshot of it."
                problem = "its log store.db-wal has changes, which cannot be read in a folder that cannot be written"
                raise BadState(f"{path.name}: {problem}. {use}") from error
            raise BadState(f"{path.name}: cannot be opened: {error}") from error
        on_error.pop_all()
    return connection


def stored_format(path: Path) -> int | None:
    """Return the format of the store in this folder, None if it cannot be read."""
    try:
        with closing(connect(path, "ro")) as connection:
            value = get_meta(connection, "format")
            return value if isinstance(value, int) else None
    except (BadState, ValueError):
        return None


def sqlite_uri(file: PurePath) -> str:
    """Return the URI of an absolute path as SQLite reads it, with a slash before a drive letter."""
    name = file.as_posix()
    return f"file://{'' if name.startswith('/') else '/'}{quote(name)}"


def sync_commits(connection: sqlite3.Connection) -> None:
    """Let each commit wait until it is on disk; on macOS that takes a call of its own, which SQLite does not use."""
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA checkpoint_fullfsync = ON")


def restrict(connection: sqlite3.Connection) -> None:
    """Let a database that may come from anyone run no SQL of its own, and hold no value of any size."""
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 0)


def check_files(path: Path) -> None:
    """Raise BadState if SQLite would open something else than files, or play back a journal, which a store never has.

    Such a journal may name other files, which SQLite then reads and removes.
    """
    for name in ("store.db", "store.db-wal", "store.db-shm"):
        check_kind(path / name)
    if os.path.lexists(path / "store.db-journal"):
        raise BadState(f"{path.name}: expected no file store.db-journal, got one. Remove it if it is yours.")


def is_immutable(path: Path) -> bool:
    """Return whether this is a closed store in a folder that cannot be written.

    SQLite creates files to read a WAL, also an empty one, unless it takes the database to be immutable. Where a WAL and
    shared memory exist, another process may be writing, and SQLite can read both.
    """
    used = (path / "store.db-wal").exists() and (path / "store.db-shm").exists()
    return not used and not wal_bytes(path) and not SYSTEM.can_write(path)


def wal_bytes(path: Path) -> int:
    """Return the size of the WAL, 0 if there is none."""
    try:
        return (path / "store.db-wal").stat().st_size
    except OSError:
        return 0


def is_stale(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether a database that was taken to be immutable has changed, or may be changing."""
    if not isinstance(connection, TrackedConnection) or not connection.immutable:
        return False
    before, now = connection.file_status, (path / "store.db").stat()
    changed = (before.st_ino, before.st_size, before.st_mtime_ns) != (now.st_ino, now.st_size, now.st_mtime_ns)
    return changed or not is_immutable(path)


def in_use(path: Path) -> bool:
    """Return whether this process has store.db of this folder open, under any name, with locks that it could lose."""
    status = (path / "store.db").stat()
    locking = [connection for connection in TrackedConnection.open_connections if not connection.immutable]
    return any(os.path.samestat(connection.file_status, status) for connection in locking)


ACKED_RECORD = struct.Struct("<QI")  # a commit's number, and a checksum
ACKED_KEY = "acked"  # is in `meta` where the file of this name is never missing
ACKED_RECORDS = 2  # records are written in turn
READ_ATTEMPTS = 3  # a file is read again where a handle lacks for a moment, say
MAX_CHECKSUM_BYTES = 1 << 16  # of store.sums are read, beside twice those of the pages that there are


def find_damage(
    path: Path,
    check: Callable[[sqlite3.Connection], None] | None = None,
    on_bytes: Callable[[int], object] | None = None,
) -> list[str]:
    """Describe what is wrong with the database file in this folder, one sentence for each problem.

    check: raises BadState for what else is wrong. on_bytes: called with the bytes that are compared, part by part.
    """
    acknowledged = acknowledged_commit(path)
    try:
        check_files(path)
        pages = damaged_pages(path, on_bytes)
        with closing(connect(path, "ro")) as connection:
            seq = committed_seq(connection)
            if not pages and check is not None:
                check(connection)
            if acknowledged is None and lacks_acknowledgement(connection, path):
                return ["acked: missing or damaged, so that commits may be lost from store.db-wal unnoticed"]
    except (BadState, sqlite3.DatabaseError) as error:
        return [str(error)]
    if acknowledged is not None and seq < acknowledged:
        return [f"store.db-wal: lost the last {acknowledged - seq} of {acknowledged} acknowledged commits"]
    return [f"store.db: page {page} does not match its checksum" for page in pages]


def committed_seq(connection: sqlite3.Connection) -> int:
    """Return the number of the last commit that this connection sees."""
    seq = get_meta(connection, "seq")
    if not isinstance(seq, int):
        raise BadState(f"seq: expected the number of a commit, got {seq!r:.100}")
    return seq


def damaged_pages(path: Path, on_bytes: Callable[[int], object] | None = None) -> list[int]:
    """List the pages of store.db that do not match their checksums.

    Another process may be moving pages meanwhile. It writes new checksums first, so a mismatch is checked again.
    """
    while True:
        checksums = read_page_checksums(path)
        try:
            in_wal = set(read_wal(path).page_numbers.tolist())
            with TrackedConnection.file_lock:
                compare = mismatched_pages_in_subprocess if in_use(path) else mismatched_pages
                mismatched = compare(str(path / "store.db"), str(path / "store.sums"), on_bytes)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise BadState(f"store.db: cannot be verified: {error}") from error
        damaged = [page for page in mismatched if page not in in_wal]
        if not damaged or np.array_equal(read_page_checksums(path), checksums):
            return damaged


def read_page_checksums(path: Path) -> BlockChecksums:
    file = path / "store.sums"
    with translate_read_errors(file):
        pages = ((path / "store.db").stat().st_size + wal_bytes(path)) // PAGE_SIZE
        return unpack_checksums(read_regular(file, 16 * pages + MAX_CHECKSUM_BYTES), file.name)


def write_page_checksums(path: Path) -> None:
    """Write the checksums that hold once the WAL is moved to store.db."""
    wal = read_wal(path, checksums=True)
    if not wal.page_count:
        return
    checksums = np.tile(np.array(checksum_pair(bytes(PAGE_SIZE)), np.uint32), (wal.page_count, 1))  # unwritten: zeros
    previous = read_page_checksums(path)[: wal.page_count]
    checksums[: len(previous)] = previous
    latest = dict(zip(wal.page_numbers.tolist(), range(len(wal.frames)), strict=True))
    for page, frame in latest.items():
        if page < wal.page_count:
            checksums[page] = wal.checksums[frame]
    write_durably(path / "store.sums", [pack_checksums(checksums)])


def acknowledged_commit(path: Path) -> int | None:
    """Return the number of the last acknowledged commit, None if it is not known."""
    for _ in range(READ_ATTEMPTS):
        with suppress(OSError, BadState), open_regular(path / "acked") as file:
            data = file.read(ACKED_RECORDS * ACKED_RECORD.size)
            whole = data[: len(data) - len(data) % ACKED_RECORD.size]
            records = ACKED_RECORD.iter_unpack(whole)
            if numbers := [seq for seq, crc in records if zlib.crc32(seq.to_bytes(8, "little")) == crc]:
                return int(max(numbers))
    return None


def lacks_acknowledgement(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether `acked` is missing or damaged in a store that was created with it."""
    return get_meta(connection, ACKED_KEY) is not None and acknowledged_commit(path) is None


def acknowledge(path: Path, seq: int, *, durably: bool = False) -> None:
    """Record that this commit was acknowledged, without waiting for the disk unless `durably`."""
    record = ACKED_RECORD.pack(seq, zlib.crc32(seq.to_bytes(8, "little")))
    if durably:
        write_durably(path / "acked", [record] * ACKED_RECORDS)
    else:
        with open_to_write(path / "acked") as file:
            file.seek(seq % ACKED_RECORDS * ACKED_RECORD.size)
            file.write(record)


def begin_acknowledging(connection: sqlite3.Connection, path: Path) -> None:
    """Make sure that `acked` is on disk and never missing from now on, in a store of an earlier release."""
    if get_meta(connection, ACKED_KEY) is None:
        acknowledge(path, committed_seq(connection), durably=True)
        set_meta(connection, ACKED_KEY, 1)


CHECKPOINT_FRAMES = 4000  # pages may be in the WAL before they are moved to store.db
MIN_CHECKPOINT_FRAMES = 500  # the same while store.db is small: a quarter of its pages, and at least so many
UNUSED_SHARE = 8  # store.db gives unused pages back to the disk once more than one in so many is unused,
MIN_UNUSED_PAGES = 256  # and they are at least this many,
FREED_AT_ONCE = 1 << 16  # so many after one write
FREED_BY_COMPACTION = 1 << 12  # so many at a time
INCREMENTAL = 2  # as PRAGMA auto_vacuum has it
PAGE_COUNTS = ("freelist_count", "page_count")
MAX_WAL_BYTES = 1 << 26  # of an emptied WAL stay on disk


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
