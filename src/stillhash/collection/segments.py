"""Segments: immutable files of codes in the scan's own layout, mapped and never read as a whole.

    bytes 0-63    magic, format, bits, rows, whether row numbers follow, and a checksum of all that comes after
    bytes 4096-   tiles (tiles, planes, 1024), then, if they are not consecutive, the row numbers as int64

A segment appears under its name only when it is complete and on disk. Its checksum is held against the content once,
before the first search reads it, and by `verify`.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState, StoreFailed
from stillhash.numeric.checks import Codes
from stillhash.numeric.codes import TILE, Tiles, to_tiles, width

MAGIC, FORMAT = b"STILLSEG", 1
HEADER = struct.Struct("<8sIIQqII")  # magic, format, bits, rows, first row or -1, crc of the content, crc of the header
START = 4096  # of the tiles: a page, so that they can be mapped
CRC_STEP = 1 << 24


class Segment(NamedTuple):
    """Codes of rows first, first + 1, ..., or of `numbers`."""

    path: Path
    bits: int
    rows: int
    first: int
    crc: int
    tiles: Tiles
    numbers: NDArray[np.int64] | None

    def row_numbers(self) -> NDArray[np.int64]:
        return np.arange(self.first, self.first + self.rows) if self.numbers is None else np.asarray(self.numbers)

    def sound(self) -> bool:
        """Whether the content is what was written."""
        content = np.memmap(self.path, np.uint8, "r", START)
        return _crc(content) == self.crc


def write_segment(path: Path, codes: Codes, numbers: NDArray[np.int64], bits: int) -> None:
    """Writes codes of these rising row numbers; the file is on disk, under its name, when this returns."""
    tiles = to_tiles(codes, bits)
    consecutive = len(numbers) > 0 and int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1
    first = int(numbers[0]) if consecutive else -1
    parts = [tiles] if consecutive else [tiles, np.ascontiguousarray(numbers, "<i8")]
    crc = 0
    for part in parts:
        crc = _crc(part.reshape(-1).view(np.uint8), crc)
    head = HEADER.pack(MAGIC, FORMAT, bits, len(codes), first, crc, 0)
    head = HEADER.pack(MAGIC, FORMAT, bits, len(codes), first, crc, zlib.crc32(head))
    write_durably(path, [head.ljust(START, b"\0"), *(part.reshape(-1).view(np.uint8).data for part in parts)])


def read_segment(path: Path, bits: int) -> Segment:
    """Maps a segment; its header is checked, its content not yet (`sound`)."""
    try:
        with path.open("rb") as file:
            head = file.read(START)
        size = path.stat().st_size
        magic, format_, found, rows, first, crc, own = HEADER.unpack_from(head)
    except (OSError, struct.error) as error:
        raise BadState(f"segment {path.name} cannot be read: {error}") from error
    if magic != MAGIC or any(head[HEADER.size :]) or len(head) < START:
        raise BadState(f"segment {path.name} does not begin as one")
    if format_ != FORMAT:
        raise BadState(f"segment {path.name} has format version {format_}; this release reads version {FORMAT}")
    if zlib.crc32(HEADER.pack(magic, format_, found, rows, first, crc, 0)) != own or found != bits:
        raise BadState(f"segment {path.name} has a damaged header")
    planes = -(-rows // TILE) * width(bits) * TILE
    if size != START + planes + (0 if first >= 0 else 8 * rows):
        raise BadState(f"segment {path.name} has {size} bytes, which is not what {rows} codes need")
    tiles = np.memmap(path, np.uint8, "r", START, (-(-rows // TILE), width(bits), TILE))
    numbers = None if first >= 0 else np.memmap(path, "<i8", "r", START + planes, (rows,))
    return Segment(path, bits, rows, first, crc, tiles, numbers)


def write_durably(path: Path, parts: Iterable[bytes | memoryview]) -> None:
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
        unfinished.unlink(missing_ok=True)


def keep_only(folder: Path, named: set[str]) -> None:
    """Drops files that no table names: left over, or never finished."""
    for file in folder.iterdir():
        if file.name not in named:
            file.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _crc(array: NDArray[np.uint8], crc: int = 0) -> int:
    for s in range(0, len(array), CRC_STEP):
        crc = zlib.crc32(array[s : s + CRC_STEP].data, crc)
    return crc
