"""The files of a storage on a disk: each appears whole or not at all, and is on disk when a call returns."""

import errno
import os
import shutil
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from stillhash.errors import NotFound, StoreFailed, shortage
from stillhash.files import FILE_MODE, FOLDER_MODE
from stillhash.platform import SYSTEM

ABSENT_ERRORS = (errno.ENOENT, errno.ENOTDIR)
UNFINISHED = "."  # the names of files that are being written begin with it
STORED_PART_BYTES = 1 << 22  # at a time


class StoredFile(NamedTuple):
    """A file of a storage, as its folder lists it."""

    name: str  # with its folder
    size: int
    modified: float  # seconds, by the clock of the storage


class LocalFiles:
    """The files below a folder, by their names relative to it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        return self.root / name

    def make_root(self) -> None:
        with _reported(self.root):
            missing = [folder for folder in (self.root, *self.root.parents) if not folder.exists()]
            self.root.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
            for folder in missing:
                SYSTEM.sync(folder.parent)

    def make_folder(self, folder: Path) -> None:
        """Make a folder of the storage, but not the storage: one that disappeared stays away."""
        with _reported(folder), suppress(FileExistsError):
            folder.mkdir(mode=FOLDER_MODE)
            SYSTEM.sync(folder.parent)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        with _reported(self.path(name)):
            handle = SYSTEM.open_file(self.path(name), os.O_RDONLY)
            with os.fdopen(handle, "rb") as file:
                file.seek(start)
                return file.read(-1 if end is None else end - start)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file under a name that no file has; return False if one has it."""
        path = self.path(name)
        with _reported(path), self._unfinished(path, data) as unfinished:
            try:
                os.link(unfinished, path)  # fails if the name exists
                created = True
            except FileExistsError:
                created = False
            SYSTEM.sync(path.parent)  # also of a name that an earlier call left without a sync
            return created

    def replace(self, name: str, data: bytes) -> None:
        path = self.path(name)
        with _reported(path), self._unfinished(path, data) as unfinished:
            SYSTEM.replace(unfinished, path)
            SYSTEM.sync(path.parent)

    def put(self, source: Path, name: str) -> None:
        """Copy a file into the storage."""
        path = self.path(name)
        with _reported(path), self._unfinished(path, source) as unfinished:
            SYSTEM.replace(unfinished, path)
            SYSTEM.sync(path.parent)

    def list(self, folder: str) -> Sequence[StoredFile]:
        files = []
        try:
            with _reported(self.path(folder)), os.scandir(self.path(folder)) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # deleted since
                        if not entry.name.startswith(UNFINISHED) and entry.is_file(follow_symlinks=False):
                            status = entry.stat(follow_symlinks=False)
                            files.append(StoredFile(f"{folder}/{entry.name}", status.st_size, status.st_mtime))
        except NotFound:
            return []
        return sorted(files)

    def unfinished_files(self) -> Sequence[StoredFile]:
        """List what killed processes have left, and what is being written."""
        files = []
        for path in (*self.root.glob(f"{UNFINISHED}*"), *self.root.glob(f"*/{UNFINISHED}*")):
            with suppress(FileNotFoundError):  # finished since
                status = path.lstat()
                name = path.relative_to(self.root).as_posix()
                files.append(StoredFile(name, status.st_size, status.st_mtime))
        return files

    def delete(self, name: str) -> None:
        with suppress(NotFound), _reported(self.path(name)):
            self.path(name).unlink()

    def status(self, name: str) -> StoredFile:
        with _reported(self.path(name)):
            status = self.path(name).stat()
            return StoredFile(name, status.st_size, status.st_mtime)

    @contextmanager
    def _unfinished(self, path: Path, content: bytes | Path) -> Iterator[Path]:
        """Write content, or that of a file, under a name of our own, and sync it; the name is removed at the end."""
        self.make_folder(path.parent)
        unique = f"{os.getpid()}.{threading.get_ident()}.{uuid.uuid4().hex[:8]}"
        unfinished = path.with_name(f"{UNFINISHED}{path.name}.{unique}")
        try:
            handle = SYSTEM.open_file(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
            with os.fdopen(handle, "wb") as file:
                if isinstance(content, Path):
                    with content.open("rb") as source:
                        shutil.copyfileobj(source, file, STORED_PART_BYTES)
                else:
                    file.write(content)
                file.flush()
                SYSTEM.sync_handle(file.fileno())
            yield unfinished
        finally:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Raise our errors where the system's are raised: NotFound for an absent file, StoreFailed for all others."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StoreFailed):
            raise
        if (lack := shortage(error)) is not None:
            raise lack from error
        if error.errno in ABSENT_ERRORS:
            raise NotFound(f"{path}: no such file") from error
        raise StoreFailed(f"{path}: {error.strerror or error}") from error
