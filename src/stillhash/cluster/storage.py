"""Store sealed segments on a disk that all nodes see, or behind a URL from which each node caches copies.

A segment is identified by the last eight bytes of its file, which are checksums of all its checksums. Any other file
under the same name, later or on another node, is refused.
"""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.sealed_files import translate_read_errors, write_durably
from stillhash.collection.storage.segments import Segment, read_segment, write_segment
from stillhash.errors import BadState, MissingExtra, StoreFailed
from stillhash.numeric.validation import Codes

CHECKSUM_BYTES = 8
DOWNLOAD_BYTES = 2**22  # read at a time
CACHE_BYTES = 64 * 2**30  # of copies on a node


class SegmentRef(NamedTuple):
    """Where a sealed segment is stored, and how to recognise it."""

    url: str  # or a path
    rows: int
    checksum: str


class Storage:
    """A folder, or any URL that fsspec supports; segments written here stay until `delete`."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = str(folder) if "://" in str(folder) else str(Path(folder).absolute())
        if "://" in self.folder:
            fs, path = remote_filesystem(self.folder)
            with _store_errors(self.folder):
                fs.makedirs(path, exist_ok=True)
        else:
            Path(self.folder).mkdir(parents=True, exist_ok=True)

    def write(self, codes: Codes, ids: NDArray[np.int64], bits: int) -> SegmentRef:
        """Write codes with ascending ids to a new segment; it is on disk when this returns."""
        name = f"{uuid.uuid4().hex}.seg"
        url = f"{self.folder.rstrip('/')}/{name}"
        if "://" not in url:
            write_segment(Path(url), codes, ids, bits)
            return SegmentRef(url, len(codes), _file_checksum(Path(url)))
        with tempfile.TemporaryDirectory(prefix="stillhash-") as folder:
            path = Path(folder) / name
            write_segment(path, codes, ids, bits)
            fs, target = remote_filesystem(url)
            with _store_errors(url):
                fs.put_file(str(path), target)
            return SegmentRef(url, len(codes), _file_checksum(path))

    def delete(self, ref: SegmentRef) -> None:
        """Delete a segment; one that cannot be removed is left behind."""
        with suppress(OSError, StoreFailed):
            if "://" in ref.url:
                fs, path = remote_filesystem(ref.url)
                fs.rm_file(path)
            else:
                Path(ref.url).unlink()


class SegmentCache:
    """Copies of segments on this node, shared by all its processes, at most `max_bytes` of them."""

    def __init__(self, folder: str | Path | None = None, max_bytes: int = CACHE_BYTES) -> None:
        default = Path(tempfile.gettempdir()) / f"stillhash-{getpass.getuser()}" / "segments"
        self.folder, self.max_bytes = default if folder is None else Path(folder), max_bytes

    def open(self, ref: SegmentRef, bits: int) -> Segment:
        """Map a segment, or a copy of it, and verify its checksums. A damaged copy is fetched again, once."""
        if "://" not in ref.url:
            return _open_verified(Path(ref.url), ref, bits)
        name = hashlib.sha256(f"{ref.url} {ref.checksum}".encode()).hexdigest()[:32]
        path = self.folder / f"{name}.seg"
        with self._locked(name):
            if not path.exists():
                self._fetch(ref, path)
            try:
                segment = _open_verified(path, ref, bits)
            except BadState:
                path.unlink(missing_ok=True)
                self._fetch(ref, path)
                segment = _open_verified(path, ref, bits)
            with suppress(OSError):
                os.utime(path)  # the least recently used copies are evicted first
        return segment

    def _fetch(self, ref: SegmentRef, path: Path) -> None:
        write_durably(path, _download(ref.url))
        self._evict(path)

    def _evict(self, newest: Path) -> None:
        """Delete the least recently used copies. A process that has one mapped keeps it."""
        copies = []
        for file in self.folder.glob("*.seg"):
            with suppress(FileNotFoundError):  # another process evicts too
                copies.append((file != newest, file.stat().st_mtime, file.stat().st_size, file))
        total = sum(size for _, _, size, _ in copies)
        for _, _, size, file in sorted(copies)[1:]:
            if total > self.max_bytes:
                total -= size
                file.unlink(missing_ok=True)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Let one process at a time fetch a segment; the others find the copy."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self.folder / f"lock-{name[:2]}", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreFailed(f"cache: cannot write to {self.folder}: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def open_segment(url: str | Path, bits: int, cache: SegmentCache) -> tuple[SegmentRef, Segment]:
    """Open a segment that exists already, by its path or URL."""
    if "://" not in str(url):
        path = Path(url).absolute()
        segment = read_segment(path, bits)
        return SegmentRef(str(path), segment.rows, _file_checksum(path)), segment
    fs, remote_path = remote_filesystem(str(url))
    with _store_errors(str(url)):
        checksum = fs.cat_file(remote_path, start=-CHECKSUM_BYTES).hex()
    segment = cache.open(SegmentRef(str(url), 0, checksum), bits)
    return SegmentRef(str(url), segment.rows, checksum), segment


def remote_filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingExtra("storage behind a URL needs fsspec: pip install 'stillhash[cluster]'") from error
    with _store_errors(url):
        fs, path = url_to_fs(url)
    return fs, str(path)


@contextmanager
def _store_errors(url: str) -> Iterator[None]:
    """Turn the errors of a file system into StoreFailed."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise StoreFailed(f"cannot use {url}: {error}") from error


def _download(url: str) -> Iterator[bytes]:
    fs, path = remote_filesystem(url)
    try:
        with fs.open(path, "rb") as file:
            while data := file.read(DOWNLOAD_BYTES):
                yield data
    except (OSError, ValueError) as error:
        raise BadState(f"cannot read {url}: {error}") from error


def _open_verified(path: Path, ref: SegmentRef, bits: int) -> Segment:
    segment = read_segment(path, bits)
    if _file_checksum(path) != ref.checksum:
        raise BadState(f"{ref.url}: expected checksum {ref.checksum}, got that of another segment")
    return segment


def _file_checksum(path: Path) -> str:
    with translate_read_errors(path), path.open("rb") as file:
        file.seek(-CHECKSUM_BYTES, os.SEEK_END)
        return file.read(CHECKSUM_BYTES).hex()
