"""Bitmaps by row, one bit each, in little-endian bit order: set the bits of some rows in place, and count them."""

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


def set_rows(bitmap: Bitmap, rows: NDArray[np.int64], values: Mask) -> None:
    """Set the bits of these rows, each once; all others stay."""
    if not len(rows):
        return
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
