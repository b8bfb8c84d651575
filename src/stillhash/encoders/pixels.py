"""Pictures from bytes that nobody vouches for.

Five kinds of files are taken: JPEG, PNG, WebP, GIF and BMP, known by their first bytes and not by their names; TIFF is
not, as its many sub-formats are where decoders break. Bytes, sides and pixels are limited, and all limits are checked
before a pixel is decoded. Whatever is wrong with a file comes out as InvalidInput with its name and the reason.

What comes out is RGB and upright, the first frame of an animation, on white where it was transparent, and carries no
metadata. Colours are taken as stored: profiles are not applied.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from pathlib import Path
from struct import error as struct_error

import numpy as np

from stillhash.encoders.image_headers import Told, look
from stillhash.errors import InvalidInput, MissingExtra, NotFound, TooLarge

try:
    from PIL import Image
except ImportError as error:
    raise MissingExtra("pictures need Pillow: pip install 'stillhash[images]'") from error

MOST_BYTES = 64 << 20
MOST_PIXELS = 50_000_000
LONGEST_SIDE = 20_000
MOST_PASSES = 32  # over a picture of MOST_PIXELS; smaller ones may take more. A usual progressive JPEG takes ten

THUMBNAIL = 160  # pixels, the longer side
QUALITY = 80

UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(
    data: bytes,
    name: str = "image",
    *,
    at_most: tuple[int, int] | None = None,
    most_bytes: int = MOST_BYTES,
    most_pixels: int = MOST_PIXELS,
) -> Image.Image:
    """The picture in `data`, in RGB.

    `at_most` is the width and height beyond which detail is of no use: a larger picture is halved, or divided by
    another whole number, as long as it stays at least that large. For a JPEG most of that saves decoding.
    """
    return decode_sized(data, name, at_most=at_most, most_bytes=most_bytes, most_pixels=most_pixels)[0]


def decode_sized(
    data: bytes,
    name: str = "image",
    *,
    at_most: tuple[int, int] | None = None,
    most_bytes: int = MOST_BYTES,
    most_pixels: int = MOST_PIXELS,
) -> tuple[Image.Image, tuple[int, int]]:
    """As `decode`; and the width and height the picture has in full, upright."""
    if len(data) > most_bytes:
        raise TooLarge(f"{name} has {len(data):,} bytes; up to {most_bytes:,} are taken")
    try:
        told = look(data)
        _check_size(told.size, told.passes, name, most_pixels)
        return _decoded(told, name, at_most, most_pixels)
    except TooLarge:
        raise
    except Exception as error:  # on bad bytes Pillow raises nearly anything, ZeroDivisionError and MemoryError included
        raise InvalidInput(f"{name} cannot be decoded: {_reason(error)}") from None


def read_image(path: str | os.PathLike[str], *, at_most: tuple[int, int] | None = None) -> Image.Image:
    """The picture in a file."""
    return decode(read_bytes(path), str(path), at_most=at_most)


def read_bytes(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """A file's bytes; no more of them are read than are taken, and nothing but a plain file is opened."""
    try:
        found = Path(path).stat()
        if not stat.S_ISREG(found.st_mode):
            raise InvalidInput(f"{path} is not a file")
        with Path(path).open("rb") as file:
            data = file.read(most_bytes + 1)
    except FileNotFoundError:
        raise NotFound(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > most_bytes:
        raise TooLarge(f"{path} has {max(found.st_size, len(data)):,} bytes; up to {most_bytes:,} are taken")
    return data


def thumbnail(image: Image.Image, side: int = THUMBNAIL) -> bytes:
    """A small JPEG of a picture, `side` pixels at its longer side; a smaller picture keeps its size."""
    small = as_rgb(image)
    scale = min(1.0, side / max(small.size))
    size = max(1, round(small.width * scale)), max(1, round(small.height * scale))
    if size != small.size:
        small = small.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0)
    out = io.BytesIO()
    small.save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


def content_hash(data: bytes) -> str:
    """Equal for equal files: sha256, hex."""
    return hashlib.sha256(data).hexdigest()


def as_rgb(image: Image.Image) -> Image.Image:
    """In RGB: on white where it is transparent, and grey of more than 8 bits by its upper 8."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):
        grey = np.asarray(image).astype(np.int64).clip(0, 65535) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        return Image.fromarray(np.nan_to_num(np.asarray(image)).clip(0, 255).astype(np.uint8)).convert("RGB")
    if "transparency" in image.info or image.mode in ("LA", "La", "PA", "RGBA", "RGBa"):
        see_through = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(see_through, mask=see_through.getchannel("A"))
        return white
    return image.convert("RGB")


def _decoded(
    told: Told, name: str, at_most: tuple[int, int] | None, most_pixels: int
) -> tuple[Image.Image, tuple[int, int]]:
    turned = told.orientation >= 5
    if at_most is not None and turned:
        at_most = at_most[1], at_most[0]
    with Image.open(io.BytesIO(told.data), formats=(told.kind,)) as opened:
        _check_size(opened.size, told.passes, name, most_pixels)  # what the decoder makes of the header counts too
        size = opened.size
        if at_most is not None:
            opened.draft(None, at_most)
        opened.load()
        image = as_rgb(opened)
    if at_most is not None:
        factor = min(image.width // max(1, at_most[0]), image.height // max(1, at_most[1]))
        if factor > 1:
            image = image.reduce(factor)
    if told.orientation in UPRIGHT:
        image = image.transpose(UPRIGHT[told.orientation])
    if image is opened:
        image = opened.copy()
    image.info = {}
    return image, (size[1], size[0]) if turned else size


def _check_size(size: tuple[int, int], passes: int, name: str, most_pixels: int) -> None:
    width, height = size
    if min(size) < 1:
        raise ValueError(f"it is {width} x {height} pixels")
    if max(size) > LONGEST_SIDE or width * height > most_pixels:
        limits = f"up to {LONGEST_SIDE:,} a side and {most_pixels:,} in all are taken"
        raise TooLarge(f"{name} is {width:,} x {height:,} pixels; {limits}")
    if passes * width * height > MOST_PASSES * MOST_PIXELS:
        raise TooLarge(f"{name} is coded in {passes:,} passes over {width:,} x {height:,} pixels; that is too many")


def _reason(error: Exception) -> str:
    if isinstance(error, (IndexError, struct_error)):
        return "the file ends too early, or is damaged"
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    told = " ".join(str(error).split())
    return told if told and "BytesIO" not in told else f"it is damaged ({type(error).__name__})"
