"""What every encoder promises, and how one is opened by its name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stillhash.errors import InvalidInput, MissingExtra, WrongType
from stillhash.numeric.validation import Floats, check_integer

if TYPE_CHECKING:
    from PIL.Image import Image

KNOWN = {
    "classic": "colour, edges and texture; needs no weights",
    "onnx:PATH[:OUTPUT]": "a model file, run by onnxruntime",
    "timm:NAME[:PATH]": "a model of timm, with its own weights or those of a checkpoint",
    "clip:NAME[:PATH]": "a model of open_clip, for images and texts alike",
    "vectors:DIM": "features that are ready; encodes nothing",
}
MOST_COLUMNS = 1 << 16


class Encoder(Protocol):
    """Features of images: deterministic, and a row does not depend on the others of its batch."""

    name: str  # as it was asked for
    dim: int
    fingerprint: str  # sha256, hex; another one whenever the same image could get other features
    needs: tuple[int, int]  # width and height: no finer a picture than this has to be decoded for it
    has_text: bool

    def encode(self, images: Sequence[Image]) -> Floats:
        """Features (n, dim), float32 and finite."""

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        """Features (n, dim) of texts, comparable to those of images; InvalidInput where there is no text tower."""


class WithoutText:
    """For encoders that only see."""

    name: str
    has_text = False

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        raise InvalidInput(f"encoder {self.name} has no text tower; one that begins with clip: does")


class Vectors(WithoutText):
    """Stands for features that were made elsewhere, so that a collection of them has an encoder too."""

    needs = (1, 1)

    def __init__(self, dim: int) -> None:
        self.dim = check_integer(dim, "the number of columns in vectors:DIM", 1, MOST_COLUMNS)
        self.name = f"vectors:{self.dim}"
        self.fingerprint = fingerprint({"encoder": "vectors", "dim": self.dim})

    def encode(self, images: Sequence[Image]) -> Floats:
        raise InvalidInput(f"encoder {self.name} stands for features that are ready; images want another, classic say")


def open_encoder(name: str) -> Encoder:
    """The encoder of this name; KNOWN lists what a name may be."""
    if not isinstance(name, str):
        raise WrongType(f"encoder is {name!r}; a name is wanted, as {_known()}")
    kind, _, rest = name.partition(":")
    if kind == "vectors" and rest.isascii() and rest.isdigit() and len(rest) < 9:
        return Vectors(int(rest))
    if name != "classic" and not (rest and kind in ("onnx", "timm", "clip")):
        raise InvalidInput(f"encoder is {name!r}; known are {_known()}")
    library("PIL.Image", "images", f"encoder {name}")
    if kind == "classic":
        from stillhash.encoders.classic import Classic

        return Classic()
    if kind == "onnx":
        from stillhash.encoders.onnx import open_onnx

        return open_onnx(rest)
    from stillhash.encoders.torch_models import open_clip, open_timm

    return open_timm(rest) if kind == "timm" else open_clip(rest)


def fingerprint(told: dict[str, Any]) -> str:
    """Of everything that features depend on, as plain JSON."""
    return hashlib.sha256(json.dumps(told, sort_keys=True, allow_nan=False).encode()).hexdigest()


def library(module: str, extra: str, whose: str) -> Any:
    """An optional library, imported only when an encoder that needs it is opened."""
    try:
        return import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise MissingExtra(
            f"{whose} needs {missing.partition('.')[0]}: pip install 'stillhash[{extra}]' ({error})"
        ) from None


def check_images(images: Sequence[Image]) -> list[Image]:
    """As RGB; pictures of another mode were not decoded by `pixels`, and are taken all the same."""
    from PIL import Image as Images

    if isinstance(images, Images.Image):
        raise WrongType("images is one image; a sequence of them is wanted")
    for at, image in enumerate(images):
        if not isinstance(image, Images.Image):
            raise WrongType(f"images[{at}] is of type {type(image).__name__}; a PIL image is wanted")
        if not all(image.size):
            raise InvalidInput(f"images[{at}] is {image.width} x {image.height}; at least one pixel is wanted")
    from stillhash.encoders.pixels import as_rgb

    return [image if image.mode == "RGB" else as_rgb(image) for image in images]


def check_texts(texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise WrongType("texts is a sequence of strings")
    return list(texts)


def finite(features: Any, whose: str, rows: int) -> Floats:
    """What a model gave, as float32 (rows, dim): a model that overflows is told, not stored."""
    array = np.ascontiguousarray(features, dtype=np.float32)
    if array.ndim != 2 or len(array) != rows:
        raise InvalidInput(f"{whose} gives an output of shape {array.shape}; ({rows}, dim) is wanted")
    if not np.isfinite(array).all():
        raise InvalidInput(f"{whose} gives features that are not finite")
    return array


def _known() -> str:
    return ", ".join(KNOWN)
