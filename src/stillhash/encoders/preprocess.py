"""How a picture becomes the input of a network: size, crop, colours, scale and the order of axes, as plain data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from stillhash.errors import InvalidInput
from stillhash.numeric.validation import Floats

LARGEST = 4096
BLENDS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class Preprocess:
    """What ImageNet models mostly want, unless told otherwise.

    With crop "center" the shorter side is brought to `resize` (8/7 of the size if it is None, as 256 to 224) and the
    middle is cut out; with "none" the whole picture is squeezed to the size. Then (pixel / scale - mean) / std.
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
        wrong = {
            "size is two whole numbers": len(self.size) != 2 or not all(1 <= side <= LARGEST for side in self.size),
            "mean and std are three numbers each": (len(self.mean), len(self.std)) != (3, 3),
            "mean, std and scale are finite, std and scale not 0": not np.isfinite(numbers).all()
            or 0 in (*self.std, self.scale),
            "layout is NCHW or NHWC": self.layout not in ("NCHW", "NHWC"),
            "color is RGB or BGR": self.color not in ("RGB", "BGR"),
            "crop is center or none": self.crop not in ("center", "none"),
            f"blend is one of {', '.join(BLENDS)}": self.blend not in BLENDS,
            "resize is not below the longer side of size": self.resize is not None
            and not max(self.size) <= self.resize <= 2 * LARGEST,
        }
        for rule, broken in wrong.items():
            if broken:
                raise InvalidInput(f"{rule}; {self} is not so")

    def array(self, image: Image.Image) -> Floats:
        """One picture in RGB as (3, height, width), or (height, width, 3)."""
        pixels = np.asarray(self._fitted(image), np.float32)
        if self.color == "BGR":
            pixels = pixels[..., ::-1]
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        with np.errstate(over="ignore"):  # whoever asks for what is infinite is told so by what comes of it
            pixels = (pixels / np.float32(self.scale) - mean) / std
        return np.ascontiguousarray(pixels.transpose(2, 0, 1) if self.layout == "NCHW" else pixels)

    @property
    def needs(self) -> tuple[int, int]:
        """Twice what is looked at, so that the picture is made small with care at the end."""
        side = 2 * self._shorter()
        return (side, side) if self.crop == "center" else (2 * self.size[0], 2 * self.size[1])

    def told(self) -> dict[str, Any]:
        """For fingerprints."""
        return asdict(self)

    def _shorter(self) -> int:
        return self.resize or round(max(self.size) * 8 / 7)

    def _fitted(self, image: Image.Image) -> Image.Image:
        blend, (width, height) = BLENDS[self.blend], self.size
        if self.crop == "none":
            return image.resize(self.size, blend)
        scale = self._shorter() / min(image.size)  # the cut, in pixels of the picture as it is
        across, down = width / scale, height / scale
        left, top = (image.width - across) / 2, (image.height - down) / 2
        return image.resize(self.size, blend, box=(left, top, left + across, top + down))


def read_preprocess(path: Path) -> tuple[Preprocess, str | None]:
    """What a sidecar file says, and the output it names; ImageNet's ways where there is no such file."""
    try:
        told = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return Preprocess(), None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from None
    known = [field.name for field in fields(Preprocess)]
    if not isinstance(told, dict) or not set(told) <= {*known, "output"}:
        raise InvalidInput(f"{path} holds {_short(told)}; an object with any of {', '.join(known)}, output is wanted")
    output = told.pop("output", None)
    if output is not None and not isinstance(output, str):
        raise InvalidInput(f"{path}: output is {output!r}; the name of an output is wanted")
    try:
        made = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
        return Preprocess(**_typed(made)), output
    except (InvalidInput, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"{path}: {error}") from None


def _typed(told: dict[str, Any]) -> dict[str, Any]:
    """Numbers as floats, sizes as whole numbers: what JSON leaves open must not change a fingerprint."""
    typed = dict(told)
    for name in ("mean", "std"):
        if name in typed:
            typed[name] = tuple(float(value) for value in typed[name])
    if "scale" in typed:
        typed["scale"] = float(typed["scale"])
    if "size" in typed:
        size = typed["size"]
        typed["size"] = tuple(_whole(side) for side in ((size, size) if isinstance(size, int) else size))
    if typed.get("resize") is not None:
        typed["resize"] = _whole(typed["resize"])
    return typed


def _whole(value: Any) -> int:
    if isinstance(value, bool) or value != int(value):
        raise InvalidInput(f"{value!r} is not a whole number")
    return int(value)


def _short(told: Any) -> str:
    text = json.dumps(told)
    return text if len(text) < 80 else text[:77] + "..."
