"""Where sealed segments lie: on a disk that all nodes see, or behind a URL, from which each node keeps copies.

A piece is known by the last eight bytes of its file, which are checksums of all its checksums: whatever else lies under
its name, tomorrow or on another node, is not taken for it.
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

MARK = 8  # bytes
CHUNK = 2**22  # bytes read at a time
CACHE = 64 * 2**30  # bytes of copies on a node


class Piece(NamedTuple):
    """A sealed segment, wherever it lies."""

    url: str  # or a path
    rows: int
    mark: str


class Storage:
    """A folder, or any URL that fsspec knows; what is written here stays until `drop`."""

    def __init__(self, where: str | Path) -> None:
        self.where = str(where) if "://" in str(where) else str(Path(where).absolute())
        if "://" in self.where:
            fs, path = remote(self.where)
            with _told(self.where):
                fs.makedirs(path, exist_ok=True)
        else:
            Path(self.where).mkdir(parents=True, exist_ok=True)

    def write(self, codes: Codes, numbers: NDArray[np.int64], bits: int) -> Piece:
        """A new piece of codes with these rising ids, on disk when this returns."""
        name = f"{uuid.uuid4().hex}.seg"
        url = f"{self.where.rstrip('/')}/{name}"
        if "://" not in url:
            write_segment(Path(url), codes, numbers, bits)
            return Piece(url, len(codes), _mark(Path(url)))
        with tempfile.TemporaryDirectory(prefix="stillhash-") as made:
            path = Path(made) / name
            write_segment(path, codes, numbers, bits)
            fs, target = remote(url)
            with _told(url):
                fs.put_file(str(path), target)
            return Piece(url, len(codes), _mark(path))

    def drop(self, piece: Piece) -> None:
        """Forgets a piece; one that cannot be removed does no harm."""
        with suppress(OSError, StoreFailed):
            if "://" in piece.url:
                fs, path = remote(piece.url)
                fs.rm_file(path)
            else:
                Path(piece.url).unlink()


class Cache:
    """Copies of pieces on this node, shared by all its processes, at most so many bytes."""

    def __init__(self, folder: str | Path | None = None, most: int = CACHE) -> None:
        mine = Path(tempfile.gettempdir()) / f"stillhash-{getpass.getuser()}" / "pieces"
        self.folder, self.most = mine if folder is None else Path(folder), most

    def mapped(self, piece: Piece, bits: int) -> Segment:
        """The piece, checked: where it lies, or a copy of it. A damaged copy is fetched again, once."""
        if "://" not in piece.url:
            return _known(Path(piece.url), piece, bits)
        name = hashlib.sha256(f"{piece.url} {piece.mark}".encode()).hexdigest()[:32]
        path = self.folder / f"{name}.seg"
        with self._alone(name):
            if not path.exists():
                self._fetch(piece, path)
            try:
                segment = _known(path, piece, bits)
            except BadState:
                path.unlink(missing_ok=True)
                self._fetch(piece, path)
                segment = _known(path, piece, bits)
            with suppress(OSError):
                os.utime(path)  # what was not used for long is dropped first
        return segment

    def _fetch(self, piece: Piece, path: Path) -> None:
        write_durably(path, _parts(piece.url))
        self._bound(path)

    def _bound(self, newest: Path) -> None:
        """Drops the copies not used for longest. Who has one mapped keeps it."""
        files = sorted((f for f in self.folder.glob("*.seg") if f != newest), key=_used)
        size = sum(_size(file) for file in [*files, newest])
        while size > self.most and files:
            size -= _size(files[0])
            files.pop(0).unlink(missing_ok=True)

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """One process at a time; others that want the same piece find it done."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self.folder / f"lock-{name[:2]}", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreFailed(f"{self.folder} cannot be written to: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def found(url: str | Path, bits: int, cache: Cache) -> tuple[Piece, Segment]:
    """A segment that is there already."""
    if "://" not in str(url):
        path = Path(url).absolute()
        segment = read_segment(path, bits)
        return Piece(str(path), segment.rows, _mark(path)), segment
    fs, path_ = remote(str(url))
    with _told(str(url)):
        mark = fs.cat_file(path_, start=-MARK).hex()
    segment = cache.mapped(Piece(str(url), 0, mark), bits)
    return Piece(str(url), segment.rows, mark), segment


def remote(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingExtra("storage behind a URL needs fsspec: pip install 'stillhash[cluster]'") from error
    with _told(url):
        fs, path = url_to_fs(url)
    return fs, str(path)


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Whatever a file system raises is told as the store's failure."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise StoreFailed(f"{url} cannot be used: {error}") from error


def _parts(url: str) -> Iterator[bytes]:
    fs, path = remote(url)
    try:
        with fs.open(path, "rb") as file:
            while part := file.read(CHUNK):
                yield part
    except (OSError, ValueError) as error:
        raise BadState(f"{url} cannot be read: {error}") from error


def _known(path: Path, piece: Piece, bits: int) -> Segment:
    segment = read_segment(path, bits)
    if _mark(path) != piece.mark:
        raise BadState(f"{piece.url} is not the segment that was written there")
    return segment


def _mark(path: Path) -> str:
    with translate_read_errors(path), path.open("rb") as file:
        file.seek(-MARK, os.SEEK_END)
        return file.read(MARK).hex()


def _used(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
