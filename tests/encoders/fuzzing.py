"""Decodes damaged files until all are done, or the process dies: `python -m tests.encoders.fuzzing SEED FIRST END`.

It holds itself to so much memory and, for each file, so many seconds; a file of which it dies is the one it named last.
Prints a line for each file before it is decoded, and one of JSON at the end.
"""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
import time
import zlib

import numpy as np

from stillhash.encoders.pixels import MAX_PIXELS, MAX_SIDE, thumbnail
from stillhash.errors import InvalidInput
from tests.encoders.sample_images import decode, samples

SECONDS = 20  # for a file; a few thousandths are usual
MEMORY = 1500 << 20  # on top of what the process has when it begins
EXTREMES = [b"\0", b"\xff", b"\x7f", b"\x80", b"\xff\xff", b"\x7f\xff", b"\0\0\0\0", b"\xff" * 4, b"\x7f" + b"\xff" * 3]


def damaged(seed: int, n: int) -> tuple[str, bytes]:
    """File number `n` of a seed: one of the samples, with one to three kinds of damage."""
    rng = np.random.default_rng([seed, n])
    names = list(samples())
    name = names[n % len(names)]
    data = bytearray(samples()[name])
    for _ in range(int(rng.integers(1, 4))):
        data = DAMAGES[int(rng.integers(len(DAMAGES)))](data, rng)
    if name.startswith("png") and rng.random() < 0.7:
        data = _checked(data)
    return name, bytes(data)


def _flips(data: bytearray, rng: np.random.Generator) -> bytearray:
    for at in rng.integers(0, max(1, len(data)), int(rng.integers(1, 16))):
        if at < len(data):
            data[at] ^= 1 << int(rng.integers(8))
    return data


def _cut(data: bytearray, rng: np.random.Generator) -> bytearray:
    return data[: int(rng.integers(0, len(data) + 1))]


def _header(data: bytearray, rng: np.random.Generator) -> bytearray:
    """An extreme value among the first bytes, where sizes and counts are."""
    at, extreme = int(rng.integers(2, 64)), EXTREMES[int(rng.integers(len(EXTREMES)))]
    data[at : at + len(extreme)] = extreme
    return data


def _anywhere(data: bytearray, rng: np.random.Generator) -> bytearray:
    at, extreme = int(rng.integers(0, len(data) + 1)), EXTREMES[int(rng.integers(len(EXTREMES)))]
    data[at : at + len(extreme)] = extreme
    return data


def _spliced(data: bytearray, rng: np.random.Generator) -> bytearray:
    """A piece of another file, or of this one, put in or written over."""
    others = list(samples().values())
    other = others[int(rng.integers(len(others)))] if rng.random() < 0.6 else bytes(data)
    start, length = int(rng.integers(0, len(other) + 1)), int(rng.integers(1, 400))
    at = int(rng.integers(0, len(data) + 1))
    piece = other[start : start + length]
    data[at : at + (len(piece) if rng.random() < 0.5 else 0)] = piece
    return data


def _dropped(data: bytearray, rng: np.random.Generator) -> bytearray:
    at = int(rng.integers(0, len(data) + 1))
    del data[at : at + int(rng.integers(1, 64))]
    return data


def _size(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Another size of the picture, as large as is just taken, where the sizes of this kind are."""
    width, height = (int(side) for side in rng.choice([1, 2, 255, 2500, 7071, 20_000], 2))
    if data[1:4] == b"PNG":
        data[16:24] = struct.pack(">II", width, height)
    elif data[:3] == b"GIF":
        data[6:10] = struct.pack("<HH", width, height)
    elif data[:2] == b"BM":
        data[18:26] = struct.pack("<ii", width, height)
    elif data[12:16] == b"VP8X":
        data[24:30] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    else:
        at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"), 0)
        data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return data


def _checked(data: bytearray) -> bytearray:
    """A PNG whose checksums are right again, so that the damage is reached."""
    at = 8
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if end + 4 > len(data):
            break
        data[end : end + 4] = struct.pack(">I", zlib.crc32(bytes(data[at + 4 : end])))
        at = end + 4
    return data


DAMAGES = (_flips, _flips, _cut, _header, _anywhere, _spliced, _spliced, _dropped, _size)


def main(seed: int, first: int, end: int) -> None:
    samples()
    used = int(open("/proc/self/statm", encoding="utf-8").read().split()[0]) * resource.getpagesize()  # noqa: PTH123, SIM115
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    counts = {"decoded": 0, "refused": 0, "slowest": 0.0, "slowest_file": -1}
    for n in range(first, end):
        name, data = damaged(seed, n)
        print(n, name, flush=True)
        signal.alarm(SECONDS)  # nobody handles it, so it ends the process
        start = time.perf_counter()
        try:
            image = decode(data, name, target=None if n % 2 else (160, 160))
            assert image.mode == "RGB" and not image.info
            assert max(image.size) <= MAX_SIDE and image.width * image.height <= MAX_PIXELS
            thumbnail(image)
            counts["decoded"] += 1
        except InvalidInput as error:
            assert str(error).startswith(name)
            counts["refused"] += 1
        signal.alarm(0)
        if time.perf_counter() - start > counts["slowest"]:
            counts |= {"slowest": time.perf_counter() - start, "slowest_file": n}
    print(json.dumps({**counts, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
