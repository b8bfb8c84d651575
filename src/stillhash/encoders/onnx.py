"""`onnx:PATH[:OUTPUT]`: encode by a model file, run by onnxruntime on the CPU.

A sidecar, PATH with the ending .json, says how images are prepared; see `Preprocess`. Without one they are prepared as
for ImageNet, at the model's own size.

An output of shape (n, channels, height, width) is averaged over height and width, or over the middle axes where the
layout is NHWC; any other is flattened to (n, dim).
"""

import glob
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from stillhash.encoders.base import ImageOnly, check_images, check_output, fingerprint, import_library
from stillhash.errors import InvalidInput
from stillhash.numeric.validation import Floats

MAX_INPUT_SIDE = 4096
BLENDS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
ONNX_VERSION = 1  # changes whenever the same model gives other features


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
            "blend": (self.blend in tuple(BLENDS), " or ".join(BLENDS)),
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


def open_onnx(rest: str) -> "Onnx":
    """Open what follows `onnx:` in a name. A colon may be part of the path."""
    path, colon, output = rest.rpartition(":")
    if Path(rest).is_file() or not colon or not path:
        return Onnx(rest)
    return Onnx(path, output or None)


class Onnx(ImageOnly):
    """A model file as an encoder.

    Where the model takes any number of images they go through it one by one: on a CPU that costs little, and a row is
    bitwise independent of the batch. Where it takes a fixed number, batches are filled up with zeros; its sums may then
    round differently for the same image at another place.
    """

    def __init__(self, path: str | Path, output: str | None = None) -> None:
        self.name = f"onnx:{path}" + (f":{output}" if output else "")
        runtime = import_library("onnxruntime", "onnx", self.name)
        file = Path(path)
        if not file.is_file():
            raise InvalidInput(f"encoder: {self.name!r}: expected a model file, got {file}")
        self.preprocess, sidecar_output = read_preprocess(file.with_suffix(".json"))
        self._session = _open_session(runtime, file, self.name)
        self.output = self._choose_output(output or sidecar_output)
        self._input, self._rows = self._choose_input(sidecar=file.with_suffix(".json").exists())
        self.decode_size = self.preprocess.decode_size
        state = {"version": ONNX_VERSION, "preprocess": asdict(self.preprocess), "output": self.output}
        self.fingerprint = fingerprint({"encoder": "onnx", "model": _hash_files(file), **state})
        self.dim = self.encode([Image.new("RGB", self.preprocess.size)]).shape[1]

    def encode(self, images: Sequence[Image.Image]) -> Floats:
        checked = check_images(images)
        rows = [self._run(checked[at : at + self._rows]) for at in range(0, len(checked), self._rows)]
        return np.concatenate(rows) if rows else np.empty((0, self.dim), np.float32)

    def _run(self, images: list[Image.Image]) -> Floats:
        batch = np.stack([self.preprocess.array(image) for image in images])
        if len(batch) < self._rows:
            batch = np.concatenate([batch, np.zeros((self._rows - len(batch), *batch.shape[1:]), np.float32)])
        try:
            (result,) = self._session.run([self.output], {self._input: batch})
        except Exception as error:  # onnxruntime's own errors share no base but this
            raise InvalidInput(f"encoder: {self.name!r} cannot run the model: {_first_line(error)}") from None
        array = np.asarray(result)
        if array.dtype.kind not in "fiu" or not array.ndim or len(array) != self._rows:
            expected = f"expected numbers of shape ({self._rows}, ...), got {array.dtype} of shape {array.shape}"
            raise InvalidInput(f"encoder: {self.name!r}: output {self.output}: {expected}")
        if array.ndim == 4:
            array = array.mean(axis=(2, 3) if self.preprocess.layout == "NCHW" else (1, 2), dtype=np.float32)
        return check_output(array.reshape(len(array), -1)[: len(images)], self.name, len(images))

    def _choose_output(self, name: str | None) -> str:
        """Return the output of this name, or the last one."""
        names: list[str] = [output.name for output in self._session.get_outputs()]
        if name is not None and name not in names:
            raise InvalidInput(f"encoder: {self.name!r}: output: expected one of {', '.join(names)}, got {name!r}")
        return name or names[-1]

    def _choose_input(self, *, sidecar: bool) -> tuple[str, int]:
        """Return the name of the one input and how many images it takes; without a sidecar, adopt the model's size."""
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type != "tensor(float)":
            kinds = ", ".join(f"{one.name} {one.type} {one.shape}" for one in inputs) or "none"
            raise InvalidInput(f"encoder: {self.name!r}: inputs: expected one of float images, got {kinds}")
        rows, *rest = inputs[0].shape
        if not sidecar:
            if rest[2] == 3 and rest[0] != 3:
                self.preprocess = replace(self.preprocess, layout="NHWC")
            height, width = rest[1:] if self.preprocess.layout == "NCHW" else rest[:2]
            if isinstance(height, int) and isinstance(width, int):
                self.preprocess = replace(self.preprocess, size=(width, height))
        return inputs[0].name, rows if isinstance(rows, int) and rows > 0 else 1


def _open_session(runtime: Any, file: Path, name: str) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised; nothing is printed
    try:
        return runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own errors share no base but this
        raise InvalidInput(f"encoder: {name!r}: expected a model file: {_first_line(error)}") from None


def _hash_files(file: Path) -> list[str]:
    """Hash the model, and weights beside it, whose names begin with its own by custom: model.onnx.data."""
    beside = sorted(other for other in file.parent.glob(f"{glob.escape(file.name)}?*") if other.is_file())
    hashes = []
    for one in [file, *beside]:
        if one.suffix != ".json":
            with one.open("rb") as opened:
                hashes.append(hashlib.file_digest(opened, "sha256").hexdigest())
    return hashes


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:300]


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
        return Preprocess(**{name: _typed(name, value) for name, value in options.items()}), output
    except (InvalidInput, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"{path}: {error}") from None


def _typed(name: str, value: Any) -> Any:
    """Return numbers as floats and sizes as integers: what JSON leaves open must not change a fingerprint."""
    if name in ("mean", "std"):
        return tuple(float(number) for number in value)
    if name == "scale":
        return float(value)
    if name == "size":
        return tuple(_integer(side) for side in ((value, value) if isinstance(value, int) else value))
    return _integer(value) if name == "resize" and value is not None else value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or value != int(value):
        raise InvalidInput(f"expected an integer, got {value!r}")
    return int(value)
