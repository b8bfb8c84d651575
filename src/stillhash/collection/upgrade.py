"""Upgrade a collection of format 1, which version 0.1 wrote, to the format of this version.

The new collection is built in a folder beside the old one, which is only read, and takes its place when it is complete:

    .NAME.upgrading   the new collection, while it is built
    .NAME.upgraded    once it is complete and on disk
    NAME.format-1     the old collection, from the moment that it makes place for the new one

So NAME is the old collection or the new one, except between the last two renames. A process that ends there leaves both
collections complete, and `upgrade` then does the last rename.
"""

import os
import shutil
import sqlite3
import tempfile
import weakref
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

from stillhash.collection.convert_format_1 import convert
from stillhash.collection.storage.format_1 import Format1Store, stored_format
from stillhash.collection.storage.schema import READABLE_FORMATS, get_meta
from stillhash.collection.storage.store import Store
from stillhash.collection.storage.verification import verify_store
from stillhash.collection.validation import check_path
from stillhash.errors import Conflict, InvalidInput, StillhashError, StoreFailed
from stillhash.files.sealed_files import locked_folder
from stillhash.platform import SYSTEM


class UpgradeReport(NamedTuple):
    """What was done, as sentences, none if there was nothing to do; and where the old collection is, unless deleted."""

    actions: list[str]
    old_path: Path | None


class Folders(NamedTuple):
    """The folders of an upgrade, beside each other."""

    path: Path
    unfinished: Path
    complete: Path
    old: Path

    @classmethod
    def of(cls, path: Path) -> "Folders":
        beside = (f".{path.name}.upgrading", f".{path.name}.upgraded", f"{path.name}.format-1")
        return cls(path, *(path.parent / name for name in beside))


def upgrade(path: str | Path, *, delete_old: bool = False) -> UpgradeReport:
    """Convert the collection in this folder, which no process has open, to the format of this version.

    The old collection is verified first, and kept as NAME.format-1 unless `delete_old`. An upgrade that was interrupted
    is finished. If it fails, nothing has changed.
    """
    folders = Folders.of(check_path(path).resolve())
    try:
        if is_interrupted(folders.path):
            SYSTEM.rename_folder(folders.complete, folders.path)
            SYSTEM.sync(folders.path.parent)
            actions = ["an interrupted upgrade is finished"]
        elif not (folders.path / "store.db").is_file():
            raise InvalidInput(f"path: expected the folder of a collection, got {str(path)!r}")
        elif stored_format(folders.path) in READABLE_FORMATS:
            return UpgradeReport([], None)
        else:
            actions = _upgrade(folders)
    except StillhashError:
        raise
    except (OSError, sqlite3.DatabaseError) as error:
        raise StoreFailed(f"{folders.path.name}: could not be upgraded: {error}") from error
    if delete_old:
        return UpgradeReport([*actions, _delete(folders.old)], None)
    return UpgradeReport([*actions, f"the old collection is kept as {folders.old.name}"], folders.old)


def is_interrupted(path: Path) -> bool:
    """Return whether an upgrade of the collection in this folder ended before its last rename."""
    folders = Folders.of(path.resolve())
    return folders.complete.is_dir() and folders.old.is_dir() and not folders.path.exists()


def _upgrade(folders: Folders) -> list[str]:
    path, unfinished, complete, old = folders
    with ExitStack() as lock:
        lock.enter_context(locked_folder(path))
        for folder in (path, path.parent):  # SQLite, which needs files of its own to read, would call it damaged
            if not SYSTEM.can_write(folder):
                raise StoreFailed(f"{path.name}: could not be upgraded: no permission to write to {str(folder)!r}")
        if old.exists():
            raise Conflict(f"path: expected no folder {old.name} beside it, got one. Move it away.")
        for folder in (unfinished, complete):  # of an earlier attempt, and perhaps not of the last commit
            if folder.exists():
                shutil.rmtree(folder)
        try:
            with Format1Store(path) as store:
                actions = convert(store, unfinished)
            with closing(Store(unfinished, writer=True)) as new:
                with new.change("upgrade") as change:
                    change.rows = int(get_meta(change.connection, "items"))
                if problems := verify_store(new):
                    raise StoreFailed(f"{path.name}: could not be upgraded: {problems[0]}")
            SYSTEM.rename_folder(unfinished, complete)
            SYSTEM.sync(path.parent)
            if not SYSTEM.open_files_can_move:
                lock.close()  # no folder with an open file can be renamed, also if it is another process that opens one
            _swap(folders)
        finally:
            if path.exists():
                for folder in (unfinished, complete):
                    shutil.rmtree(folder, ignore_errors=True)
    return actions


def _swap(folders: Folders) -> None:
    """Put the new collection into the place of the old one; if that fails, the old one is back."""
    done = []
    try:
        for folder, to in ((folders.path, folders.old), (folders.complete, folders.path)):
            SYSTEM.rename_folder(folder, to)
            done.append((folder, to))
            SYSTEM.sync(to.parent)
    except OSError:
        for folder, to in reversed(done):
            SYSTEM.rename_folder(to, folder)
        raise


def _delete(folder: Path) -> str:
    """Delete the old collection, hidden first, so that no part of it is ever read; return what was done."""
    hidden = folder.with_name(f".{folder.name}")
    try:
        SYSTEM.rename_folder(folder, hidden)
        shutil.rmtree(hidden)
    except OSError as error:
        return f"the old collection could not be deleted: {error}"
    return "the old collection is deleted"


class ConvertedStore(Store):
    """A store of format 1, open for reading: it is converted into a temporary folder, which goes when it is closed."""

    def __init__(self, path: Path) -> None:
        folder = Path(tempfile.mkdtemp(prefix="stillhash-"))
        self._remove_at_exit = weakref.finalize(self, _remove_own, folder, os.getpid())
        try:
            with Format1Store(path) as old:
                convert(old, folder / path.name)
            super().__init__(folder / path.name, writer=False)
        except BaseException as error:
            self._remove_at_exit()
            if isinstance(error, StillhashError) or not isinstance(error, OSError):
                raise
            raise StoreFailed(f"{path.name}: could not be converted: {error}") from error

    def remove_temporary_files(self) -> None:
        self._remove_at_exit()


def _remove_own(folder: Path, process: int) -> None:
    """Remove a temporary folder, unless this is a fork of the process that created it."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
