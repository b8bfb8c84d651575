"""Checksums of blocks: each block has two, CRC-32, which detects damage, and Adler-32."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState

BLOCK_SIZE = 4096  # bytes
FILE_PART_BYTES = 1 << 20  # of a file, read at a time

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
    """Return the bytes of a sealed file (sealed_files.py) of this content."""
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
