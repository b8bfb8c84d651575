"""Read the header of an image file before anything of it is decoded, and strip all that pixels do not need.

What Pillow does not prevent, by format:

- JPEG: a progressive file may go over all pixels thousands of times; scans are counted here.
- PNG: compressed texts and profiles are unpacked in `Image.open`, which refuses the image if one is a bomb.
- WebP: `Image.open` allocates two canvases of the header's size before the size can be checked.
- GIF: comments are collected without limit; animations are cut after the first frame.
- BMP: run-length coded pixels are decoded in Python, 24 s for 32 MiB.
- All but WebP: with ImageFile.LOAD_TRUNCATED_IMAGES set by other code, a file that ends early is accepted.

A malformed file raises ValueError, IndexError or struct.error here; `pixels` turns them into InvalidInput.
"""

import re
from struct import error as StructError  # noqa: N812 - an exception reads as one
from struct import unpack_from
from typing import NamedTuple

MAX_SEGMENTS = 1 << 16
MAX_GIF_BLOCKS = 1 << 20  # at most 255 bytes each
MAX_RLE_BYTES = 4 << 20  # of a run-length coded BMP
ENDS_EARLY = "the file ends too early"

JPEG_MARKER = re.compile(rb"\xff([^\x00\xff])")
JPEG_SCAN_END = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
JPEG_BARE_MARKERS = {0x01, *range(0xD0, 0xD9)}  # without a segment
JPEG_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # segments with the size
JPEG_PIXEL_SEGMENTS = JPEG_FRAMES | set(b"\xc4\xcc\xda\xdb\xdd\xee")  # decoding needs them; EE: how colours are stored
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class ImageHeader(NamedTuple):
    kind: str  # Pillow's name of the format
    size: tuple[int, int]  # width and height as stored
    orientation: int  # 1 to 8, as in EXIF
    passes: int  # over all pixels, to decode them
    data: bytes  # the file, stripped to what pixels need


def read_header(data: bytes) -> ImageHeader:
    """Read the header of a file; ValueError if its format is not accepted, or it ends early."""
    for signature, read in PARSERS.items():
        if re.match(signature, data, re.DOTALL):
            return read(data)
    raise ValueError("expected JPEG, PNG, WebP, GIF or BMP" + ("" if data else ", got an empty file"))


def _jpeg(data: bytes) -> ImageHeader:
    parts, size, orientation, scans, at = [data[:2]], (0, 0), 1, 0, 2
    for _ in range(MAX_SEGMENTS):
        marker = JPEG_MARKER.search(data, at)
        if marker is None:
            raise ValueError(ENDS_EARLY)
        code, at = marker[1][0], marker.end()
        if code == 0xD9:
            return ImageHeader("JPEG", size, orientation, scans, b"".join([*parts, b"\xff\xd9"]))
        if code in JPEG_BARE_MARKERS:
            continue
        start, at = at, at + unpack_from(">H", data, at)[0]
        if code in JPEG_FRAMES and size == (0, 0):
            height, width = unpack_from(">HH", data, start + 3)
            size = width, height
        if code == 0xE1 and orientation == 1 and data[start + 2 : start + 8] == b"Exif\0\0":
            orientation = _orientation(data[start + 8 : at])
        if code == 0xDA:
            scans += 1
            end = JPEG_SCAN_END.search(data, at)
            at = end.start() if end else len(data)
        if code in JPEG_PIXEL_SEGMENTS:
            parts.append(bytes((0xFF, code)) + data[start:at])
    raise ValueError(f"expected at most {MAX_SEGMENTS:,} segments")


def _png(data: bytes) -> ImageHeader:
    parts, orientation, at = [PNG_SIGNATURE], 1, len(PNG_SIGNATURE)
    width, height, depth = unpack_from(">IIB", data, at + 8)
    if data[at : at + 8] != b"\0\0\0\rIHDR":
        raise ValueError("expected IHDR first")
    for _ in range(MAX_SEGMENTS):
        (length,) = unpack_from(">I", data, at)
        name, start, at = data[at + 4 : at + 8], at, at + 12 + length
        if at > len(data):
            raise ValueError(ENDS_EARLY)
        if name == b"eXIf":
            orientation = _orientation(data[start + 8 : at - 4])
        # Pillow reads 16 bits as 8, and then ignores a transparent colour of 16 bits
        elif name in (b"IHDR", b"PLTE", b"IDAT", b"IEND") or (name == b"tRNS" and depth < 16):
            parts.append(data[start:at])
        if name == b"IEND":
            return ImageHeader("PNG", (width, height), orientation, 1, b"".join(parts))
    raise ValueError(f"expected at most {MAX_SEGMENTS:,} chunks")


def _gif(data: bytes) -> ImageHeader:
    """Keep the file up to the end of the first frame."""
    width, height, flags = unpack_from("<HHB", data, 6)
    at = 13 + (6 << (flags & 7) if flags & 128 else 0)
    head, control, blocks = data[:at], b"", 0
    while data[at] == ord("!"):
        start = at
        at, count = _skip_blocks(data, at + 2)
        blocks += count
        if blocks > MAX_SEGMENTS:
            raise ValueError(f"expected at most {MAX_SEGMENTS:,} blocks before the first frame")
        if data[start + 1] == 0xF9 and at == start + 8:
            control = data[start:at]
    if data[at] != ord(","):
        raise ValueError("expected a frame")
    left, top, across, down, flags = unpack_from("<HHHHB", data, at + 1)
    frame = at
    at, _ = _skip_blocks(data, at + 11 + (6 << (flags & 7) if flags & 128 else 0))
    size = max(width, left + across), max(height, top + down)
    return ImageHeader("GIF", size, 1, 1, b"".join([head, control, data[frame:at], b";"]))


def _skip_blocks(data: bytes, at: int) -> tuple[int, int]:
    """Return where the blocks that begin here end, with an empty one, and how many there are."""
    for count in range(MAX_GIF_BLOCKS):
        if at >= len(data):
            raise ValueError(ENDS_EARLY)
        length = data[at]
        at += 1 + length
        if not length:
            return at, count
    raise ValueError(f"expected at most {MAX_GIF_BLOCKS:,} blocks")


def _webp(data: bytes) -> ImageHeader:
    if unpack_from("<I", data, 4)[0] + 8 > len(data):
        raise ValueError(ENDS_EARLY)
    first, orientation, at = data[12:16], 1, 12
    if first == b"VP8X":
        size = 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    elif first == b"VP8L":
        bits = unpack_from("<I", data, 21)[0]
        size = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = unpack_from("<HH", data, 26)
        size = width & 0x3FFF, height & 0x3FFF
    for _ in range(MAX_SEGMENTS):
        if at + 8 > len(data):
            return ImageHeader("WEBP", size, orientation, 1, data)
        (length,) = unpack_from("<I", data, at + 4)
        if data[at : at + 4] == b"EXIF":
            orientation = _orientation(data[at + 8 : at + 8 + length].removeprefix(b"Exif\0\0"))
        at += 8 + length + length % 2
    raise ValueError(f"expected at most {MAX_SEGMENTS:,} chunks")


def _bmp(data: bytes) -> ImageHeader:
    offset, header = unpack_from("<II", data, 10)
    fields = (*unpack_from("<HHxxH", data, 18), 0) if header == 12 else unpack_from("<IixxHI", data, 18)
    width, height, bits, compression = fields
    if compression in (1, 2) and len(data) > MAX_RLE_BYTES:
        raise ValueError(f"expected at most {MAX_RLE_BYTES:,} bytes of run-length coding, got {len(data):,}")
    if compression not in (1, 2) and len(data) < offset + (width * bits + 31) // 32 * 4 * abs(height):
        raise ValueError(ENDS_EARLY)
    return ImageHeader("BMP", (width, abs(height)), 1, 1, data)


def _orientation(exif: bytes) -> int:
    """Return the tag Orientation of the first directory; 1, as stored, if it is missing or invalid."""
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


PARSERS = {rb"\xff\xd8\xff": _jpeg, PNG_SIGNATURE: _png, rb"GIF8[79]a": _gif, rb"RIFF....WEBP": _webp, rb"BM": _bmp}
