"""Create the database file store.db: complete, with its checksums, or not at all."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from stillhash.collection.storage.connections import sync_commits
from stillhash.collection.storage.integrity import acknowledge
from stillhash.collection.storage.lexical import rebuild_lexical
from stillhash.collection.storage.verify_pages import PAGE_SIZE
from stillhash.errors import StoreFailed
from stillhash.files.checksums import pack_file_checksums
from stillhash.files.sealed_files import create_private, write_durably
from stillhash.platform import SYSTEM


def create_database(path: Path, script: str, tables: dict[str, list[Any]]) -> None:
    """Create the file with these tables and their rows, and index their words where there is a lexical index."""
    new = path / "store.db.new"
    for suffix in ("", "-journal", "-wal", "-shm"):
        new.with_name(new.name + suffix).unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(create_private(new), isolation_level=None)) as connection:
            connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":  # SQLite does not say why
                raise StoreFailed(f"{path.name}: could not be written: it has no write-ahead log")
            sync_commits(connection)
            connection.executescript("BEGIN IMMEDIATE;" + script)
            for table, rows in tables.items():
                for row in rows:
                    connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
            rebuild_lexical(connection)
            connection.execute("COMMIT")
            (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:  # the file is renamed, its WAL is not
                raise StoreFailed(f"{path.name}: could not be written: its write-ahead log did not empty")
    except sqlite3.DatabaseError as error:
        raise StoreFailed(f"{path.name}: could not be written: {error}") from error
    write_durably(path / "store.sums", [pack_file_checksums(new)])
    acknowledge(path, dict(tables["meta"])["seq"], durably=True)
    install_database(path)


def install_database(path: Path) -> None:
    """Make store.db.new, which is complete and has its checksums, the database, in the place of an older one."""
    for file in ("store.db-wal", "store.db-shm"):
        (path / file).unlink(missing_ok=True)
    SYSTEM.replace(path / "store.db.new", path / "store.db")
    SYSTEM.sync(path)
    SYSTEM.sync(path.parent)
