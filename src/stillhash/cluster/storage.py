"""Store the files of a cluster on a disk that all nodes see, or behind a URL from which each node caches copies.

A storage has a file `storage` with an id. Where it is missing, as in a folder in which nothing is mounted, every call
raises StoreFailed: storage that is away is never taken for an empty one.
"""

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stillhash.cluster.local_files import UNFINISHED, LocalFiles, StoredFile
from stillhash.cluster.remote_files import RemoteFiles
from stillhash.errors import BadState, InvalidInput, NotFound, StoreFailed
from stillhash.files import file_checksum

STORAGE_TIMEOUT = 20.0  # seconds
STORAGE_FILE = "storage"
STORAGE_ID = re.compile(rb"stillhash-storage 1 ([0-9a-f]{32})\n")
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}(/[A-Za-z0-9][A-Za-z0-9._-]{0,120}){0,3}")


class Storage:
    """A folder, or any URL of fsspec whose file system can create a file exclusively, such as `s3://bucket/folder`.

    create : make the storage if there is none; otherwise StoreFailed.
    timeout : seconds that a call to a remote storage may take, apart from the transfer of large files.
    """

    def __init__(self, url: str | Path, *, create: bool = True, timeout: float = STORAGE_TIMEOUT) -> None:
        self.url = absolute_url(url)
        self.timeout = timeout
        self._files: LocalFiles | RemoteFiles
        self._files = RemoteFiles(self.url, timeout) if is_remote(self.url) else LocalFiles(Path(self.url))
        if isinstance(self._files, RemoteFiles):
            self._files.check_exclusive()
        self.id = self._open(create)

    def __repr__(self) -> str:
        return f"Storage({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.url, self.timeout)

    def read(self, name: str) -> bytes:
        """Return the content of a file; NotFound if there is none."""
        return self._read(name, 0, None)

    def read_start(self, name: str, size: int) -> bytes:
        """Return the first bytes of a file."""
        return self._read(name, 0, size)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file under a new name, atomically and durably; return False if the name exists.

        After StoreFailed the file may exist nevertheless, and then it is whole.
        """
        with self._writing():
            return self._files.create(_plain(name), data)

    def replace(self, name: str, data: bytes) -> None:
        """Write a file, atomically and durably, in the place of another one if there is one."""
        with self._writing():
            self._files.replace(_plain(name), data)

    def put_file(self, path: Path, name: str) -> str:
        """Copy a file into the storage, atomically and durably; return the checksum that `SegmentCache.fetch` takes."""
        checksum = file_checksum(path)
        with self._writing():
            self._files.put(path, _plain(name))
        return checksum

    def list(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, with the folder, sorted."""
        return [file.name for file in self.list_files(folder)]

    def list_files(self, folder: str) -> Sequence[StoredFile]:
        """Return the files in a folder, with their sizes and times, sorted by name."""
        files = self._files.list(_plain(folder))
        if not files:
            self.check()
        return files

    def unfinished_files(self) -> Sequence[StoredFile]:
        """Return the files that are being written, and those that killed processes left behind."""
        return self._files.unfinished_files() if isinstance(self._files, LocalFiles) else []

    def delete(self, name: str) -> None:
        """Delete a file; one that is absent is no error."""
        self._files.delete(_plain(name, unfinished=True))

    def size(self, name: str) -> int:
        """Return the size of a file in bytes; NotFound if there is none."""
        return self._status(name).size

    def exists(self, name: str) -> bool:
        """Return whether there is a file of this name."""
        try:
            self._status(name)
        except NotFound:
            return False
        return True

    def now(self) -> float:
        """Return the time by the clock of the storage, which differs from ours where it is another machine."""
        name = f"clock/{uuid.uuid4().hex}"
        self.create(name, b"")
        try:
            return self._status(name).modified
        finally:
            self.delete(name)

    def local_path(self, name: str) -> Path | None:
        """Return the path of a file on a disk; None if the storage is remote."""
        return self._files.path(_plain(name)) if isinstance(self._files, LocalFiles) else None

    def new_local_path(self, name: str) -> Path | None:
        """Return the path of a file to write on a disk, in a folder that exists; None if the storage is remote."""
        if not isinstance(self._files, LocalFiles):
            return None
        with self._writing():
            self._files.make_folder(self._files.path(_plain(name)).parent)
        return self._files.path(name)

    def url_of(self, name: str) -> str:
        """Return the path or the URL of a file, also of one outside, whose name is a path or a URL already."""
        return name if is_remote(name) or Path(name).is_absolute() else f"{self.url.rstrip('/')}/{name}"

    def check(self) -> None:
        """Raise StoreFailed unless the storage is there, and is the one that was opened."""
        try:
            stored = _parse_id(self._files.read(STORAGE_FILE), self.url)
        except NotFound as error:
            raise StoreFailed(f"{self.url}: the storage is not there") from error
        if stored != self.id:
            raise StoreFailed(f"{self.url}: expected storage {self.id}, got another one, {stored}")

    def _open(self, create: bool) -> str:
        """Return the id of the storage."""
        try:
            return _parse_id(self._files.read(STORAGE_FILE), self.url)
        except NotFound as error:
            if not create:
                raise StoreFailed(f"{self.url}: the storage is not there") from error
        if isinstance(self._files, LocalFiles):  # object stores have no folders
            self._files.make_root()
        with self._writing(check=False):
            self._files.create(STORAGE_FILE, b"stillhash-storage 1 %s\n" % uuid.uuid4().hex.encode())
        return _parse_id(self._files.read(STORAGE_FILE), self.url)

    @contextmanager
    def _writing(self, check: bool = True) -> Iterator[None]:
        """Look whether a disk is still mounted before a write; a remote storage that is away refuses it itself."""
        if check and isinstance(self._files, LocalFiles):
            self.check()
        try:
            yield
        except NotFound as error:  # the folder, or the bucket
            raise StoreFailed(f"{self.url}: the storage is not there") from error

    def _read(self, name: str, start: int, end: int | None) -> bytes:
        try:
            return self._files.read(_plain(name), start, end)
        except NotFound:
            self.check()
            raise

    def _status(self, name: str) -> StoredFile:
        try:
            return self._files.status(_plain(name))
        except NotFound:
            self.check()
            raise


def is_remote(url: str) -> bool:
    """Return whether a URL, or path, is not that of a local file."""
    return "://" in url


def absolute_url(url: str | Path) -> str:
    """Return a URL as it is, and a path, or a URL of a local file, as an absolute path."""
    text = str(url).removeprefix("file://")
    if not text or "\0" in text:
        raise InvalidInput(f"storage: expected a folder or a URL, got {text!r:.100}")
    return text if is_remote(text) else str(Path(text).absolute())


def _reopen(url: str, timeout: float) -> Storage:
    return Storage(url, create=False, timeout=timeout)


def _plain(name: str, unfinished: bool = False) -> str:
    folder, slash, file = name.rpartition("/")
    plain = folder + slash + file.removeprefix(UNFINISHED) if unfinished else name
    if PLAIN_NAME.fullmatch(plain) is None:
        raise InvalidInput(f"name: expected a plain name of a file of the storage, got {name!r:.100}")
    return name


def _parse_id(data: bytes, url: str) -> str:
    match = STORAGE_ID.fullmatch(data)
    if match is None:
        raise BadState(f"{url}/{STORAGE_FILE}: expected the id of a storage of format 1, got {data!r:.60}")
    return match[1].decode()
