"""Which pages of a file differ from their checksums; also as a program, which needs nothing but the standard library.

A process that has a file open in SQLite must not open and close it again: that would drop SQLite's locks. So it lets
another process look.
"""

import json
import mmap
import struct
import subprocess
import sys
import zlib
from pathlib import Path

PAGE = 4096


def differing(file: str, sums: str) -> list[int]:
    """The numbers of the pages, those missing at the end among them. The checksums are pairs; the first is CRC-32."""
    table = Path(sums).read_bytes()[:-8]
    with Path(file).open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        view = memoryview(data)
        crcs = (crc for crc, _ in struct.iter_unpack("<II", table[: len(table) // 8 * 8]))
        found = [n for n, crc in enumerate(crcs) if zlib.crc32(view[n * PAGE : (n + 1) * PAGE]) != crc]
        view.release()
        return found


def differing_elsewhere(file: str, sums: str) -> list[int]:
    """The same, found by another process."""
    told = subprocess.run([sys.executable, "-I", "-S", __file__, file, sums], capture_output=True, check=True)
    found: list[int] = json.loads(told.stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(differing(*sys.argv[1:])))
