"""Files that are whole or not there, and know whether they are still what was written.

A sealed file is its content, the checksums of each 4,096 bytes of it, and checksums of those. It never changes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from stillhash.collection.storage.checksums import BLOCK, Sums, damaged, mended, mended_table, packed, sums_of, unpacked
from stillhash.errors import BadState, Conflict, StoreFailed

Part = bytes | memoryview


def write_durably(path: Path, parts: Iterable[Part]) -> None:
    """A file that appears whole or not at all, and stays."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        raise StoreFailed(f"{path.name} could not be written: {error}") from error
    finally:
        with suppress(OSError):  # whoever tidies up next removes it
            unfinished.unlink(missing_ok=True)


def write_sealed(path: Path, parts: list[Part]) -> None:
    """A sealed file of these parts; all but the last are of whole blocks."""
    sums = np.concatenate([sums_of(part) for part in parts])
    write_durably(path, [*parts, packed(sums)])


def content_size(path: Path) -> int:
    """The bytes of a sealed file that are content."""
    with readable(path):
        size = path.stat().st_size
    blocks = -(-(size - 8) // (BLOCK + 8))
    content = size - 8 - 8 * blocks
    if blocks < 0 or -(-content // BLOCK) != blocks:
        raise BadState(f"{called(path)} is damaged: no sealed file has {size} bytes")
    return content


def check_sealed(path: Path) -> None:
    """Holds the content against its checksums."""
    size = content_size(path)
    with readable(path):
        bad = damaged(_mapped(path)[:size], _sums(path, size))
    if bad:
        raise BadState(f"{called(path)} is damaged, in {len(bad)} of its blocks of {BLOCK:,} bytes")


def read_sealed(path: Path) -> bytes:
    """The content of a sealed file, once it is checked."""
    check_sealed(path)
    with readable(path):
        return _mapped(path)[: content_size(path)].tobytes()


def mend_sealed(path: Path) -> list[int]:
    """Flips back what single bits flipped in a sealed file; the blocks that are damaged beyond that."""
    size = content_size(path)
    with readable(path):
        data = bytearray(path.read_bytes())
    table = mended_table(bytes(data[size:]))
    if table is None:
        raise BadState(f"{called(path)} has lost its checksums")
    data[size:] = table
    lost = mend_blocks(data, unpacked(table, called(path)), size)
    write_durably(path, [bytes(data)])
    return lost


def mend_blocks(data: bytearray, sums: Sums, size: int) -> list[int]:
    """The same for the blocks of the first so many bytes, in place."""
    lost = []
    for n in damaged(memoryview(data)[:size], sums):
        place = slice(n * BLOCK, min(size, (n + 1) * BLOCK))
        fixed = mended(bytes(data[place]), sums[n])
        if fixed is None:
            lost.append(n)
        else:
            data[place] = fixed
    return lost


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Reading this file; a disk that gives an error back, or has no such file, is told as the store's failure."""
    try:
        yield
    except OSError as error:
        raise BadState(f"{called(path)} cannot be read: {error.strerror or error}") from error


def called(path: Path) -> str:
    """As messages name a file of a folder of the store."""
    return f"{path.parent.name}/{path.name}"


def keep_only(folder: Path, named: set[str]) -> None:
    """Drops files that no table names: left over, or never finished. One that cannot be removed does no harm."""
    for file in folder.iterdir():
        if file.name not in named:
            with suppress(OSError):
                file.unlink()


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def locked(path: Path) -> int:
    """The handle of the lock on this folder, which only one process has."""
    try:
        handle = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreFailed(f"{path.name} cannot be written to: {error.strerror}; read_only=True searches it") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise Conflict(
            f"{path.name} is being written by another process; open it with read_only=True to search"
        ) from None
    return handle


def _mapped(path: Path) -> np.memmap[tuple[int], np.dtype[np.uint8]]:
    return np.memmap(path, np.uint8, "r")


def _sums(path: Path, size: int) -> Sums:
    with path.open("rb") as file:
        file.seek(size)
        return unpacked(file.read(), called(path))
