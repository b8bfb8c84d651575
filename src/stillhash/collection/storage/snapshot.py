"""Copy a collection as it is at one commit, while others read and write."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from stillhash.collection.storage.integrity import acknowledge, committed_seq
from stillhash.collection.storage.store import Store
from stillhash.errors import Conflict, StoreFailed
from stillhash.files.checksums import pack_file_checksums
from stillhash.files.sealed_files import FOLDER_MODE, create_private, write_durably
from stillhash.platform import SYSTEM

COPY_ATTEMPTS = 8  # while another process compacts


def snapshot(store: Store, to: Path) -> int:
    """Copy the collection to a new folder, which appears once it is complete; return its bytes."""
    if to.exists():
        raise Conflict(f"path: expected a folder that does not exist yet, got {str(to)!r}")
    unfinished = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        unfinished.mkdir(FOLDER_MODE, parents=True)
        for attempt in range(COPY_ATTEMPTS):
            try:
                with store.reading() as connection:
                    _copy(store, connection, unfinished)
                break
            except FileNotFoundError:
                if attempt == COPY_ATTEMPTS - 1:
                    raise
        SYSTEM.rename_folder(unfinished, to)
        SYSTEM.sync(to.parent)
    except (OSError, sqlite3.DatabaseError) as error:
        raise StoreFailed(f"path: the snapshot {to.name} could not be written: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return sum(file.stat().st_size for file in to.rglob("*") if file.is_file())


def _copy(store: Store, connection: sqlite3.Connection, to: Path) -> None:
    """Copy all files of the commit that this transaction sees."""
    for folder, files in store.sealed_files(connection).items():
        (to / folder).mkdir(FOLDER_MODE, exist_ok=True)
        for name in files:
            shutil.copyfile(store.path / folder / name, create_private(to / folder / name))
            SYSTEM.sync(to / folder / name)
        SYSTEM.sync(to / folder)
    (to / "store.db").unlink(missing_ok=True)
    with closing(sqlite3.connect(create_private(to / "store.db"))) as target:
        connection.backup(target)
        (unused,) = target.execute("PRAGMA freelist_count").fetchone()
        if unused:
            target.execute("VACUUM")
    SYSTEM.sync(to / "store.db")
    write_durably(to / "store.sums", [pack_file_checksums(to / "store.db")])
    acknowledge(to, committed_seq(connection), durably=True)
