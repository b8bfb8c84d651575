"""Snapshots: a copy of a collection as it stands at one commit, made while others read and write."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

from stillhash.collection.storage.checksums import packed, sums_of
from stillhash.collection.storage.integrity import Connection, acknowledge
from stillhash.collection.storage.sealed_files import sync_folder, write_durably
from stillhash.collection.storage.store import Store
from stillhash.errors import Conflict, StoreFailed

RETRIES = 8  # while another process compacts


def snapshot(store: Store, to: Path) -> int:
    """Copies the collection to a folder that is not there yet, which appears when it is complete; the bytes it has."""
    if to.exists():
        raise Conflict(f"path is {str(to)!r}, which is there already; a snapshot wants a new folder")
    unfinished = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        unfinished.mkdir(parents=True)
    except OSError as error:
        raise StoreFailed(f"the snapshot {to.name} could not be written: {error}") from error
    try:
        for attempt in range(RETRIES):
            try:
                with store.reading() as connection:
                    _copy(store, connection, unfinished)
                break
            except FileNotFoundError:
                if attempt == RETRIES - 1:
                    raise
        unfinished.rename(to)
        sync_folder(to.parent)
    except (OSError, sqlite3.DatabaseError) as error:
        raise StoreFailed(f"the snapshot {to.name} could not be written: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return sum(file.stat().st_size for file in to.rglob("*") if file.is_file())


def _copy(store: Store, connection: Connection, to: Path) -> None:
    """All that the commit names which this transaction sees."""
    for folder, sql in (
        ("segments", "SELECT file FROM segments"),
        ("learner", "SELECT DISTINCT learner FROM versions WHERE learner NOT NULL"),
    ):
        (to / folder).mkdir(exist_ok=True)
        for (name,) in connection.execute(sql).fetchall():
            shutil.copyfile(store.path / folder / name, to / folder / name)
            _sync(to / folder / name)
        sync_folder(to / folder)
    (to / "store.db").unlink(missing_ok=True)
    target = sqlite3.connect(to / "store.db")
    try:
        connection.backup(target)
    finally:
        target.close()
    _sync(to / "store.db")
    write_durably(to / "store.sums", [packed(sums_of((to / "store.db").read_bytes()))])
    acknowledge(to, store.meta(connection, "seq"))
    sync_folder(to)


def _sync(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
