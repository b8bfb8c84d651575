"""Binary codes: packed rows, their signs, and the tiles that the scan reads.

A code of `bits` bits is ceil(bits / 8) bytes; bit i of byte j is hash bit 8 j + i, and 1 means +1. A tile
holds 256 codes as byte planes, (planes, 256): plane j is byte j of each code, so that one SIMD register
holds the same byte of many codes. Rows past the end of the last tile are zero.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric import kernels
from stillhash.numeric.kernels import HUGE_PAGE, advise_huge_pages
from stillhash.numeric.validation import Codes, Floats

TILE = 256  # codes per tile: small, so that the scan reads memory straight through (lanes.hpp)
CACHE_LINE = 64  # bytes
ONES_IN_BYTE = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)  # (256,)

Tiles = NDArray[np.uint8]  # (tiles, planes, 256)


def width(bits: int) -> int:
    """Return the bytes of a packed code."""
    return (bits + 7) // 8


def pack(projections: Floats) -> Codes:
    """Return the codes of the signs of (n, bits) real projections; sgn(0) = +1."""
    return kernels.pack_signs(projections)


def signs(codes: Codes, bits: int) -> Floats:
    """Return codes as (n, bits) of -1 and +1."""
    ones = np.unpackbits(codes, axis=1, count=bits, bitorder="little")
    return ones.astype(np.float32) * 2 - 1


def sgn(values: NDArray[Any]) -> NDArray[np.int8]:
    """Return +1 where a value is >= 0, else -1; never 0."""
    return np.where(values >= 0, np.int8(1), np.int8(-1))


def count_ones(words: NDArray[Any]) -> NDArray[np.uint8]:
    """Return how many bits are 1 in each unsigned integer."""
    if hasattr(np, "bitwise_count"):  # NumPy 2
        return np.asarray(np.bitwise_count(words), np.uint8)
    parts = ONES_IN_BYTE[np.ascontiguousarray(words).view(np.uint8)]
    return np.asarray(parts.reshape(*words.shape, words.itemsize).sum(axis=-1, dtype=np.uint8))


def empty_tiles(rows: int, bits: int) -> Tiles:
    """Return tiles for `rows` codes, all zero, that begin at a cache line; large ones in huge pages."""
    shape = (-(-rows // TILE), width(bits), TILE)
    size = math.prod(shape)
    step = CACHE_LINE if size < HUGE_PAGE else HUGE_PAGE
    memory = np.zeros(size + step, dtype=np.uint8)  # what is never written takes no memory
    start = -memory.ctypes.data % step
    tiles = memory[start : start + size].reshape(shape)
    advise_huge_pages(tiles)
    return tiles


def to_tiles(codes: Codes, bits: int) -> Tiles:
    """Return the codes as tiles."""
    tiles = empty_tiles(len(codes), bits)
    kernels.write_tiles(tiles, 0, codes)
    return tiles


def from_tiles(tiles: Tiles, rows: int) -> Codes:
    """Return the codes of the first rows of the tiles."""
    return kernels.read_tiles(tiles, np.arange(rows, dtype=np.int64))
