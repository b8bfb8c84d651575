"""Connections to store.db, and which of them this process has open.

Closing any file handle on store.db drops all locks that SQLite has on it in this process. So connections are tracked,
and a process that has one open does not open the file by other means.
"""

import os
import sqlite3
import threading
import weakref
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import quote

from stillhash.errors import BadState

LOCK_TIMEOUT = 30  # seconds that SQLite waits for a lock


class TrackedConnection(sqlite3.Connection):
    """A SQLite connection that is listed while it is open."""

    open_connections: ClassVar[weakref.WeakSet["TrackedConnection"]] = weakref.WeakSet()  # in this process
    file_lock: ClassVar[threading.RLock] = threading.RLock()  # held while a file is opened that SQLite may have open
    file_status: os.stat_result

    def close(self) -> None:
        super().close()
        with TrackedConnection.file_lock:
            TrackedConnection.open_connections.discard(self)


def connect(path: Path, mode: Literal["ro", "rw"]) -> sqlite3.Connection:
    """Open store.db in this folder; a connection for writing may be used by several threads."""
    file = path / "store.db"
    try:
        with TrackedConnection.file_lock:
            connection = sqlite3.connect(
                f"file:{quote(str(file.absolute()))}?mode={mode}",
                uri=True,
                isolation_level=None,
                timeout=LOCK_TIMEOUT,
                check_same_thread=mode == "ro",
                factory=TrackedConnection,
            )
            connection.file_status = file.stat()
            TrackedConnection.open_connections.add(connection)
        if mode == "rw":
            connection.execute("PRAGMA synchronous = FULL")
    except (sqlite3.DatabaseError, OSError) as error:
        raise BadState(f"{path.name}: cannot be opened: {error}") from error
    return connection


def in_use(path: Path) -> bool:
    """Return whether this process has store.db of this folder open, under any name."""
    status = (path / "store.db").stat()
    return any(os.path.samestat(connection.file_status, status) for connection in TrackedConnection.open_connections)
