"""`onnx-text:FOLDER`: encode texts by a model file with its tokenizer, run by onnxruntime on the CPU.

The folder has model.onnx (or onnx/model.onnx) and tokenizer.json. A sidecar, model.json beside the model, says how the
vectors of tokens become one; see `Pooling`. Without one the configuration of sentence-transformers says it.

Texts go through the model one by one, so that a row is bitwise independent of the batch.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from stillhash.encoders.base import TextOnly, check_output, check_texts, fingerprint, import_library
from stillhash.encoders.text_models import hash_folder, load_tokenizer, normalise, read_config
from stillhash.errors import InvalidInput
from stillhash.numeric.validation import Floats

ONNX_TEXT_VERSION = 1  # changes whenever the same model gives other features
TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
MAX_TOKENS = 1 << 16


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
        self._session = self._open_session(runtime, file)
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
        try:
            (result,) = self._session.run([self.pooling.output], {name: feed[name] for name in self._inputs})
        except Exception as error:  # onnxruntime's own errors share no base but this
            raise InvalidInput(f"encoder: {self.name!r} cannot run the model: {_short(error)}") from None
        array = np.asarray(result)
        if array.dtype.kind != "f" or array.ndim not in (2, 3) or len(array) != 1 or 0 in array.shape:
            expected = f"expected floats of shape (1, dim) or (1, tokens, dim), got {array.dtype} {array.shape}"
            raise InvalidInput(f"encoder: {self.name!r}: output {self.pooling.output}: {expected}")
        if array.ndim == 3:
            array = array[:, 0] if self.pooling.pooling == "cls" else array.mean(axis=1, dtype=np.float32)
        return np.asarray(array[0], np.float32)

    def _open_session(self, runtime: Any, file: Path) -> Any:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4  # errors are raised; nothing is printed
        try:
            return runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own errors share no base but this
            raise InvalidInput(f"encoder: {self.name!r}: expected a model file: {_short(error)}") from None

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


def _short(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:300]
