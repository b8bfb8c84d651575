"""Files that appear whole or not at all, and whose content is protected by checksums.

A sealed file is its content, the checksums of each 4,096 bytes of it, and checksums of those. It never changes.
"""

import errno
import logging
import mmap
import os
import re
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState, Conflict, InvalidInput, StoreFailed, WrongType, shortage
from stillhash.platform import SYSTEM

BLOCK_SIZE = 4096  # bytes
FILE_PART_BYTES = 1 << 20  # of a file are read at a time

BlockChecksums = NDArray[np.uint32]  # (blocks, 2): CRC-32 and Adler-32


def block_checksums(data: Any) -> BlockChecksums:
    """Compute the checksums of each block of these bytes; the last block may be shorter."""
    view = memoryview(data).cast("B")
    blocks = [view[s : s + BLOCK_SIZE] for s in range(0, len(view), BLOCK_SIZE)]
    columns = [list(map(checksum, blocks)) for checksum in (zlib.crc32, zlib.adler32)]
    return np.array(columns, np.uint32).T


def checksum_pair(block: Any) -> tuple[int, int]:
    return zlib.crc32(block), zlib.adler32(block)


def damaged_blocks(data: Any, checksums: BlockChecksums) -> list[int]:
    """List the blocks that do not match their checksums, or are missing at the end."""
    view, crcs = memoryview(data).cast("B"), checksums[:, 0].tolist()
    return [n for n, crc in enumerate(crcs) if zlib.crc32(view[n * BLOCK_SIZE : (n + 1) * BLOCK_SIZE]) != crc]


def pack_checksums(checksums: BlockChecksums) -> bytes:
    """Serialise checksums, followed by checksums of their own."""
    table = checksums.astype("<u4").tobytes()
    return table + np.array(checksum_pair(table), "<u4").tobytes()


def running_checksums(read: Callable[[], bytes]) -> bytes:
    """Compute and serialise the checksums of all that a function returns, call after call, until it returns nothing."""
    crc, adler = checksum_pair(b"")
    while part := read():
        crc, adler = zlib.crc32(part, crc), zlib.adler32(part, adler)
    return np.array((crc, adler), "<u4").tobytes()


def pack_file_checksums(file: Path) -> bytes:
    """Compute and serialise the checksums of a file."""
    return pack_checksums(block_checksums(file.read_bytes()))


def unpack_checksums(data: bytes, file: str) -> BlockChecksums:
    """Read what `pack_checksums` wrote; raise BadState if it is damaged."""
    table = data[:-8]
    if len(data) % 8 or len(data) < 8 or np.array(checksum_pair(table), "<u4").tobytes() != data[-8:]:
        raise BadState(f"{file}: the checksums are damaged")
    return np.frombuffer(table, "<u4").reshape(-1, 2)


def file_checksum(path: Path) -> str:
    """Return the checksums of a whole file, as 16 hexadecimal digits."""
    with path.open("rb") as file:
        return running_checksums(lambda: file.read(FILE_PART_BYTES)).hex()


def seal(content: bytes) -> bytes:
    """Return the bytes of a sealed file of this content."""
    return content + pack_checksums(block_checksums(content))


def unseal(data: bytes, file: str) -> bytes:
    """Return the content of a sealed file from its bytes; BadState if they are damaged."""
    blocks = -(-(len(data) - 8) // (BLOCK_SIZE + 8))
    size = len(data) - 8 - 8 * blocks
    if size < 0 or -(-size // BLOCK_SIZE) != blocks:
        raise BadState(f"{file}: damaged; no sealed file has {len(data)} bytes")
    content = data[:size]
    if damaged := damaged_blocks(content, unpack_checksums(data[size:], file)):
        raise BadState(f"{file}: damaged in {len(damaged)} of its blocks of {BLOCK_SIZE:,} bytes")
    return content


FILE_MODE, FOLDER_MODE = 0o600, 0o700  # what is created is for the owner alone, where files have modes
MAX_SEALED_BYTES = 1 << 40
CHECKED_BLOCKS = 1 << 16  # blocks are checked at a time
TABLE_BYTES = 1 << 20  # of checksums are read at a time
FOLDER_LOCK_POLL_SECONDS = 0.1  # is how often a process looks that waits for the write lock of a folder
STORED_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

log = logging.getLogger("stillhash.files")


def stored_file(folder: Path, name: Any) -> Path:
    """Return the path of a file that the database names; BadState unless it is a plain name, below this folder."""
    if not isinstance(name, str) or STORED_NAME.fullmatch(name) is None:
        raise BadState(f"{folder.name}: expected the name of a file in it, got {name!r:.100}")
    return folder / name


def saved_path(path: Any) -> Path:
    """Return where the path of a file to save or load leads, past links."""
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise WrongType(f"path: expected a string or a path, got {path!r:.100}")
    text = os.fspath(path)
    if not text or "\0" in text:
        raise InvalidInput(f"path: expected a path of a file, got {text!r:.100}")
    try:
        return Path(text).resolve()
    except (OSError, RuntimeError) as error:
        raise InvalidInput(f"path: expected a path of a file, got {text!r:.100}: {error}") from error


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; BadState if it is a link, a folder, a pipe or a device."""
    try:
        handle = SYSTEM.open_file(path, os.O_RDONLY)
    except IsADirectoryError:  # on Windows, where folders are not opened
        raise BadState(f"{display_name(path)}: expected a file, got something else") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadState(f"{display_name(path)}: expected a file, got a link") from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BadState(f"{display_name(path)}: expected a file, got something else")
    return os.fdopen(handle, "rb")


def read_regular(path: Path, most: int) -> bytes:
    """Return what is in a file; BadState if that is more than expected."""
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise BadState(f"{display_name(path)}: expected at most {most} bytes, got {size}")
        return file.read(size)


def open_to_write(path: Path) -> BinaryIO:
    """Open a file for writing, from its start and without a loss of what is in it, or create it for the owner alone."""
    return os.fdopen(SYSTEM.open_file(path, os.O_WRONLY | os.O_CREAT, FILE_MODE), "wb")


def check_kind(path: Path, *, folder: bool = False) -> bool:
    """Return whether there is something of this name; BadState unless it is a file, or a folder."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    if not (stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)):
        raise BadState(f"{display_name(path)}: expected a {'folder' if folder else 'file'}, got something else")
    return True


def create_private(path: Path) -> Path:
    """Create an empty file for the owner alone, or empty one that exists, and return its path."""
    os.close(SYSTEM.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE))
    return path


def write_durably(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file that appears whole or not at all, and is on disk when this returns."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with create_private(unfinished).open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            SYSTEM.sync_handle(file.fileno())
        SYSTEM.replace(unfinished, path)
        SYSTEM.sync(path.parent)
    except OSError as error:
        raise StoreFailed(f"{path.name}: could not be written: {error}") from error
    finally:
        with suppress(OSError):  # the next clean-up removes it
            unfinished.unlink(missing_ok=True)


def write_sealed(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a sealed file of these parts, one at a time; all but the last are whole blocks."""
    write_durably(path, _with_checksums(parts))


def _with_checksums(parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the parts of a sealed file's content, and then its checksums."""
    checksums = []
    for part in parts:
        checksums.append(block_checksums(part))
        yield part
    yield pack_checksums(np.concatenate(checksums))


def content_size(path: Path) -> int:
    """Return how many bytes of a sealed file are content."""
    with translate_read_errors(path):
        check_kind(path)
        size = path.lstat().st_size
    blocks = -(-(size - 8) // (BLOCK_SIZE + 8))
    content = size - 8 - 8 * blocks
    if content < 0 or -(-content // BLOCK_SIZE) != blocks or size > MAX_SEALED_BYTES:
        raise BadState(f"{display_name(path)}: damaged; no sealed file has {size} bytes")
    return content


def check_sealed(path: Path, on_bytes: Callable[[int], object] | None = None) -> None:
    """Raise BadState unless the content matches its checksums; a part at a time, up to the first that is damaged.

    on_bytes: called after each part with the bytes of it.
    """
    size = content_size(path)
    name, blocks = display_name(path), -(-size // BLOCK_SIZE)
    with translate_read_errors(path), open_regular(path) as file:
        file.seek(size)
        own = running_checksums(lambda: file.read(min(TABLE_BYTES, size + 8 * blocks - file.tell())))
        if own != file.read():
            raise BadState(f"{name}: the checksums are damaged")
        file.seek(size)
        damaged = _first_damaged(file, size, on_bytes) if size else []
    if damaged:  # raised when the file is unmapped, so that it can be replaced wherever this is caught
        raise BadState(f"{name}: damaged in {len(damaged)} of its blocks of {BLOCK_SIZE:,} bytes")


def _first_damaged(file: BinaryIO, size: int, on_bytes: Callable[[int], object] | None) -> list[int]:
    """Compare the content of a sealed file, a part at a time, with the checksums that follow it; list damaged blocks.

    Stops after the first part that has some.
    """
    blocks = -(-size // BLOCK_SIZE)
    with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as content:
        for start in range(0, blocks, CHECKED_BLOCKS):
            table = np.frombuffer(file.read(8 * min(CHECKED_BLOCKS, blocks - start)), "<u4").reshape(-1, 2)
            with memoryview(content)[start * BLOCK_SIZE : (start + CHECKED_BLOCKS) * BLOCK_SIZE] as part:
                if damaged := damaged_blocks(part, table):
                    return damaged
                read = len(part)
            if on_bytes is not None:
                on_bytes(read)
    return []


def read_sealed(path: Path) -> bytes:
    """Return the content of a sealed file, once it is checked."""
    check_sealed(path)
    return map_file(path)[: content_size(path)].tobytes()


def map_file(path: Path) -> NDArray[np.uint8]:
    """Map a file that is not empty into memory."""
    with translate_read_errors(path), open_regular(path) as file:
        mapped = np.memmap(file, np.uint8, "r")
    mapped.filename = str(path)  # shards of a cluster map the file again
    return mapped


@contextmanager
def translate_read_errors(path: Path) -> Iterator[None]:
    """Raise BadState where reading this file raises OSError, also if there is no such file; our own for shortages."""
    try:
        yield
    except OSError as error:
        if (lack := shortage(error)) is not None:
            raise lack from error
        raise BadState(f"{display_name(path)}: cannot be read: {error.strerror or error}") from error


def file_size(path: Path) -> int:
    """Return the size of a file, 0 if there is none, as after the writing process has removed it."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def display_name(path: Path) -> str:
    """Return the name of a file of the store, with its folder, as messages show it."""
    return f"{path.parent.name}/{path.name}"


def remove_unlisted(folder: Path, names: set[str]) -> bool:
    """Remove files that are not listed: obsolete, or never finished; return whether all are removed.

    One that cannot be removed does no harm: on Windows, one that is open or mapped.
    """
    try:
        files = [file for file in folder.iterdir() if file.name not in names]
    except OSError:
        return False
    for file in files:
        with suppress(OSError):
            file.unlink()
    return not any(map(os.path.lexists, files))


def lock_folder(path: Path, wait: float = 0.0) -> int:
    """Take the write lock of this folder, which one process has at a time, within so many seconds; its handle."""
    began, waiting = time.monotonic(), False
    while (handle := _try_lock_folder(path)) is None:
        if time.monotonic() - began >= wait:
            raise Conflict(f"{path.name}: another process is writing to it. Use read_only=True to search it.")
        if not waiting:
            log.warning("%s: another process is writing to it; waiting for its end, to take over", path.name)
        waiting = True
        time.sleep(FOLDER_LOCK_POLL_SECONDS)
    return handle


def _try_lock_folder(path: Path) -> int | None:
    """Take the write lock of this folder, and return its file handle; None if another process has it."""
    try:
        handle = SYSTEM.open_file(path / "lock", os.O_RDWR | os.O_CREAT, FILE_MODE)
    except OSError as error:
        problem = f"{path.name}: cannot be written: {error.strerror}. Use read_only=True to search it."
        raise StoreFailed(problem) from error
    if not SYSTEM.try_lock(handle):
        os.close(handle)
        return None
    return handle


def unlock_folder(handle: int) -> None:
    """Release the write lock of a folder, also where a child process has inherited the handle."""
    SYSTEM.unlock(handle)
    os.close(handle)


@contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Hold the write lock of this folder."""
    handle = lock_folder(path)
    try:
        yield
    finally:
        unlock_folder(handle)


def holds_lock(path: Path, handle: int) -> bool:
    """Return whether the lock of this folder is the file of this handle, and not a newer one of the same name."""
    if not SYSTEM.open_files_can_move:  # the file that we have open cannot lose its name
        return True
    try:
        return os.path.samestat(os.fstat(handle), (path / "lock").stat())
    except OSError:
        return False
