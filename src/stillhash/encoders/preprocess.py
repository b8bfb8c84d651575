"""How an image becomes the input of a network: size, crop, colours, scale and the order of axes, as plain data."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from stillhash.errors import InvalidInput
from stillhash.numeric.validation import Floats

MAX_INPUT_SIDE = 4096
BLENDS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class Preprocess:
    """Preparation of an image; the defaults suit most ImageNet models.

    With crop "center" the shorter side is scaled to `resize` (8/7 of the size if it is None, as 256 to 224) and the
    middle is cut out; with "none" the whole image is squeezed to the size. Then (pixel / scale - mean) / std.
    """

    size: tuple[int, int] = (224, 224)  # width and height
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    scale: float = 255.0
    layout: str = "NCHW"
    color: str = "RGB"
    crop: str = "center"
    resize: int | None = None
    blend: str = "bilinear"

    def __post_init__(self) -> None:
        numbers = (*self.mean, *self.std, self.scale)
        nonzero = 0 not in (*self.std, self.scale)
        resize_fits = self.resize is None or max(self.size) <= self.resize <= 2 * MAX_INPUT_SIDE
        rules = {
            "size": (len(self.size) == 2 and all(1 <= side <= MAX_INPUT_SIDE for side in self.size), "two integers"),
            "mean, std": ((len(self.mean), len(self.std)) == (3, 3), "three numbers each"),
            "mean, std, scale": (np.isfinite(numbers).all() and nonzero, "finite numbers, std and scale not 0"),
            "layout": (self.layout in ("NCHW", "NHWC"), "NCHW or NHWC"),
            "color": (self.color in ("RGB", "BGR"), "RGB or BGR"),
            "crop": (self.crop in ("center", "none"), "center or none"),
            "blend": (self.blend in BLENDS, " or ".join(BLENDS)),
            "resize": (resize_fits, "at least the longer side of size"),
        }
        for name, (valid, expected) in rules.items():
            if not valid:
                raise InvalidInput(f"{name}: expected {expected}, got {self}")

    def array(self, image: Image.Image) -> Floats:
        """Return one RGB image as (3, height, width), or (height, width, 3)."""
        pixels = np.asarray(self._fit(image), np.float32)
        if self.color == "BGR":
            pixels = pixels[..., ::-1]
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        with np.errstate(over="ignore"):  # `check_output` refuses what overflows
            pixels = (pixels / np.float32(self.scale) - mean) / std
        return np.ascontiguousarray(pixels.transpose(2, 0, 1) if self.layout == "NCHW" else pixels)

    @property
    def decode_size(self) -> tuple[int, int]:
        """Twice the size used, so that the last step down is the careful one."""
        side = 2 * self._shorter()
        return (side, side) if self.crop == "center" else (2 * self.size[0], 2 * self.size[1])

    def _shorter(self) -> int:
        return self.resize or round(max(self.size) * 8 / 7)

    def _fit(self, image: Image.Image) -> Image.Image:
        blend, (width, height) = BLENDS[self.blend], self.size
        if self.crop == "none":
            return image.resize(self.size, blend)
        scale = self._shorter() / min(image.size)  # the crop, in pixels of the image as it is
        across, down = width / scale, height / scale
        left, top = (image.width - across) / 2, (image.height - down) / 2
        return image.resize(self.size, blend, box=(left, top, left + across, top + down))


def read_preprocess(path: Path) -> tuple[Preprocess, str | None]:
    """Read a sidecar file and the output it names; the defaults if there is no such file."""
    try:
        options = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return Preprocess(), None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{path}: expected JSON: {error}") from None
    known = [field.name for field in fields(Preprocess)]
    if not isinstance(options, dict) or not set(options) <= {*known, "output"}:
        text = json.dumps(options)
        expected = f"expected an object with any of {', '.join(known)}, output"
        raise InvalidInput(f"{path}: {expected}, got {text if len(text) < 80 else text[:77] + '...'}")
    output = options.pop("output", None)
    if output is not None and not isinstance(output, str):
        raise InvalidInput(f"{path}: output: expected a name, got {output!r}")
    try:
        return Preprocess(**_typed(options)), output
    except (InvalidInput, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"{path}: {error}") from None


def _typed(options: dict[str, Any]) -> dict[str, Any]:
    """Return numbers as floats and sizes as integers: what JSON leaves open must not change a fingerprint."""
    typed: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    for name in ("mean", "std"):
        if name in typed:
            typed[name] = tuple(float(value) for value in typed[name])
    if "scale" in typed:
        typed["scale"] = float(typed["scale"])
    if "size" in typed:
        size = typed["size"]
        typed["size"] = tuple(_integer(side) for side in ((size, size) if isinstance(size, int) else size))
    if typed.get("resize") is not None:
        typed["resize"] = _integer(typed["resize"])
    return typed


def _integer(value: Any) -> int:
    if isinstance(value, bool) or value != int(value):
        raise InvalidInput(f"expected an integer, got {value!r}")
    return int(value)
