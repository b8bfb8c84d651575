"""Open segments and other files of a storage: in place where it is on a disk, from copies on this node elsewhere.

A segment is identified by the last eight bytes of its file, which are checksums of all its checksums. Any other file
under the same name, later or on another node, is refused.
"""

import hashlib
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stillhash.cluster.remote_files import RemoteFiles
from stillhash.cluster.storage import STORAGE_TIMEOUT, Storage, absolute_url, is_remote
from stillhash.collection.storage.segments import Segment, read_segment
from stillhash.errors import BadState, NotFound, StoreFailed
from stillhash.files import FOLDER_MODE, create_private, file_checksum, translate_read_errors
from stillhash.platform import SYSTEM

SEAL_BYTES = 8  # at the end of a sealed file: the checksums of its checksums
CACHE_BYTES = 64 * 2**30  # of copies on a node
OPEN_SEGMENTS = 64  # whose row numbers a process keeps mapped


class NamedSegment(Protocol):
    """What identifies a segment: its name, or path or URL, and its last bytes."""

    @property
    def name(self) -> str: ...
    @property
    def checksum(self) -> str: ...


class SegmentCache:
    """The segments of a storage, and of any path or URL, with copies of remote ones on this node.

    The copies are shared by all processes of the node, at most `max_bytes` of them.
    """

    def __init__(self, storage: Storage | None, folder: str | Path | None = None, max_bytes: int = CACHE_BYTES) -> None:
        default = Path(tempfile.gettempdir()) / f"stillhash-{SYSTEM.user_name() or SYSTEM.unnamed_user()}" / "segments"
        self.storage, self.max_bytes = storage, max_bytes
        self.folder = default if folder is None else Path(folder)
        self._numbers: OrderedDict[tuple[str, str, int], NDArray[np.int64]] = OrderedDict()
        self._checked: set[str] = set()  # files that this process compared with their checksums
        self._lock = threading.Lock()

    def open(self, entry: NamedSegment, bits: int) -> Segment:
        """Map a segment, or a copy of it, and verify its checksums. A damaged copy is fetched again, once."""
        url = self._url(entry.name)
        if not is_remote(url):
            with self._local(Path(url)):
                return _open_verified(Path(url), entry, bits)
        path = self._copy_path(url, entry.checksum)
        with self._locked(path.name):
            self._copied(url, path, lambda: _open_verified(path, entry, bits))
            return _open_verified(path, entry, bits, check=False)

    def row_numbers(self, entry: NamedSegment, bits: int) -> NDArray[np.int64]:
        """Return the ids of a segment's rows, ascending; the segments used last stay mapped."""
        key = entry.name, entry.checksum, bits
        with self._lock:
            if (numbers := self._numbers.get(key)) is not None:
                self._numbers.move_to_end(key)
                return numbers
        numbers = self.open(entry, bits).row_numbers()
        with self._lock:
            self._numbers[key] = numbers
            while len(self._numbers) > OPEN_SEGMENTS:
                self._numbers.popitem(last=False)
        return numbers

    def fetch(self, name: str, checksum: str) -> Path:
        """Return the path of any other file, or of a copy of it; `checksum` is what `Storage.put_file` returned.

        Each process compares a file with the checksum once; "" compares nothing.
        """
        url = self._url(name)
        path = self._copy_path(url, checksum) if is_remote(url) else Path(url)
        if str(path) in self._checked and path.exists():
            return path
        if is_remote(url):
            with self._locked(path.name):
                self._copied(url, path, lambda: _check_file(path, checksum, name))
        else:
            with self._local(path):
                _check_file(path, checksum, name)
        self._checked.add(str(path))
        return path

    def _url(self, name: str) -> str:
        return absolute_url(name if self.storage is None else self.storage.url_of(name))

    def _copy_path(self, url: str, checksum: str) -> Path:
        return self.folder / (hashlib.sha256(f"{url} {checksum}".encode()).hexdigest()[:32] + Path(url).suffix)

    def _copied(self, url: str, path: Path, check: Callable[[], object]) -> None:
        """Copy a file unless there is a copy, and check it; a damaged copy is fetched again, once."""
        copied = not path.exists()
        if copied:
            self._download(url, path)
        try:
            check()
        except BadState:
            if copied:
                path.unlink(missing_ok=True)
                raise
            self._download(url, path)
            check()
        with suppress(OSError):
            os.utime(path)  # the least recently used copies are evicted first

    def _download(self, url: str, path: Path) -> None:
        """Copy a file, and delete the least recently used copies. A process that has one mapped keeps it."""
        parent, _, name = url.rpartition("/")
        files = RemoteFiles(parent, STORAGE_TIMEOUT if self.storage is None else self.storage.timeout)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            files.get(name, create_private(unfinished), files.status(name).size)
            SYSTEM.replace(unfinished, path)
        except NotFound as error:
            if self.storage is not None:
                self.storage.check()
            raise BadState(f"{url}: cannot be read: no such file") from error
        except OSError as error:
            raise StoreFailed(f"cache: cannot copy {url} to {self.folder}: {error}") from error
        finally:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
        self._evict(path)

    def _evict(self, newest: Path) -> None:
        copies = []
        for file in self.folder.glob("[0-9a-f]*"):
            with suppress(FileNotFoundError):  # another process evicts too
                copies.append((file != newest, file.stat().st_mtime, file.stat().st_size, file))
        total = sum(size for _, _, size, _ in copies)
        for _, _, size, file in sorted(copies)[1:]:
            if total > self.max_bytes:
                total -= size
                file.unlink(missing_ok=True)

    @contextmanager
    def _local(self, path: Path) -> Iterator[None]:
        """Raise StoreFailed instead of BadState where a file is absent because the whole storage is."""
        try:
            yield
        except BadState:
            if self.storage is not None and not path.exists():
                self.storage.check()
            raise

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Let one process at a time fetch a file; the others find the copy."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
            handle = SYSTEM.open_file(self.folder / f"lock-{name[:2]}", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StoreFailed(f"cache: cannot write to {self.folder}: {error.strerror}") from error
        try:
            SYSTEM.lock(handle)
            yield
        finally:
            SYSTEM.unlock(handle)
            os.close(handle)


def seal_checksum(path: Path) -> str:
    """Return the last bytes of a sealed file, which identify it, as hexadecimal digits."""
    with translate_read_errors(path), path.open("rb") as file:
        file.seek(-SEAL_BYTES, os.SEEK_END)
        return file.read(SEAL_BYTES).hex()


def url_checksum(url: str) -> str:
    """Return the last bytes of a sealed file at a path or URL."""
    if not is_remote(url):
        return seal_checksum(Path(url))
    parent, _, name = url.rpartition("/")
    files = RemoteFiles(parent, STORAGE_TIMEOUT)
    try:
        size = files.status(name).size
        return files.read(name, size - SEAL_BYTES, size).hex()
    except NotFound as error:
        raise StoreFailed(f"cannot use {url}: no such file") from error


def _open_verified(path: Path, entry: NamedSegment, bits: int, check: bool = True) -> Segment:
    segment = read_segment(path, bits, check=check)
    if seal_checksum(path) != entry.checksum:
        raise BadState(f"{entry.name}: expected checksum {entry.checksum}, got that of another segment")
    return segment


def _check_file(path: Path, checksum: str, name: str) -> None:
    with translate_read_errors(path):
        if checksum and file_checksum(path) != checksum:
            raise BadState(f"{name}: expected checksum {checksum}, got another; the file is damaged")
        path.stat()
