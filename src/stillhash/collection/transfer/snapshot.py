"""Copy a collection as it is at one commit, while others read and write: the one lossless copy.

It is a folder, which is opened as any collection, or one .tar file with that folder in it.
"""

import os
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from stillhash.collection.storage.database import acknowledge, committed_seq
from stillhash.collection.storage.store import Store
from stillhash.collection.storage.verify_pages import PAGE_SIZE
from stillhash.errors import Conflict, StoreFailed
from stillhash.files import (
    FILE_MODE,
    FOLDER_MODE,
    create_private,
    file_size,
    pack_file_checksums,
    write_durably,
)
from stillhash.numeric.near_groups import ShareProgress
from stillhash.platform import SYSTEM

STEPS_BETWEEN_REPORTS = 1_000_000  # of SQLite's virtual machine, a few milliseconds
SHARE_OF_BYTES = 0.99  # the rest is what comes after all bytes are read or written


class ShareMeter:
    """Call `progress` with the share that is done, which never falls.

    To cancel, `progress` raises an error. Code on its way may take that for an error of its own, so that each later
    report raises it again, and so does the end of `cancellable`.
    """

    def __init__(self, progress: ShareProgress | None) -> None:
        self._progress = progress
        self._total, self._done, self._share = 1, 0, 0.0
        self._raised: BaseException | None = None

    def expect(self, total: int) -> None:
        """Begin, with so many bytes to do: also again, where work that failed is done once more."""
        self._total, self._done = max(1, total), 0
        self.add(0)

    def add(self, done: int) -> None:
        """Report that so many bytes more are done."""
        self._done += done
        self._report(SHARE_OF_BYTES * min(1.0, self._done / self._total))

    def finish(self) -> None:
        """Report that all is done."""
        self._report(1.0)

    @contextmanager
    def cancellable(self) -> Iterator[None]:
        """Let what `progress` raises leave the block as it is, whatever the block turns it into."""
        try:
            yield
        finally:
            if self._raised is not None:
                raise self._raised

    def _report(self, share: float) -> None:
        if self._raised is not None:
            raise self._raised
        if self._progress is not None:
            self._share = max(self._share, share)
            try:
                self._progress(self._share)
            except BaseException as error:
                self._raised = error
                raise

    @contextmanager
    def reporting(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Report now and then while one statement of SQLite takes its time; an error of `progress` ends it."""
        if self._progress is None:
            yield
            return
        connection.set_progress_handler(self._is_cancelled, STEPS_BETWEEN_REPORTS)
        try:
            with self.cancellable():
                yield
        finally:
            connection.set_progress_handler(None, 0)

    def _is_cancelled(self) -> bool:
        try:
            self.add(0)
        except BaseException:
            return True
        return False


COPY_ATTEMPTS = 8  # times a copy starts over while another process compacts
COPIED_BYTES = 4 << 20  # are copied at a time


def snapshot(store: Store, to: Path, progress: ShareProgress | None = None) -> int:
    """Copy the collection to a new folder, or to a new file that ends in .tar; return its bytes.

    It appears once it is complete and on disk. progress: called with the share of the bytes that is written. If it
    raises an error, nothing is left.
    """
    check_target(to)
    meter = ShareMeter(progress)
    with meter.cancellable():
        _copy_whole(store, to, meter)
    files = to.rglob("*") if to.is_dir() else [to]
    return sum(file.stat().st_size for file in files if file.is_file())


def check_target(path: Path, overwrite: bool = False) -> None:
    """Raise Conflict if there is something of this name, unless it is a file that may be replaced."""
    if os.path.lexists(path) and not (overwrite and path.is_file()):
        use = ". Use overwrite to replace it" if path.is_file() else ""
        raise Conflict(f"path: expected one that does not exist yet, got {str(path)!r}{use}")


def publish_file(unfinished: Path, target: Path, overwrite: bool = False) -> None:
    """Give a file its name once it is on disk; a file of this name that appeared meanwhile is not overwritten."""
    SYSTEM.sync(unfinished)
    if overwrite:
        SYSTEM.replace(unfinished, target)
    else:
        try:
            os.link(unfinished, target)
        except FileExistsError:
            raise Conflict(f"path: expected one that does not exist yet, got {str(target)!r}") from None
        except OSError:  # a file system without links
            unfinished.rename(target)
    SYSTEM.sync(target.parent)


def _copy_whole(store: Store, to: Path, meter: ShareMeter) -> None:
    """Copy under another name, and rename what is complete."""
    unfinished, archive = to.with_name(f".{to.name}.{os.getpid()}"), None
    if to.suffix.lower() == ".tar":
        archive = to.with_name(f"{unfinished.name}.tar")
    try:
        unfinished.mkdir(FOLDER_MODE, parents=True)
        _copy_retrying(store, unfinished, archive, to.stem, meter)
        meter.finish()  # the last moment to cancel
        if archive is None:
            SYSTEM.rename_folder(unfinished, to)
            SYSTEM.sync(to.parent)
        else:
            publish_file(archive, to)
    except OSError as error:
        raise StoreFailed(f"path: the snapshot {to.name} could not be written: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        if archive is not None:
            archive.unlink(missing_ok=True)


def _copy_retrying(store: Store, to: Path, archive: Path | None, name: str, meter: ShareMeter) -> None:
    """Copy the latest commit, or a later one where that has removed files meanwhile."""
    for attempt in range(COPY_ATTEMPTS):
        try:
            with store.reading() as connection:
                if archive is None:
                    _copy(store, connection, to, meter)
                else:
                    _copy_to_archive(store, connection, to, archive, name, meter)
            break
        except FileNotFoundError:
            if attempt == COPY_ATTEMPTS - 1:
                raise


def _copy(store: Store, connection: sqlite3.Connection, to: Path, meter: ShareMeter) -> None:
    """Copy all files of the commit that this transaction sees."""
    folders = _sealed_files(store, connection, meter, times=2)
    for folder, files in folders.items():
        (to / folder).mkdir(FOLDER_MODE, exist_ok=True)
        for file in files:
            _copy_file(file, create_private(to / folder / file.name), meter)
        SYSTEM.sync(to / folder)
    _copy_database(connection, to, meter)


def _copy_to_archive(
    store: Store, connection: sqlite3.Connection, scratch: Path, archive: Path, name: str, meter: ShareMeter
) -> None:
    """Write an archive of a folder of this name; only the copy of store.db is in a folder before."""
    folders = _sealed_files(store, connection, meter, times=3)
    with tarfile.open(create_private(archive), "w") as tar:
        for path in (name, *(f"{name}/{folder}" for folder in folders)):
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = tarfile.DIRTYPE, FOLDER_MODE
            tar.addfile(entry)
        for folder, files in folders.items():
            for file in files:
                _add_file(tar, file, f"{name}/{folder}/{file.name}", meter)
        _copy_database(connection, scratch, meter)
        for file in sorted(scratch.iterdir()):
            _add_file(tar, file, f"{name}/{file.name}", meter)


def _sealed_files(store: Store, connection: sqlite3.Connection, meter: ShareMeter, times: int) -> dict[str, list[Path]]:
    """Return the sealed files of each folder, and tell the meter of them and of the pages, which are read so often."""
    names = store.sealed_files(connection)
    folders = {folder: [store.path / folder / name for name in files] for folder, files in names.items()}
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    meter.expect(sum(file_size(file) for files in folders.values() for file in files) + times * pages * PAGE_SIZE)
    return folders


def _copy_file(source: Path, to: Path, meter: ShareMeter) -> None:
    """Copy a file, a part at a time, and wait until it is on disk."""
    with source.open("rb") as read, to.open("wb") as written:
        while part := read.read(COPIED_BYTES):
            written.write(part)
            meter.add(len(part))
    SYSTEM.sync(to)


def _add_file(tar: tarfile.TarFile, source: Path, name: str, meter: ShareMeter) -> None:
    """Add a file to an archive."""
    entry = tarfile.TarInfo(name)
    with source.open("rb") as read:
        status = os.fstat(read.fileno())
        entry.size, entry.mtime, entry.mode = status.st_size, int(status.st_mtime), FILE_MODE
        tar.addfile(entry, read)
    meter.add(entry.size)


def _copy_database(connection: sqlite3.Connection, to: Path, meter: ShareMeter) -> None:
    """Copy store.db as this transaction sees it, without unused pages, and write its checksums and its last commit."""
    (to / "store.db").unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(create_private(to / "store.db"))) as target:
            _copy_pages(connection, target, meter)
            (unused,) = target.execute("PRAGMA freelist_count").fetchone()
            if unused:
                with meter.reporting(target):
                    target.execute("VACUUM")
    except sqlite3.DatabaseError as error:  # a damaged page would have been found before
        raise StoreFailed(f"path: the snapshot could not be written: {error}") from error
    SYSTEM.sync(to / "store.db")
    write_durably(to / "store.sums", [pack_file_checksums(to / "store.db")])
    meter.add(file_size(to / "store.db"))
    acknowledge(to, committed_seq(connection), durably=True)


def _copy_pages(connection: sqlite3.Connection, target: sqlite3.Connection, meter: ShareMeter) -> None:
    """Copy all pages that this transaction sees. It is open already, so that later commits do not start it again."""
    left = [connection.execute("PRAGMA page_count").fetchone()[0]]

    def report(_: int, remaining: int, total: int) -> None:
        meter.add((left[0] - remaining) * PAGE_SIZE)
        left[0] = remaining

    connection.backup(target, pages=COPIED_BYTES // PAGE_SIZE, progress=report)
