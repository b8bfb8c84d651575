"""Copy a collection as it is at one commit, while others read and write."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from stillhash.collection.storage.integrity import acknowledge, committed_seq
from stillhash.collection.storage.share_meter import ShareMeter
from stillhash.collection.storage.store import Store
from stillhash.collection.storage.verify_pages import PAGE_SIZE
from stillhash.errors import Conflict, StoreFailed
from stillhash.files.checksums import pack_file_checksums
from stillhash.files.sealed_files import FOLDER_MODE, create_private, file_size, write_durably
from stillhash.numeric.near_groups import ShareProgress
from stillhash.platform import SYSTEM

COPY_ATTEMPTS = 8  # while another process compacts
COPIED_BYTES = 4 << 20  # at a time


def snapshot(store: Store, to: Path, progress: ShareProgress | None = None) -> int:
    """Copy the collection to a new folder, which appears once it is complete; return its bytes.

    progress: called with the share of the bytes that is written. If it raises an error, no folder is left.
    """
    if to.exists():
        raise Conflict(f"path: expected a folder that does not exist yet, got {str(to)!r}")
    meter = ShareMeter(progress)
    with meter.cancellable():
        _copy_whole(store, to, meter)
    return sum(file.stat().st_size for file in to.rglob("*") if file.is_file())


def _copy_whole(store: Store, to: Path, meter: ShareMeter) -> None:
    """Copy into a folder of another name, and rename it."""
    unfinished = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        unfinished.mkdir(FOLDER_MODE, parents=True)
        _copy_retrying(store, unfinished, meter)
        meter.finish()  # the last moment to cancel
        SYSTEM.rename_folder(unfinished, to)
        SYSTEM.sync(to.parent)
    except (OSError, sqlite3.DatabaseError) as error:
        raise StoreFailed(f"path: the snapshot {to.name} could not be written: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _copy_retrying(store: Store, to: Path, meter: ShareMeter) -> None:
    """Copy the latest commit, or a later one where that has removed files meanwhile."""
    for attempt in range(COPY_ATTEMPTS):
        try:
            with store.reading() as connection:
                _copy(store, connection, to, meter)
            break
        except FileNotFoundError:
            if attempt == COPY_ATTEMPTS - 1:
                raise


def _copy(store: Store, connection: sqlite3.Connection, to: Path, meter: ShareMeter) -> None:
    """Copy all files of the commit that this transaction sees."""
    folders = store.sealed_files(connection)
    sealed = sum(file_size(store.path / folder / name) for folder, files in folders.items() for name in files)
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    meter.expect(sealed + 2 * pages * PAGE_SIZE)  # pages are written, and read again for their checksums
    for folder, files in folders.items():
        (to / folder).mkdir(FOLDER_MODE, exist_ok=True)
        for name in files:
            _copy_file(store.path / folder / name, create_private(to / folder / name), meter)
        SYSTEM.sync(to / folder)
    (to / "store.db").unlink(missing_ok=True)
    with closing(sqlite3.connect(create_private(to / "store.db"))) as target:
        _copy_database(connection, target, meter)
        (unused,) = target.execute("PRAGMA freelist_count").fetchone()
        if unused:
            with meter.reporting(target):
                target.execute("VACUUM")
    SYSTEM.sync(to / "store.db")
    write_durably(to / "store.sums", [pack_file_checksums(to / "store.db")])
    meter.add(pages * PAGE_SIZE)
    acknowledge(to, committed_seq(connection), durably=True)


def _copy_file(source: Path, to: Path, meter: ShareMeter) -> None:
    """Copy a file, a part at a time, and wait until it is on disk."""
    with source.open("rb") as read, to.open("wb") as written:
        while part := read.read(COPIED_BYTES):
            written.write(part)
            meter.add(len(part))
    SYSTEM.sync(to)


def _copy_database(connection: sqlite3.Connection, target: sqlite3.Connection, meter: ShareMeter) -> None:
    """Copy all pages that this transaction sees. It is open already, so that later commits do not start it again."""
    left = [connection.execute("PRAGMA page_count").fetchone()[0]]

    def report(_: int, remaining: int, total: int) -> None:
        meter.add((left[0] - remaining) * PAGE_SIZE)
        left[0] = remaining

    connection.backup(target, pages=COPIED_BYTES // PAGE_SIZE, progress=report)
