"""Files of every kind that is taken, and of some that are not."""

from __future__ import annotations

import io
import struct
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from stillhash.encoders import pixels
from stillhash.encoders.base import read_bytes

KINDS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")


def decode(data: bytes, name: str = "image", **options: Any) -> Image.Image:
    return pixels.decode(data, name, **options)[0]


def read_image(path: str | Path, **options: Any) -> Image.Image:
    return decode(read_bytes(path), str(path), **options)


def photo(width: int = 48, height: int = 32, seed: int = 0) -> Image.Image:
    """Smooth and colourful, and not symmetric in any way."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 6, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def saved(image: Image.Image, kind: str, **how: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


def exif(orientation: int) -> bytes:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


def chunk(name: bytes, data: bytes) -> bytes:
    """Of a PNG."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def with_chunk(png: bytes, name: bytes, data: bytes) -> bytes:
    """A PNG with one chunk more, right after its header."""
    return png[:33] + chunk(name, data) + png[33:]


def with_segment(jpeg: bytes, code: int, data: bytes) -> bytes:
    """A JPEG with one segment more, at its beginning."""
    return jpeg[:2] + struct.pack(">BBH", 0xFF, code, len(data) + 2) + data + jpeg[2:]


def png_of(width: int, height: int, rows: bytes = b"", *, depth: int = 8, colour: int = 2) -> bytes:
    """A PNG that says it is this large, whatever its rows are."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def bmp_of(
    width: int, height: int, pixels: bytes, *, bits: int = 24, compression: int = 0, palette: bytes = b""
) -> bytes:
    offset = 54 + len(palette)
    colours = len(palette) // 4
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, len(pixels), 0, 0, colours, 0)
    return b"BM" + struct.pack("<IHHI", offset + len(pixels), 0, 0, offset) + header + palette + pixels


def runs() -> bytes:
    """A run-length coded BMP of 8 x 4 pixels."""
    palette = b"".join(bytes((n, 255 - n, 7, 0)) for n in range(256))
    line = bytes((5, 200, 3, 10, 0, 0))
    return bmp_of(8, 4, line * 4 + b"\0\1", bits=8, compression=1, palette=palette)


def grey16(width: int = 48, height: int = 32) -> Image.Image:
    return Image.fromarray((np.asarray(photo(width, height).convert("L")).astype(np.uint16) << 8) + 77)


@cache
def samples() -> dict[str, bytes]:
    """One file of each kind and mode, all of the same picture."""
    image, later = photo(), photo(seed=1)
    clear = image.copy()
    clear.putalpha(Image.linear_gradient("L").resize(image.size))
    frames = {"save_all": True, "append_images": [later], "duration": 40}
    palette = image.quantize(16)
    return {
        "jpeg": saved(image, "JPEG"),
        "jpeg-progressive": saved(image, "JPEG", progressive=True),
        "jpeg-grey": saved(image.convert("L"), "JPEG"),
        "jpeg-cmyk": saved(image.convert("CMYK"), "JPEG"),
        "jpeg-exif": saved(image, "JPEG", exif=exif(6), icc_profile=b"no profile", comment=b"hello"),
        "jpeg-restart": saved(image, "JPEG", restart_marker_blocks=2),
        "png": saved(image, "PNG"),
        "png-alpha": saved(clear, "PNG"),
        "png-grey": saved(image.convert("L"), "PNG"),
        "png-grey-alpha": saved(clear.convert("LA"), "PNG"),
        "png-16": saved(grey16(), "PNG"),
        "png-1": saved(image.convert("1"), "PNG"),
        "png-palette": saved(palette, "PNG"),
        "png-palette-clear": saved(palette, "PNG", transparency=3),
        "png-palette-alphas": saved(palette, "PNG", transparency=bytes(range(0, 256, 16))),
        "png-colour-clear": saved(image, "PNG", transparency=(1, 2, 3)),
        "png-grey-clear": saved(image.convert("L"), "PNG", transparency=7),
        "png-exif": saved(image, "PNG", exif=exif(8)),
        "png-animated": saved(image, "PNG", **frames),
        "webp": saved(image, "WEBP"),
        "webp-lossless": saved(image, "WEBP", lossless=True),
        "webp-alpha": saved(clear, "WEBP"),
        "webp-exif": saved(image, "WEBP", exif=exif(3)),
        "webp-animated": saved(image, "WEBP", **frames),
        "gif": saved(image, "GIF"),
        "gif-clear": saved(palette, "GIF", transparency=2),
        "gif-animated": saved(image, "GIF", **frames, loop=0),
        "bmp": saved(image, "BMP"),
        "bmp-palette": saved(palette, "BMP"),
        "bmp-grey": saved(image.convert("L"), "BMP"),
        "bmp-1": saved(image.convert("1"), "BMP"),
        "bmp-runs": runs(),
    }
