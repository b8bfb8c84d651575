"""Store sealed segments on a disk that all nodes see, or behind a URL from which each node caches copies.

A segment is identified by the last eight bytes of its file, which are checksums of all its checksums. Any other file
under the same name, later or on another node, is refused.
"""

import hashlib
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.segments import CodedRows, Segment, read_segment, write_segment
from stillhash.errors import BadState, MissingExtra, StillhashError, StoreFailed
from stillhash.files.sealed_files import translate_read_errors, write_durably
from stillhash.numeric.validation import Codes
from stillhash.platform import SYSTEM

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
        self.folder = _absolute(folder)
        if "://" in self.folder:
            with _remote(self.folder) as (fs, path):
                fs.makedirs(path, exist_ok=True)
        else:
            Path(self.folder).mkdir(parents=True, exist_ok=True)

    def write(self, codes: Codes, ids: NDArray[np.int64], bits: int) -> SegmentRef:
        """Write codes with ascending ids to a new segment; it is on disk when this returns."""
        name = f"{uuid.uuid4().hex}.seg"
        url = f"{self.folder.rstrip('/')}/{name}"
        remote = "://" in url
        with tempfile.TemporaryDirectory(prefix="stillhash-") if remote else nullcontext(self.folder) as folder:
            path = Path(folder) / name
            write_segment(path, CodedRows.without_digests(ids, codes), bits)
            if remote:
                with _remote(url) as (fs, target):
                    fs.put_file(str(path), target)
            return SegmentRef(url, len(codes), _file_checksum(path))

    def delete(self, ref: SegmentRef) -> None:
        """Delete a segment; one that cannot be removed is left behind."""
        with suppress(OSError, StoreFailed):
            if "://" in ref.url:
                with _remote(ref.url) as (fs, path):
                    fs.rm_file(path)
            else:
                Path(ref.url).unlink()


class SegmentCache:
    """Copies of segments on this node, shared by all its processes, at most `max_bytes` of them."""

    def __init__(self, folder: str | Path | None = None, max_bytes: int = CACHE_BYTES) -> None:
        default = Path(tempfile.gettempdir()) / f"stillhash-{SYSTEM.user_name() or SYSTEM.unnamed_user()}" / "segments"
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
                self._fetch(ref, path)
                segment = _open_verified(path, ref, bits)
            with suppress(OSError):
                os.utime(path)  # the least recently used copies are evicted first
        return segment

    def _fetch(self, ref: SegmentRef, path: Path) -> None:
        """Copy a segment, and delete the least recently used copies. A process that has one mapped keeps it."""
        write_durably(path, _download(ref.url))
        copies = []
        for file in self.folder.glob("*.seg"):
            with suppress(FileNotFoundError):  # another process evicts too
                copies.append((file != path, file.stat().st_mtime, file.stat().st_size, file))
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
            handle = SYSTEM.open_file(self.folder / f"lock-{name[:2]}", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StoreFailed(f"cache: cannot write to {self.folder}: {error.strerror}") from error
        try:
            SYSTEM.lock(handle)
            yield
        finally:
            SYSTEM.unlock(handle)
            os.close(handle)


def open_segment(url: str | Path, bits: int, cache: SegmentCache) -> tuple[SegmentRef, Segment]:
    """Open a segment that exists already, by its path or URL."""
    url = _absolute(url)
    if "://" in url:
        with _remote(url) as (fs, path):
            checksum = fs.cat_file(path, start=-CHECKSUM_BYTES).hex()
    else:
        checksum = _file_checksum(Path(url))
    segment = cache.open(SegmentRef(url, 0, checksum), bits)
    return SegmentRef(url, segment.rows, checksum), segment


def _absolute(url: str | Path) -> str:
    return str(url) if "://" in str(url) else str(Path(url).absolute())


@contextmanager
def _remote(url: str, failure: type[StillhashError] = StoreFailed) -> Iterator[tuple[Any, str]]:
    """Yield the fsspec file system of a URL, and the path in it; raise `failure` for the errors of both."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingExtra("storage behind a URL needs fsspec: pip install 'stillhash[cluster]'") from error
    try:
        yield url_to_fs(url)
    except (OSError, ValueError) as error:
        raise failure(f"cannot use {url}: {error}") from error


def _download(url: str) -> Iterator[bytes]:
    with _remote(url, BadState) as (fs, path), fs.open(path, "rb") as file:
        while data := file.read(DOWNLOAD_BYTES):
            yield data


def _open_verified(path: Path, ref: SegmentRef, bits: int) -> Segment:
    segment = read_segment(path, bits)
    if _file_checksum(path) != ref.checksum:
        raise BadState(f"{ref.url}: expected checksum {ref.checksum}, got that of another segment")
    return segment


def _file_checksum(path: Path) -> str:
    with translate_read_errors(path), path.open("rb") as file:
        file.seek(-CHECKSUM_BYTES, os.SEEK_END)
        return file.read(CHECKSUM_BYTES).hex()
