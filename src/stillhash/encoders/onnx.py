"""`onnx:PATH[:OUTPUT]` and `onnx-text:FOLDER`: encode by a model file, run by onnxruntime on the CPU.

For images a sidecar, PATH with the ending .json, says how they are prepared; see `Preprocess`. Without one they are
prepared as for ImageNet, at the model's own size. An output of shape (n, channels, height, width) is averaged over
height and width, or over the middle axes where the layout is NHWC; any other is flattened to (n, dim).

For texts the folder has model.onnx (or onnx/model.onnx) and tokenizer.json. A sidecar, model.json beside the model,
says how the vectors of tokens become one; see `Pooling`. Without one the configuration of sentence-transformers says
it. Texts go through the model one by one, so that a row is bitwise independent of the batch.
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stillhash.encoders.base import (
    ImageOnly,
    TextOnly,
    check_images,
    check_output,
    check_texts,
    fingerprint,
    import_library,
)
from stillhash.encoders.text_models import hash_folder, load_tokenizer, normalise, read_config
from stillhash.errors import InvalidInput
from stillhash.numeric.validation import Floats

if TYPE_CHECKING:
    from PIL import Image

MAX_INPUT_SIDE = 4096
BLENDS = ("bilinear", "bicubic")
TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
MAX_TOKENS = 1 << 16
ONNX_VERSION = ONNX_TEXT_VERSION = 1  # each changes whenever the same model gives other features


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
        from PIL.Image import Resampling  # encoders of texts do not need Pillow

        blend, (width, height) = Resampling[self.blend.upper()], self.size
        if self.crop == "none":
            return image.resize(self.size, blend)
        scale = self._shorter() / min(image.size)  # the crop, in pixels of the image as it is
        across, down = width / scale, height / scale
        left, top = (image.width - across) / 2, (image.height - down) / 2
        return image.resize(self.size, blend, box=(left, top, left + across, top + down))


def open_onnx(rest: str) -> Onnx:
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
        from PIL import Image

        self.dim = self.encode([Image.new("RGB", self.preprocess.size)]).shape[1]

    def encode(self, images: Sequence[Image.Image]) -> Floats:
        checked = check_images(images)
        rows = [self._run(checked[at : at + self._rows]) for at in range(0, len(checked), self._rows)]
        return np.concatenate(rows) if rows else np.empty((0, self.dim), np.float32)

    def _run(self, images: list[Image.Image]) -> Floats:
        batch = np.stack([self.preprocess.array(image) for image in images])
        if len(batch) < self._rows:
            batch = np.concatenate([batch, np.zeros((self._rows - len(batch), *batch.shape[1:]), np.float32)])
        array = _run(self._session, self.output, {self._input: batch}, self.name)
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


def _hash_files(file: Path) -> list[str]:
    """Hash the model, and weights beside it, whose names begin with its own by custom: model.onnx.data."""
    beside = sorted(other for other in file.parent.glob(f"{glob.escape(file.name)}?*") if other.is_file())
    hashes = []
    for one in [file, *beside]:
        if one.suffix != ".json":
            with one.open("rb") as opened:
                hashes.append(hashlib.file_digest(opened, "sha256").hexdigest())
    return hashes


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


@dataclass(frozen=True)
class Pooling:
    """How the vectors of tokens become one, and how many tokens there are at most."""

    pooling: str = "mean"  # of all tokens, or "cls": the first one
    normalize: bool = True
    max_tokens: int = 256
    output: str | None = None  # None: sentence_embedding if the model has it, else its first output

    def __post_init__(self) -> None:
        tokens = self.max_tokens
        rules = {
            "pooling": (self.pooling in ("mean", "cls"), "mean or cls"),
            "normalize": (isinstance(self.normalize, bool), "true or false"),
            "max_tokens": (type(tokens) is int and 2 <= tokens <= MAX_TOKENS, f"an integer from 2 to {MAX_TOKENS}"),
            "output": (self.output is None or isinstance(self.output, str), "a name"),
        }
        for name, (valid, expected) in rules.items():
            if not valid:
                raise InvalidInput(f"{name}: expected {expected}, got {getattr(self, name)!r}")


class OnnxText(TextOnly):
    """A folder with a text model as an encoder."""

    def __init__(self, rest: str) -> None:
        self.name = f"onnx-text:{rest}"
        runtime, folder = import_library("onnxruntime", "onnx-text", self.name), Path(rest)
        file = next((path for path in (folder / "model.onnx", folder / "onnx" / "model.onnx") if path.is_file()), None)
        if file is None:
            raise InvalidInput(f"encoder: {self.name!r}: expected a folder with model.onnx, got {rest!r}")
        self.pooling = read_pooling(folder, file.with_suffix(".json"), self.name)
        self.tokenizer = load_tokenizer(folder / "tokenizer.json", self.name, "onnx-text")
        self.tokenizer.enable_truncation(self.pooling.max_tokens)
        self._session = _open_session(runtime, file, self.name)
        self._inputs = self._choose_inputs()
        self.pooling = replace(self.pooling, output=self._choose_output())
        state = {"version": ONNX_TEXT_VERSION, "pooling": asdict(self.pooling), "files": hash_folder(folder)}
        self.fingerprint = fingerprint({"encoder": "onnx-text", **state})
        self.dim = self._encode_one("text").shape[0]

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        rows = [self._encode_one(text) for text in check_texts(texts)]
        features = np.stack(rows) if rows else np.empty((0, self.dim), np.float32)
        return check_output(normalise(features) if self.pooling.normalize else features, self.name, len(rows))

    def _encode_one(self, text: str) -> Floats:
        encoding = self.tokenizer.encode(text)
        if not encoding.ids:  # a tokenizer without special tokens, and nothing to encode
            return np.zeros(self.dim, np.float32)
        arrays = (encoding.ids, encoding.attention_mask, encoding.type_ids)
        feed = {name: np.array([array], np.int64) for name, array in zip(TEXT_INPUTS, arrays, strict=True)}
        array = _run(self._session, self.pooling.output, {name: feed[name] for name in self._inputs}, self.name)
        if array.dtype.kind != "f" or array.ndim not in (2, 3) or len(array) != 1 or 0 in array.shape:
            expected = f"expected floats of shape (1, dim) or (1, tokens, dim), got {array.dtype} {array.shape}"
            raise InvalidInput(f"encoder: {self.name!r}: output {self.pooling.output}: {expected}")
        if array.ndim == 3:
            array = array[:, 0] if self.pooling.pooling == "cls" else array.mean(axis=1, dtype=np.float32)
        return np.asarray(array[0], np.float32)

    def _choose_inputs(self) -> list[str]:
        names = [each.name for each in self._session.get_inputs()]
        if "input_ids" not in names or not set(names) <= set(TEXT_INPUTS):
            raise InvalidInput(f"encoder: {self.name!r}: inputs: expected {', '.join(TEXT_INPUTS)}, got {names}")
        return names

    def _choose_output(self) -> str:
        names: list[str] = [each.name for each in self._session.get_outputs()]
        chosen = self.pooling.output or ("sentence_embedding" if "sentence_embedding" in names else names[0])
        if chosen not in names:
            raise InvalidInput(f"encoder: {self.name!r}: output: expected one of {', '.join(names)}, got {chosen!r}")
        return chosen


def read_pooling(folder: Path, sidecar: Path, name: str) -> Pooling:
    """Read the sidecar, or the configuration of sentence-transformers in the folder; the defaults without either."""
    options = read_config(sidecar, name, dict)
    known = [field.name for field in fields(Pooling)]
    if unknown := [option for option in options if option not in known]:
        expected = f"expected any of {', '.join(known)}, got {unknown[0]!r}"
        raise InvalidInput(f"encoder: {name!r}: {sidecar.name}: {expected}")
    if not options:
        options = _sentence_transformers_options(folder, name)
    try:
        return Pooling(**options)
    except InvalidInput as error:
        raise InvalidInput(f"encoder: {name!r}: {error}") from None


def _sentence_transformers_options(folder: Path, name: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    modules = read_config(folder / "modules.json", name, list)
    if modules:
        kinds = [str(module.get("type")) for module in modules if isinstance(module, dict)]
        options["normalize"] = any(kind.endswith("Normalize") for kind in kinds)
    pooling = read_config(folder / "1_Pooling" / "config.json", name, dict)
    used = [mode for mode, is_used in pooling.items() if mode.startswith("pooling_mode_") and is_used is True]
    if used:
        modes = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
        options["pooling"] = modes.get(used[0], used[0]) if len(used) == 1 else " and ".join(used)
    elif pooling.get("pooling_mode"):
        options["pooling"] = pooling["pooling_mode"]
    longest = read_config(folder / "sentence_bert_config.json", name, dict).get("max_seq_length")
    return options | ({} if longest is None else {"max_tokens": longest})


def _open_session(runtime: Any, file: Path, name: str) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised; nothing is printed
    try:
        return runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own errors share no base but this
        raise InvalidInput(f"encoder: {name!r}: expected a model file: {_first_line(error)}") from None


def _run(session: Any, output: str | None, inputs: dict[str, Any], name: str) -> Any:
    """Return one output of a model as an array."""
    try:
        (result,) = session.run([output], inputs)
    except Exception as error:  # onnxruntime's own errors share no base but this
        raise InvalidInput(f"encoder: {name!r} cannot run the model: {_first_line(error)}") from None
    return np.asarray(result)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:300]
