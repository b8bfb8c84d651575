"""Decode untrusted image bytes.

Five formats are accepted: JPEG, PNG, WebP, GIF and BMP, recognised by their first bytes and not by their names; TIFF is
not, as its many sub-formats are where decoders break. Bytes, sides and pixels are limited, and all limits are checked
before a pixel is decoded. Any problem with a file is an InvalidInput with its name and the reason.

The result is RGB and upright, the first frame of an animation, on white where it was transparent, and carries no
metadata. Colours are taken as stored: profiles are not applied.
"""

import io
import os
import stat
from pathlib import Path
from struct import error as struct_error

import numpy as np

from stillhash.encoders.image_headers import ImageHeader, read_header
from stillhash.errors import InvalidInput, MissingExtra, NotFound, TooLarge

try:
    from PIL import ExifTags, Image, ImageOps
except ImportError as error:
    raise MissingExtra("images need Pillow: pip install 'stillhash[images]'") from error

MAX_IMAGE_BYTES = 64 << 20
MAX_PIXELS = 50_000_000
MAX_SIDE = 20_000
MAX_PASSES = 32  # over an image of MAX_PIXELS; smaller ones may take more. A usual progressive JPEG takes ten

THUMBNAIL_SIDE = 160  # pixels, the longer side
JPEG_QUALITY = 80


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


def read_bytes(path: str | os.PathLike[str], max_bytes: int = MAX_IMAGE_BYTES) -> bytes:
    """Read a regular file of at most `max_bytes`."""
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInput(f"{path}: expected a file")
        with Path(path).open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise NotFound(f"{path}: does not exist") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > max_bytes:
        raise TooLarge(f"{path}: expected at most {max_bytes:,} bytes, got {max(status.st_size, len(data)):,}")
    return data


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
