"""Bitmaps by row, one bit each, in little-endian bit order: set the bits of some rows in place, count and list them."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.validation import Mask
from stillhash.search.blocks import Bitmap

BITS_OF_BYTE = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
SPARSE = 64  # rows so far apart are set one by one


def set_span(bitmap: Bitmap, first: int, values: Mask) -> None:
    """Set the bits of rows first, first + 1, ...; all others stay."""
    if not len(values):
        return
    lead, last = first % 8, first + len(values) - 1
    packed = np.packbits(np.concatenate([np.zeros(lead, bool), values]) if lead else values, bitorder="little")
    target = bitmap[first // 8 : last // 8 + 1]
    before, after = target[0] & ((1 << lead) - 1), target[-1] & (0xFF << (last % 8 + 1) & 0xFF)
    target[:] = packed
    target[0] |= before
    target[-1] |= after


def read_span(bitmap: Bitmap, first: int, count: int) -> Mask:
    """Return the bits of rows first, first + 1, ..., so many."""
    bits = np.unpackbits(bitmap[first // 8 : -(-(first + count) // 8)], bitorder="little")
    return bits[first % 8 : first % 8 + count].view(bool)


def set_rows(bitmap: Bitmap, rows: NDArray[np.int64], values: Mask) -> None:
    """Set the bits of these rows; all others stay. Of a row that comes more than once, the last value counts."""
    if not len(rows):
        return
    if not (np.diff(rows) > 0).all():
        rows, last = np.unique(rows[::-1], return_index=True)
        values = values[::-1][last]
    start = int(rows.min()) // 8 * 8
    stop = int(rows.max()) + 1
    if stop - start > SPARSE * len(rows):
        bits = (1 << (rows % 8)).astype(np.uint8)
        np.bitwise_and.at(bitmap, rows // 8, ~bits)
        np.bitwise_or.at(bitmap, rows[values] // 8, bits[values])
        return
    span = np.unpackbits(bitmap[start // 8 : -(-stop // 8)], bitorder="little")
    span[rows - start] = values
    bitmap[start // 8 : -(-stop // 8)] = np.packbits(span, bitorder="little")


def count_bits(bitmap: Bitmap) -> int:
    """Count the rows in a bitmap."""
    return int(BITS_OF_BYTE[bitmap].sum(dtype=np.int64))


def list_rows(bitmap: Bitmap, size: int) -> Iterator[NDArray[np.int64]]:
    """Yield the rows in a bitmap, rising, so many at a time; the last time perhaps fewer."""
    span, waiting = max(1, size // 8), np.empty(0, np.int64)
    for start in range(0, len(bitmap), span):
        rows = np.flatnonzero(np.unpackbits(bitmap[start : start + span], bitorder="little")) + 8 * start
        waiting = np.concatenate([waiting, rows])
        while len(waiting) >= size:
            yield waiting[:size]
            waiting = waiting[size:]
    if len(waiting):
        yield waiting
