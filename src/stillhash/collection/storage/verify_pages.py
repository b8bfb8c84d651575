"""Which pages of a file differ from their checksums; also as a program, which needs nothing but the standard library.

A process that has a file open in SQLite must not open and close it again: that would drop SQLite's locks. So it lets
another process look.
"""

import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path

PAGE, SOME = 4096, 1024  # bytes of a page; pages read at a time


def differing(file: str, sums: str) -> list[int]:
    """The numbers of the pages, those missing at the end among them. The checksums are pairs; the first is CRC-32."""
    table = Path(sums).read_bytes()[:-8]
    crcs = [crc for crc, _ in struct.iter_unpack("<II", table[: len(table) // 8 * 8])]
    found = []
    with Path(file).open("rb") as opened:  # read and not mapped: another process may cut it short at any time
        for first in range(0, len(crcs), SOME):
            data = memoryview(opened.read(SOME * PAGE))
            some = enumerate(crcs[first : first + SOME])
            found += [first + n for n, crc in some if zlib.crc32(data[n * PAGE : (n + 1) * PAGE]) != crc]
    return found


def differing_elsewhere(file: str, sums: str) -> list[int]:
    """The same, found by another process."""
    told = subprocess.run([sys.executable, "-I", "-S", __file__, file, sums], capture_output=True, check=True)
    found: list[int] = json.loads(told.stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(differing(*sys.argv[1:])))
