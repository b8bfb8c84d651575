"""Checksums: each block of a file has two, so that damage is found, and a single flipped bit can be flipped back.

CRC-32 finds damage. It also tells which bit of a block flipped, if only one did: each bit changes it in a way of its
own. Adler-32, which is computed quite differently, then says whether that was all.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState

BLOCK = 4096
TABLE = np.array([zlib.crc32(bytes([b]), 0xFFFFFFFF) ^ 0xFFFFFFFF for b in range(256)], np.uint32)

Sums = NDArray[np.uint32]  # (blocks, 2): CRC-32 and Adler-32


def sums_of(data: Any) -> Sums:
    """The checksums of each block of these bytes; the last may be shorter."""
    view = memoryview(data).cast("B")
    found = [pair(view[s : s + BLOCK]) for s in range(0, len(view), BLOCK)]
    return np.array(found, np.uint32).reshape(-1, 2)


def pair(block: Any) -> tuple[int, int]:
    return zlib.crc32(block), zlib.adler32(block)


def damaged(data: Any, sums: Sums) -> list[int]:
    """The numbers of the blocks that are not what they were, those missing at the end among them."""
    view, crcs = memoryview(data).cast("B"), sums[:, 0].tolist()
    return [n for n, crc in enumerate(crcs) if zlib.crc32(view[n * BLOCK : (n + 1) * BLOCK]) != crc]


def mended(block: bytes, sums: Any) -> bytes | None:
    """The block as it was, if a single bit flipped; else None."""
    crc, adler = (int(s) for s in sums)
    change = np.uint32(zlib.crc32(block) ^ crc)
    effect = TABLE[1 << np.arange(8)]  # on the CRC, of each bit of the last byte; then of the one before, and so on
    for place in range(len(block) - 1, -1, -1):
        for bit in np.flatnonzero(effect == change):
            fixed = block[:place] + bytes([block[place] ^ (1 << int(bit))]) + block[place + 1 :]
            return fixed if zlib.adler32(fixed) == adler else None
        effect = (effect >> np.uint32(8)) ^ TABLE[effect & 255]
    return None


def packed(sums: Sums) -> bytes:
    """The checksums as bytes, with checksums of their own behind them."""
    table = sums.astype("<u4").tobytes()
    return table + np.array(pair(table), "<u4").tobytes()


def unpacked(data: bytes, whose: str) -> Sums:
    """What `packed` wrote; refused if damaged."""
    table = data[:-8]
    if len(data) % 8 or len(data) < 8 or np.array(pair(table), "<u4").tobytes() != data[-8:]:
        raise BadState(f"the checksums of {whose} are damaged themselves")
    return np.frombuffer(table, "<u4").reshape(-1, 2)


def mended_table(data: bytes) -> bytes | None:
    """What `packed` wrote, if a single bit of it flipped since; else None."""
    table, own = data[:-8], np.frombuffer(data[-8:], "<u4")
    if len(data) % 8 or len(data) < 8:
        return None
    right = pair(table)
    if any(a == b for a, b in zip(right, own.tolist(), strict=True)):  # the table is sound, one of its own two is not
        return table + np.array(right, "<u4").tobytes()
    fixed = mended(table, own)
    return None if fixed is None else fixed + data[-8:]
