"""Compare the pages of a file with their checksums; also a program that needs only the standard library.

A process that has a file open in SQLite must not open and close it again: that would drop SQLite's locks. So it starts
this program in another process.
"""

import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

PAGE_SIZE = 4096  # bytes
PAGES_PER_READ = 1024


def mismatched_pages(file: str, checksums: str, on_bytes: Callable[[int], object] | None = None) -> list[int]:
    """List the pages that differ or are missing. Checksums are pairs; the first of each is CRC-32.

    on_bytes: called after each part of the file with the bytes of it.
    """
    table = Path(checksums).read_bytes()[:-8]
    crcs = [crc for crc, _ in struct.iter_unpack("<II", table[: len(table) // 8 * 8])]
    pages = []
    with Path(file).open("rb") as opened:  # not mapped: another process may truncate it at any time
        for first in range(0, len(crcs), PAGES_PER_READ):
            data = memoryview(opened.read(PAGES_PER_READ * PAGE_SIZE))
            step = enumerate(crcs[first : first + PAGES_PER_READ])
            pages += [first + n for n, crc in step if zlib.crc32(data[n * PAGE_SIZE : (n + 1) * PAGE_SIZE]) != crc]
            if on_bytes is not None:
                on_bytes(len(data))
    return pages


def mismatched_pages_in_subprocess(
    file: str, checksums: str, on_bytes: Callable[[int], object] | None = None
) -> list[int]:
    """Do the same in another process, which is ended if `on_bytes` raises an error."""
    command = [sys.executable, "-I", "-S", __file__, file, checksums]
    last = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                last = json.loads(line)
                if isinstance(last, int) and on_bytes is not None:
                    on_bytes(last)
        except BaseException:
            process.kill()
            raise
    if process.returncode or not isinstance(last, list):
        raise subprocess.CalledProcessError(process.returncode, command)
    return last


if __name__ == "__main__":
    print(json.dumps(mismatched_pages(sys.argv[1], sys.argv[2], lambda size: print(size, flush=True))))
