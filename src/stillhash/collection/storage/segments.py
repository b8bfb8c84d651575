"""Segments: immutable files of codes in the layout that the scan reads, mapped into memory.

    bytes 0-31    magic, format, bits, rows, and the first row or -1
    bytes 4096-   tiles (tiles, planes, 1024), then, if they are not consecutive, the row numbers as int64

A segment is a sealed file (sealed_files.py). Its checksums are verified once, before the first search, and by `verify`.
"""

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.checksums import BLOCK_SIZE
from stillhash.collection.storage.sealed_files import check_sealed, content_size, translate_read_errors, write_sealed
from stillhash.errors import BadState
from stillhash.numeric.codes import TILE, Tiles, from_tiles, to_tiles, width
from stillhash.numeric.validation import Codes

SEGMENT_MAGIC, SEGMENT_FORMAT = b"STILLSEG", 1
SEGMENT_HEADER = struct.Struct("<8sIIQq")  # magic, format, bits, rows, first row or -1
TILES_OFFSET = 4096  # of the tiles: a page, so that they can be mapped


class Segment(NamedTuple):
    """The codes of rows first, first + 1, ..., or of `numbers`."""

    path: Path
    bits: int
    rows: int
    first: int
    tiles: Tiles
    numbers: NDArray[np.int64] | None

    def row_numbers(self) -> NDArray[np.int64]:
        return np.arange(self.first, self.first + self.rows) if self.numbers is None else np.asarray(self.numbers)


def write_segment(path: Path, codes: Codes, numbers: NDArray[np.int64], bits: int) -> None:
    """Write the codes of these ascending row numbers; the file is on disk when this returns."""
    tiles = to_tiles(codes, bits)
    consecutive = len(numbers) > 0 and int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1
    head = SEGMENT_HEADER.pack(SEGMENT_MAGIC, SEGMENT_FORMAT, bits, len(codes), int(numbers[0]) if consecutive else -1)
    content = [tiles.tobytes()] if consecutive else [tiles.tobytes(), np.ascontiguousarray(numbers, "<i8").tobytes()]
    write_sealed(path, [head.ljust(TILES_OFFSET, b"\0"), b"".join(content)])


def read_segment(path: Path, bits: int, *, check: bool = True) -> Segment:
    """Map a segment, once its checksums are verified, unless they have been already."""
    name = f"{path.parent.name}/{path.name}"
    with translate_read_errors(path), path.open("rb") as file:
        head = file.read(SEGMENT_HEADER.size)
    if len(head) < SEGMENT_HEADER.size:
        raise BadState(f"{name}: expected a header of {SEGMENT_HEADER.size} bytes, got {len(head)}")
    magic, format_, stored_bits, rows, first = SEGMENT_HEADER.unpack(head)
    if magic != SEGMENT_MAGIC:
        raise BadState(f"{name}: not a segment file")
    if format_ != SEGMENT_FORMAT:
        raise BadState(f"{name}: expected format {SEGMENT_FORMAT}, got {format_}")
    if check:
        check_sealed(path)
    planes = -(-rows // TILE) * width(bits) * TILE
    if stored_bits != bits or content_size(path) != TILES_OFFSET + planes + (0 if first >= 0 else 8 * rows):
        raise BadState(f"{name}: expected codes of {bits} bits, got {rows} of {stored_bits} bits")
    with translate_read_errors(path):
        tiles = np.memmap(path, np.uint8, "r", TILES_OFFSET, (-(-rows // TILE), width(bits), TILE))
        numbers = None if first >= 0 else np.memmap(path, "<i8", "r", TILES_OFFSET + planes, (rows,))
    return Segment(path, bits, rows, first, tiles, numbers)


def read_surviving(
    path: Path, bits: int, rows: int, first: int, last: int, lost_blocks: list[int]
) -> tuple[NDArray[np.int64], Codes]:
    """Read the row numbers and codes that are on none of these blocks; the header is not read, it may be lost."""
    content = np.fromfile(path, np.uint8, content_size(path))[TILES_OFFSET:]
    tile_bytes = width(bits) * TILE
    tiles_end = -(-rows // TILE) * tile_bytes
    tiles: Tiles = content[:tiles_end].reshape(-1, width(bits), TILE)
    consecutive = last - first == rows - 1
    numbers = np.arange(first, first + rows) if consecutive else content[tiles_end:].view("<i8").astype(np.int64)
    good = np.ones(rows, bool)
    for block in lost_blocks:
        start, stop = block * BLOCK_SIZE - TILES_OFFSET, (block + 1) * BLOCK_SIZE - TILES_OFFSET
        good[max(0, start) // tile_bytes * TILE : -(-max(0, min(stop, tiles_end)) // tile_bytes) * TILE] = False
        good[max(0, start - tiles_end) // 8 : -(-max(0, stop - tiles_end) // 8)] = False
    return numbers[good], from_tiles(tiles, rows)[good]
