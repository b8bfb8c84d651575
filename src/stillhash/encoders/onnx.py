"""`onnx:PATH[:OUTPUT]`: features by a model file, run by onnxruntime on the CPU.

How pictures are prepared is read from a sidecar, PATH with the ending .json; see `preprocess`. Without one the ways of
ImageNet are taken, at the size the model itself asks for.

An output of shape (n, channels, height, width) is averaged over height and width, or over the middle axes where the
layout is NHWC; any other is flattened to (n, dim).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from stillhash.encoders.base import WithoutText, check_images, fingerprint, finite, library
from stillhash.encoders.preprocess import Preprocess, read_preprocess
from stillhash.errors import InvalidInput
from stillhash.numeric.validation import Floats

VERSION = 1  # another one whenever the same model gives other features


def open_onnx(told: str) -> Onnx:
    """From what follows `onnx:` in a name. A colon may be part of the path."""
    path, colon, output = told.rpartition(":")
    if Path(told).is_file() or not colon or not path:
        return Onnx(told)
    return Onnx(path, output or None)


class Onnx(WithoutText):
    """A model file as an encoder.

    Where the model takes any number of images they go through it one by one: on a CPU that costs little, and a row is
    the same to the last bit in any batch. Where it takes a fixed number, batches are filled up with empty pictures; its
    sums may then round otherwise for the same picture at another place.
    """

    def __init__(self, path: str | Path, output: str | None = None, *, threads: int = 1) -> None:
        self.name = f"onnx:{path}" + (f":{output}" if output else "")
        runtime = library("onnxruntime", "onnx", f"encoder {self.name}")
        file = Path(path)
        if not file.is_file():
            raise InvalidInput(f"encoder {self.name}: {file} is not a file")
        self.preprocess, named = read_preprocess(file.with_suffix(".json"))
        self._session = _session(runtime, file, self.name, threads)
        self._output = self._choose(output or named)
        self._input, self._rows = self._take_input(sidecar=file.with_suffix(".json").exists())
        self.needs = self.preprocess.needs
        told = {"version": VERSION, "preprocess": self.preprocess.told(), "output": self._output}
        self.fingerprint = fingerprint({"encoder": "onnx", "model": _sums(file), **told})
        width, height = self.preprocess.size
        self.dim = self.encode([Image.new("RGB", (width, height))]).shape[1]

    def encode(self, images: Sequence[Image.Image]) -> Floats:
        checked = check_images(images)
        rows = [self._run(checked[at : at + self._rows]) for at in range(0, len(checked), self._rows)]
        return np.concatenate(rows) if rows else np.empty((0, self.dim), np.float32)

    def _run(self, images: list[Image.Image]) -> Floats:
        batch = np.stack([self.preprocess.array(image) for image in images])
        if len(batch) < self._rows:
            batch = np.concatenate([batch, np.zeros((self._rows - len(batch), *batch.shape[1:]), np.float32)])
        try:
            (found,) = self._session.run([self._output], {self._input: batch})
        except Exception as error:  # onnxruntime's own errors share no base but this
            raise InvalidInput(f"encoder {self.name} cannot run the model: {_first_line(error)}") from None
        array = np.asarray(found)
        if array.dtype.kind not in "fiu" or not array.ndim or len(array) != self._rows:
            wanted = f"numbers of shape ({self._rows}, ...) are wanted"
            raise InvalidInput(f"encoder {self.name}: output {self._output} is of shape {array.shape}; {wanted}")
        if array.ndim == 4:
            array = array.mean(axis=(2, 3) if self.preprocess.layout == "NCHW" else (1, 2), dtype=np.float32)
        return finite(array.reshape(len(array), -1)[: len(images)], f"encoder {self.name}", len(images))

    def _choose(self, wanted: str | None) -> str:
        """The output by its name, or the last one; a model with a single output leaves no choice."""
        names: list[str] = [output.name for output in self._session.get_outputs()]
        if wanted is not None and wanted not in names:
            raise InvalidInput(f"encoder {self.name}: there is no output {wanted!r}; there are {', '.join(names)}")
        return wanted or names[-1]

    def _take_input(self, *, sidecar: bool) -> tuple[str, int]:
        """The name of the one input, and how many images it takes at once; adopts the model's own size if it must."""
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type != "tensor(float)":
            found = ", ".join(f"{one.name} {one.type} {one.shape}" for one in inputs)
            raise InvalidInput(f"encoder {self.name}: one input of float images is wanted; there are {found or 'none'}")
        rows, *rest = inputs[0].shape
        if not sidecar:
            if rest[2] == 3 and rest[0] != 3:
                self.preprocess = replace(self.preprocess, layout="NHWC")
            height, width = rest[1:] if self.preprocess.layout == "NCHW" else rest[:2]
            if isinstance(height, int) and isinstance(width, int):
                self.preprocess = replace(self.preprocess, size=(width, height))
        return inputs[0].name, rows if isinstance(rows, int) and rows > 0 else 1


def _session(runtime: Any, file: Path, name: str, threads: int) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what is wrong is raised; nothing is printed
    try:
        return runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own errors share no base but this
        raise InvalidInput(f"encoder {name}: {file} cannot be read as a model: {_first_line(error)}") from None


def _sums(file: Path) -> list[str]:
    """Of the model, and of weights kept beside it, which by custom begin with its name: model.onnx.data."""
    beside = sorted(other for other in file.parent.glob(f"{_plain(file.name)}?*") if other.is_file())
    return [_sum(one) for one in [file, *beside] if one.suffix != ".json"]


def _plain(name: str) -> str:
    """A name in which glob sees no pattern."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _sum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:300]


__all__ = ["Onnx", "Preprocess", "open_onnx"]
