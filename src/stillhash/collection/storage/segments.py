"""Segments: immutable files of codes in the scan's own layout, mapped and never read as a whole.

    bytes 0-31    magic, format, bits, rows, and the first row or -1
    bytes 4096-   tiles (tiles, planes, 1024), then, if they are not consecutive, the row numbers as int64

A segment is a sealed file (files.py). Its checksums are held against the content once, before the first search reads
it, and by `verify`.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.sealed_files import check_sealed, content_size, readable, write_sealed
from stillhash.errors import BadState
from stillhash.numeric.codes import TILE, Tiles, to_tiles, width
from stillhash.numeric.validation import Codes

MAGIC, FORMAT = b"STILLSEG", 1
HEADER = struct.Struct("<8sIIQq")  # magic, format, bits, rows, first row or -1
START = 4096  # of the tiles: a page, so that they can be mapped


class Segment(NamedTuple):
    """Codes of rows first, first + 1, ..., or of `numbers`."""

    path: Path
    bits: int
    rows: int
    first: int
    tiles: Tiles
    numbers: NDArray[np.int64] | None

    def row_numbers(self) -> NDArray[np.int64]:
        return np.arange(self.first, self.first + self.rows) if self.numbers is None else np.asarray(self.numbers)


def write_segment(path: Path, codes: Codes, numbers: NDArray[np.int64], bits: int) -> None:
    """Writes codes of these rising row numbers; the file is on disk, under its name, when this returns."""
    tiles = to_tiles(codes, bits)
    consecutive = len(numbers) > 0 and int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1
    head = HEADER.pack(MAGIC, FORMAT, bits, len(codes), int(numbers[0]) if consecutive else -1)
    content = [tiles.tobytes()] if consecutive else [tiles.tobytes(), np.ascontiguousarray(numbers, "<i8").tobytes()]
    write_sealed(path, [head.ljust(START, b"\0"), b"".join(content)])


def read_segment(path: Path, bits: int) -> Segment:
    """Maps a segment, once its content is held against its checksums."""
    with readable(path), path.open("rb") as file:
        head = file.read(HEADER.size)
    if len(head) < HEADER.size:
        raise BadState(f"segment {path.name} ends after {len(head)} bytes")
    magic, format_, found, rows, first = HEADER.unpack(head)
    if magic != MAGIC:
        raise BadState(f"segment {path.name} does not begin as one")
    if format_ != FORMAT:
        raise BadState(f"segment {path.name} has format version {format_}; this release reads version {FORMAT}")
    check_sealed(path)
    planes = -(-rows // TILE) * width(bits) * TILE
    if found != bits or content_size(path) != START + planes + (0 if first >= 0 else 8 * rows):
        raise BadState(f"segment {path.name} has {rows} codes of {found} bits; {bits} are wanted")
    with readable(path):
        tiles = np.memmap(path, np.uint8, "r", START, (-(-rows // TILE), width(bits), TILE))
        numbers = None if first >= 0 else np.memmap(path, "<i8", "r", START + planes, (rows,))
    return Segment(path, bits, rows, first, tiles, numbers)
