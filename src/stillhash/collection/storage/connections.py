"""Connections to store.db, and which of them this process has open.

Closing any file handle on store.db drops all locks that SQLite has on it in this process. So connections are tracked,
and a process that has one open does not open the file by other means.
"""

import os
import shlex
import sqlite3
import threading
import weakref
from contextlib import ExitStack, closing, suppress
from pathlib import Path, PurePath
from typing import ClassVar, Literal
from urllib.parse import quote

from stillhash.collection.storage.schema import get_meta
from stillhash.collection.storage.schema_check import check_schema
from stillhash.errors import BadState, InvalidInput
from stillhash.files import check_kind
from stillhash.platform import SYSTEM

LOCK_TIMEOUT = 30  # seconds that SQLite waits for a lock
MAX_VALUE_BYTES = 1 << 29  # of one value, or of one row of a table


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
