"""The protocol of encoders, and how one is opened by its name."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stillhash.errors import InvalidInput, MissingExtra, NotFound, TooLarge, WrongType, shortage
from stillhash.numeric.validation import Floats, check_integer

if TYPE_CHECKING:
    from PIL.Image import Image

ENCODER_NAMES = {
    "classic": "colour, edges and texture; needs no weights",
    "onnx:PATH[:OUTPUT]": "a model file, run by onnxruntime",
    "timm:NAME[:PATH]": "a model of timm, with its own weights or those of a checkpoint",
    "clip:NAME[:PATH]": "a model of open_clip, for images and texts",
    "words": "words and parts of words of texts; needs no weights",
    "static:FOLDER": "a table of token vectors for texts, of WordLlama or model2vec",
    "sentence:FOLDER": "a model of sentence-transformers for texts, in a folder",
    "onnx-text:FOLDER": "a model file for texts with its tokenizer, run by onnxruntime",
    "vectors:DIM": "features made elsewhere; encodes nothing",
}
TEXT_ENCODER_KINDS = ("words", "static", "sentence", "onnx-text")  # may stand before the colon
MAX_VECTOR_DIM = 1 << 16
MAX_TEXT_CHARACTERS = 1 << 20
MAX_IMAGE_BYTES = 64 << 20


class Encoder(Protocol):
    """Features of images, texts or both: deterministic, and a row is bitwise independent of the batch."""

    name: str  # as passed to open_encoder
    dim: int
    fingerprint: str  # sha256, hex; differs whenever the same image or text could get other features
    decode_size: tuple[int, int]  # width and height: larger images may be scaled down to this as they are decoded
    has_text: bool

    def encode(self, images: Sequence[Image]) -> Floats:
        """Return features (n, dim), float32 and finite; InvalidInput if the encoder is for texts only."""

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        """Return features (n, dim) of texts, comparable to those of images; InvalidInput unless has_text."""


class ImageOnly:
    """Base of encoders without texts."""

    name: str
    has_text = False

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        raise InvalidInput(f"encoder: {self.name!r} cannot encode texts; use words, say, or clip: for images and texts")


class TextOnly:
    """Base of encoders without images."""

    name: str
    dim: int
    fingerprint: str
    has_text = True
    decode_size = (1, 1)

    def encode(self, images: Sequence[Image]) -> Floats:
        raise InvalidInput(f"encoder: {self.name!r} encodes texts and no images; use classic, say")


class VectorsOnly(ImageOnly):
    """Stand-in for features made elsewhere, so that a collection of them has an encoder too."""

    decode_size = (1, 1)

    def __init__(self, dim: int) -> None:
        self.dim = check_integer(dim, "DIM of vectors:DIM", 1, MAX_VECTOR_DIM)
        self.name = f"vectors:{self.dim}"
        self.fingerprint = fingerprint({"encoder": "vectors", "dim": self.dim})

    def encode(self, images: Sequence[Image]) -> Floats:
        raise InvalidInput(f"encoder: {self.name!r} stands for ready features and encodes no images; use classic, say")


def open_encoder(name: str) -> Encoder:
    """Open the encoder of this name, one of ENCODER_NAMES."""
    if not isinstance(name, str):
        raise WrongType(f"encoder: expected a name ({', '.join(ENCODER_NAMES)}), got {name!r}")
    kind, _, rest = name.partition(":")
    if kind == "vectors" and rest.isascii() and rest.isdigit() and len(rest) < 9:
        return VectorsOnly(int(rest))
    if name == "words" or (rest and kind in TEXT_ENCODER_KINDS and kind != "words"):
        return _open_text_encoder(kind, rest)
    if name != "classic" and not (rest and kind in ("onnx", "timm", "clip")):
        raise InvalidInput(f"encoder: expected one of {', '.join(ENCODER_NAMES)}, got {name!r}")
    import_library("PIL.Image", "images", name)
    from stillhash.encoders.classic import Classic
    from stillhash.encoders.onnx import open_onnx
    from stillhash.encoders.torch_models import Clip, Timm

    openers: dict[str, Callable[[str], Encoder]] = {"onnx": open_onnx, "timm": Timm, "clip": Clip}
    return openers[kind](rest) if rest else Classic()


def is_text_encoder(name: str) -> bool:
    """Return whether this is the name of an encoder of texts only."""
    return name.partition(":")[0] in TEXT_ENCODER_KINDS


def _open_text_encoder(kind: str, rest: str) -> Encoder:
    """Import only the module of this encoder: none of them needs what another one does, nor Pillow."""
    if kind == "words":
        from stillhash.encoders.words import WordHashing

        return WordHashing()
    if kind == "static":
        from stillhash.encoders.text_models import Static

        return Static(rest)
    if kind == "sentence":
        from stillhash.encoders.text_models import Sentence

        return Sentence(rest)
    from stillhash.encoders.onnx import OnnxText

    return OnnxText(rest)


def fingerprint(parameters: dict[str, Any]) -> str:
    """Hash everything that features depend on, as plain JSON."""
    return hashlib.sha256(json.dumps(parameters, sort_keys=True, allow_nan=False).encode()).hexdigest()


def content_key(data: bytes) -> str:
    """Return by what a file or a document is recognised: half of its SHA-256, which tells them apart just as well."""
    return hashlib.sha256(data).hexdigest()[:32]


def read_bytes(path: str | os.PathLike[str], max_bytes: int = MAX_IMAGE_BYTES) -> bytes:
    """Read a regular file of at most `max_bytes`."""
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
            raise InvalidInput(f"{path}: expected a file")
        with Path(path).open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise NotFound(f"{path}: does not exist") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        if isinstance(error, OSError) and (lack := shortage(error)) is not None:
            raise lack from None
        raise InvalidInput(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > max_bytes:
        raise TooLarge(f"{path}: expected at most {max_bytes:,} bytes, got {max(status.st_size, len(data)):,}")
    return data


def import_library(module: str, extra: str, encoder: str) -> Any:
    """Import an optional library, only when an encoder that needs it is opened."""
    try:
        return import_module(module)
    except ImportError as error:
        needed = f"{(error.name or module).partition('.')[0]}: pip install 'stillhash[{extra}]' ({error})"
        raise MissingExtra(f"encoder: {encoder!r} needs {needed}") from None


def check_images(images: Sequence[Image]) -> list[Image]:
    """Return images in RGB; those that `pixels` did not decode may have other modes."""
    from PIL import Image as Images

    if isinstance(images, Images.Image):
        raise WrongType("images: expected a sequence, got one image")
    for at, image in enumerate(images):
        if not isinstance(image, Images.Image):
            raise WrongType(f"images[{at}]: expected a PIL image, got {type(image).__name__}")
        if not all(image.size):
            raise InvalidInput(f"images[{at}]: expected at least one pixel, got {image.width} x {image.height}")
    from stillhash.encoders.pixels import as_rgb

    return [image if image.mode == "RGB" else as_rgb(image) for image in images]


def check_texts(texts: Sequence[str]) -> list[str]:
    """Return texts as a list; all of them can be written as UTF-8, which tokenizers rely on."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise WrongType(f"texts: expected a sequence of strings, got one {type(texts).__name__}")
    checked = list(texts)
    for at, text in enumerate(checked):
        if not isinstance(text, str):
            raise WrongType(f"texts[{at}]: expected a string, got {type(text).__name__}")
        if len(text) > MAX_TEXT_CHARACTERS:
            expected = f"expected at most {MAX_TEXT_CHARACTERS:,} characters, got {len(text):,}"
            raise TooLarge(f"texts[{at}]: {expected}. Split it with stillhash.encoders.split_text")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"texts[{at}]: expected Unicode text, got a lone surrogate: {error}") from None
    return checked


def check_output(features: Any, encoder: str, rows: int) -> Floats:
    """Return a model's output as float32 (rows, dim); InvalidInput if it overflowed."""
    array = np.ascontiguousarray(features, dtype=np.float32)
    if array.ndim != 2 or len(array) != rows:
        raise InvalidInput(f"encoder: {encoder!r}: expected an output of shape ({rows}, dim), got {array.shape}")
    if not np.isfinite(array).all():
        raise InvalidInput(f"encoder: {encoder!r}: expected finite features, got NaN or infinity")
    return array
