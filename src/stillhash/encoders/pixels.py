"""Decode untrusted image bytes.

Five formats are accepted: JPEG, PNG, WebP, GIF and BMP, recognised by their first bytes and not by their names; TIFF is
not, as its many sub-formats are where decoders break. Bytes, sides and pixels are limited, and all limits are checked
before a pixel is decoded. Any problem with a file is an InvalidInput with its name and the reason.

The result is RGB and upright, the first frame of an animation, on white where it was transparent, and carries no
metadata. Colours are taken as stored: profiles are not applied.

The header is read here before Pillow sees anything, and all that pixels do not need is stripped. What Pillow does not
prevent, by format:

- JPEG: a progressive file may go over all pixels thousands of times; scans are counted here.
- PNG: compressed texts and profiles are unpacked in `Image.open`, which refuses the image if one is a bomb.
- WebP: `Image.open` allocates two canvases of the header's size before the size can be checked.
- GIF: comments are collected without limit; animations are cut after the first frame.
- BMP: run-length coded pixels are decoded in Python, 24 s for 32 MiB.
- All but WebP: with ImageFile.LOAD_TRUNCATED_IMAGES set by other code, a file that ends early is accepted.
"""

import io
import re
from struct import error as struct_error
from struct import unpack_from
from typing import NamedTuple

import numpy as np

from stillhash.encoders.base import MAX_IMAGE_BYTES
from stillhash.errors import InvalidInput, MissingExtra, TooLarge

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
MAX_PIXELS = 50_000_000
MAX_SIDE = 20_000
MAX_PASSES = 32  # over an image of MAX_PIXELS; smaller ones may take more. A usual progressive JPEG takes ten
THUMBNAIL_SIDE = 160  # pixels, the longer side
JPEG_QUALITY = 80


try:
    from PIL import ExifTags, Image, ImageOps
except ImportError as error:
    raise MissingExtra("images need Pillow: pip install 'stillhash[images]'") from error


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
    except struct_error:
        pass
    return 1


PARSERS = {rb"\xff\xd8\xff": _jpeg, PNG_SIGNATURE: _png, rb"GIF8[79]a": _gif, rb"RIFF....WEBP": _webp, rb"BM": _bmp}


def decode(
    data: bytes,
    name: str = "image",
    *,
    target: tuple[int, int] | None = None,
    max_bytes: int = MAX_IMAGE_BYTES,
    max_pixels: int = MAX_PIXELS,
) -> tuple[Image.Image, tuple[int, int]]:
    """Decode `data` to an RGB image; return also the width and height of the full image, upright.

    `target` is the width and height beyond which detail is of no use: a larger image is divided by a whole number, as
    long as it stays at least that large. For a JPEG most of that saves decoding.
    """
    if len(data) > max_bytes:
        raise TooLarge(f"{name}: expected at most {max_bytes:,} bytes, got {len(data):,}")
    try:
        header = read_header(data)
        _check_size(header.size, header.passes, name, max_pixels)
        return _decode(header, name, target, max_pixels)
    except TooLarge:
        raise
    except Exception as error:  # on bad bytes Pillow raises nearly anything, ZeroDivisionError and MemoryError included
        raise InvalidInput(f"{name}: cannot be decoded: {_reason(error)}") from None


def thumbnail(image: Image.Image, side: int = THUMBNAIL_SIDE) -> bytes:
    """Return a JPEG with at most `side` pixels on its longer side."""
    small = as_rgb(image)
    scale = min(1.0, side / max(small.size))
    size = max(1, round(small.width * scale)), max(1, round(small.height * scale))
    if size != small.size:
        small = small.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0)
    out = io.BytesIO()
    small.save(out, "JPEG", quality=JPEG_QUALITY)
    return out.getvalue()


def as_rgb(image: Image.Image) -> Image.Image:
    """Convert to RGB: on white where it is transparent, and grey of more than 8 bits by its upper 8."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):
        grey = np.asarray(image).astype(np.int64).clip(0, 65535) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        return Image.fromarray(np.nan_to_num(np.asarray(image)).clip(0, 255).astype(np.uint8)).convert("RGB")
    if "transparency" in image.info or image.mode in ("LA", "La", "PA", "RGBA", "RGBa"):
        transparent = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(transparent, mask=transparent.getchannel("A"))
        return white
    return image.convert("RGB")


def _decode(
    header: ImageHeader, name: str, target: tuple[int, int] | None, max_pixels: int
) -> tuple[Image.Image, tuple[int, int]]:
    sideways = header.orientation >= 5
    if target is not None and sideways:
        target = target[1], target[0]
    with Image.open(io.BytesIO(header.data), formats=(header.kind,)) as opened:
        _check_size(opened.size, header.passes, name, max_pixels)  # Pillow may read the header differently
        size = opened.size
        if target is not None:
            opened.draft(None, target)
        opened.load()
        image = as_rgb(opened)
    if target is not None:
        factor = min(image.width // max(1, target[0]), image.height // max(1, target[1]))
        if factor > 1:
            image = image.reduce(factor)
    if header.orientation > 1:
        image.getexif()[ExifTags.Base.Orientation] = header.orientation
        image = ImageOps.exif_transpose(image)
    if image is opened:
        image = opened.copy()
    image.info = {}
    return image, (size[1], size[0]) if sideways else size


def _check_size(size: tuple[int, int], passes: int, name: str, max_pixels: int) -> None:
    width, height = size
    if min(size) < 1:
        raise ValueError(f"expected at least one pixel, got {width} x {height}")
    if max(size) > MAX_SIDE or width * height > max_pixels:
        limits = f"expected at most {MAX_SIDE:,} pixels a side and {max_pixels:,} in total"
        raise TooLarge(f"{name}: {limits}, got {width:,} x {height:,}")
    if passes * width * height > MAX_PASSES * MAX_PIXELS:
        raise TooLarge(f"{name}: expected fewer passes over {width:,} x {height:,} pixels, got {passes:,}")


def _reason(error: Exception) -> str:
    if isinstance(error, (IndexError, struct_error)):
        return "the file ends too early, or is damaged"
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    text = " ".join(str(error).split())
    return text if text and "BytesIO" not in text else f"the file is damaged ({type(error).__name__})"
