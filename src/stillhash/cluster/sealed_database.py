"""SQLite databases that never change, as sealed files (files.py).

SQLite reads such a file as it is, since its header says where the database ends; a page of it is a block that has a
checksum.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from stillhash.collection.storage.database import restrict, sqlite_uri
from stillhash.errors import BadState, StoreFailed
from stillhash.files import (
    BLOCK_SIZE,
    check_sealed,
    content_size,
    create_private,
    display_name,
    write_sealed,
)

DATABASE_COPY_BYTES = 1 << 22  # at a time


@contextmanager
def new_database(path: Path, schema: str) -> Iterator[sqlite3.Connection]:
    """Write a database in the block; the file appears, whole, when the block ends without an error."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.db")
    try:
        with closing(sqlite3.connect(create_private(unfinished), isolation_level=None)) as connection:
            for pragma in (f"page_size = {BLOCK_SIZE}", "journal_mode = OFF", "synchronous = OFF"):
                connection.execute(f"PRAGMA {pragma}")
            connection.executescript(schema)
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")
        with unfinished.open("rb") as file:
            write_sealed(path, iter(lambda: file.read(DATABASE_COPY_BYTES), b""))
    except (sqlite3.OperationalError, OSError) as error:
        raise StoreFailed(f"{display_name(path)}: could not be written: {error}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def check_database(path: Path, *, checksums: bool = True) -> None:
    """Raise BadState if a file is no such database, or does not match its checksums."""
    if checksums:
        check_sealed(path)
    if content_size(path) < BLOCK_SIZE:
        raise BadState(f"{display_name(path)}: expected a database, got a shorter file")


class SealedConnection(sqlite3.Connection):
    """A connection that closes itself when it is no longer used; Python 3.13 and newer warn of others."""

    def __del__(self) -> None:
        with suppress(sqlite3.ProgrammingError):  # it was never opened
            self.close()


def connect_sealed(path: Path) -> sqlite3.Connection:
    """Open a database for reading; its connection may be used by several threads, one at a time."""
    uri = f"{sqlite_uri(path.absolute())}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, factory=SealedConnection)
    restrict(connection)
    return connection
