"""What a picture's file says about itself, read before anything of it is decoded.

Walking the segments of a file is cheap and needs no memory, so all that can be known is known before a decoder is let
near it: how large the picture is, whether the file is whole, and how often it makes the decoder go over all pixels. The
decoder then gets only the segments that pixels need. Colour profiles, comments, embedded previews and broken EXIF never
reach it, and so cannot be bombs.

A file that is not what it must be raises ValueError, IndexError or struct.error here; `pixels` makes one kind of them.
"""

from __future__ import annotations

import re
from struct import error as StructError  # noqa: N812 - an exception reads as one
from struct import unpack_from
from typing import NamedTuple

MOST_SEGMENTS = 1 << 16
MOST_BLOCKS = 1 << 20  # of a GIF, at most 255 bytes each
MOST_RUNS = 4 << 20  # bytes of a run-length coded BMP, which Pillow decodes in Python
ENDS = "the file ends too early"

MARKER = re.compile(rb"\xff([^\x00\xff])")
SCAN_END = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
ALONE = {0x01, *range(0xD0, 0xD9)}  # markers without a segment
FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # segments that tell the size
PIXELS = FRAMES | {0xC4, 0xCC, 0xDA, 0xDB, 0xDD, 0xEE}  # what decoding needs; EE says how colours are stored
PNG = b"\x89PNG\r\n\x1a\n"


class Told(NamedTuple):
    kind: str  # as Pillow calls it
    size: tuple[int, int]  # width and height as stored
    orientation: int  # 1 to 8, as in EXIF
    passes: int  # over all pixels, to decode them
    data: bytes  # the file, with nothing but what pixels need


def look(data: bytes) -> Told:
    """What a file tells; ValueError if its kind is not taken, or it is not whole."""
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg(data)
    if data.startswith(PNG):
        return _png(data)
    if data.startswith((b"GIF87a", b"GIF89a")):
        return _gif(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data)
    if data.startswith(b"BM"):
        return _bmp(data)
    raise ValueError("it is none of JPEG, PNG, WebP, GIF and BMP" if data else "it is empty")


def _jpeg(data: bytes) -> Told:
    kept, size, orientation, scans, at = [data[:2]], (0, 0), 1, 0, 2
    for _ in range(MOST_SEGMENTS):
        marker = MARKER.search(data, at)
        if marker is None:
            raise ValueError(ENDS)
        code, at = marker[1][0], marker.end()
        if code == 0xD9:
            return Told("JPEG", size, orientation, scans, b"".join([*kept, b"\xff\xd9"]))
        if code in ALONE:
            continue
        start, at = at, at + unpack_from(">H", data, at)[0]
        if code in FRAMES and size == (0, 0):
            height, width = unpack_from(">HH", data, start + 3)
            size = width, height
        if code == 0xE1 and orientation == 1 and data[start + 2 : start + 8] == b"Exif\0\0":
            orientation = _orientation(data[start + 8 : at])
        if code == 0xDA:
            scans += 1
            end = SCAN_END.search(data, at)
            at = end.start() if end else len(data)
        if code in PIXELS:
            kept.append(bytes((0xFF, code)) + data[start:at])
    raise ValueError(f"it has more than {MOST_SEGMENTS:,} segments")


def _png(data: bytes) -> Told:
    kept, orientation, at = [PNG], 1, len(PNG)
    width, height, depth = unpack_from(">IIB", data, at + 8)
    if data[at : at + 8] != b"\0\0\0\rIHDR":
        raise ValueError("it does not begin with its header")
    for _ in range(MOST_SEGMENTS):
        (length,) = unpack_from(">I", data, at)
        name, start, at = data[at + 4 : at + 8], at, at + 12 + length
        if at > len(data):
            raise ValueError(ENDS)
        if name == b"eXIf":
            orientation = _orientation(data[start + 8 : at - 4])
        # Pillow reads 16 bits as 8, and then a transparent colour of 16 bits means nothing to it
        elif name in (b"IHDR", b"PLTE", b"IDAT", b"IEND") or (name == b"tRNS" and depth < 16):
            kept.append(data[start:at])
        if name == b"IEND":
            return Told("PNG", (width, height), orientation, 1, b"".join(kept))
    raise ValueError(f"it has more than {MOST_SEGMENTS:,} chunks")


def _gif(data: bytes) -> Told:
    """Up to the end of the first frame: later ones are never looked at."""
    width, height, flags = unpack_from("<HHB", data, 6)
    at = 13 + (6 << (flags & 7) if flags & 128 else 0)
    head, control, blocks = data[:at], b"", 0
    while data[at] == ord("!"):
        start = at
        at, count = _past_blocks(data, at + 2)
        blocks += count
        if blocks > MOST_SEGMENTS:
            raise ValueError(f"it has more than {MOST_SEGMENTS:,} blocks before its first frame")
        if data[start + 1] == 0xF9 and at == start + 8:
            control = data[start:at]
    if data[at] != ord(","):
        raise ValueError("it has no frame")
    left, top, across, down, flags = unpack_from("<HHHHB", data, at + 1)
    frame = at
    at, _ = _past_blocks(data, at + 11 + (6 << (flags & 7) if flags & 128 else 0))
    size = max(width, left + across), max(height, top + down)
    return Told("GIF", size, 1, 1, b"".join([head, control, data[frame:at], b";"]))


def _past_blocks(data: bytes, at: int) -> tuple[int, int]:
    """Where the blocks of a GIF that begin here end, with an empty one; and how many there are."""
    for count in range(MOST_BLOCKS):
        if at >= len(data):
            raise ValueError(ENDS)
        length = data[at]
        at += 1 + length
        if not length:
            return at, count
    raise ValueError(f"it has more than {MOST_BLOCKS:,} blocks")


def _webp(data: bytes) -> Told:
    if unpack_from("<I", data, 4)[0] + 8 > len(data):
        raise ValueError(ENDS)
    first, orientation, at = data[12:16], 1, 12
    if first == b"VP8X":
        size = 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    elif first == b"VP8L":
        bits = unpack_from("<I", data, 21)[0]
        size = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = unpack_from("<HH", data, 26)
        size = width & 0x3FFF, height & 0x3FFF
    for _ in range(MOST_SEGMENTS):
        if at + 8 > len(data):
            return Told("WEBP", size, orientation, 1, data)
        (length,) = unpack_from("<I", data, at + 4)
        if data[at : at + 4] == b"EXIF":
            orientation = _orientation(data[at + 8 : at + 8 + length].removeprefix(b"Exif\0\0"))
        at += 8 + length + length % 2
    raise ValueError(f"it has more than {MOST_SEGMENTS:,} chunks")


def _bmp(data: bytes) -> Told:
    offset, header = unpack_from("<II", data, 10)
    width, height, bits, compression = (
        (*unpack_from("<HHxxH", data, 18), 0) if header == 12 else unpack_from("<IixxHI", data, 18)
    )
    if compression in (1, 2) and len(data) > MOST_RUNS:
        raise ValueError(f"it is run-length coded and has {len(data):,} bytes; up to {MOST_RUNS:,} are taken of such")
    if compression not in (1, 2) and len(data) < offset + (width * bits + 31) // 32 * 4 * abs(height):
        raise ValueError(ENDS)
    return Told("BMP", (width, abs(height)), 1, 1, data)


def _orientation(exif: bytes) -> int:
    """The tag of this name in the first directory; 1, as stored, where there is none or it makes no sense."""
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    try:
        if order is not None:
            (at,) = unpack_from(order + "I", exif, 4)
            (count,) = unpack_from(order + "H", exif, at)
            for entry in range(at + 2, at + 2 + 12 * count, 12):
                tag, form = unpack_from(order + "HH", exif, entry)
                if tag == 0x0112 and form in (3, 4):
                    (value,) = unpack_from(order + ("H" if form == 3 else "I"), exif, entry + 8)
                    return value if 1 <= value <= 8 else 1
    except StructError:
        pass
    return 1
