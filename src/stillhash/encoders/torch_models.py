"""`timm:NAME[:PATH]` and `clip:NAME[:PATH]`: encode by a network of timm or open_clip.

Weights come from where these libraries keep them, or from the checkpoint at PATH (for CLIP also the name of one of its
sets of weights). Options follow a question mark, as in `timm:resnet18?pretrained=0`: pretrained=0 leaves the weights
random, the same ones each time, for tests; device=cuda runs on a GPU.

On the CPU images go through one by one, so that a row is bitwise independent of the batch. On a GPU they go in batches,
and rows may differ in their last digits. Checkpoints are read as plain tensors and cannot run code.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from stillhash.encoders.base import ImageOnly, check_images, check_output, check_texts, fingerprint, import_library
from stillhash.errors import InvalidInput, StillhashError
from stillhash.numeric.validation import Floats

TORCH_VERSION = 1  # changes whenever the same weights give other features
GPU_BATCH = 32
HUB_PREFIXES = ("hf-hub:", "hf_hub:", "local-dir:")  # model names with a colon of their own


class ModelName(NamedTuple):
    """The parts of NAME[:PATH][?options]."""

    model: str
    weights: str | None  # a path, or for CLIP the name of a set
    pretrained: bool
    device: str


class _Network:
    """A torch model with its device."""

    name: str
    dim: int
    _torch: Any
    _model: Any
    _device: str

    def _run(self, network: Any, prepare: Callable[[Any], Any], inputs: list[Any]) -> Floats:
        if not inputs:
            return np.empty((0, self.dim), np.float32)
        rows, step = [], 1 if self._device == "cpu" else GPU_BATCH
        with self._torch.inference_mode():
            for at in range(0, len(inputs), step):
                batch = self._torch.stack([prepare(one) for one in inputs[at : at + step]]).to(self._device)
                rows.append(network(batch).float().cpu().numpy())
        return check_output(np.concatenate(rows), self.name, len(inputs))


class Timm(_Network, ImageOnly):
    """A model of timm without its classifier; images are prepared as the model's own configuration says."""

    def __init__(self, rest: str) -> None:
        self.name = f"timm:{rest}"
        parts = parse_model_name(self.name)
        self._torch = import_library("torch", "torch", self.name)
        timm = import_library("timm", "torch", self.name)
        with _loading(self._torch, self.name):
            model = timm.create_model(parts.model, pretrained=parts.pretrained and not parts.weights, num_classes=0)
            if parts.weights is not None:
                _load_checkpoint(self._torch, model, Path(parts.weights))
            config = timm.data.resolve_model_data_config(model)
            self._prepare = timm.data.create_transform(**config, is_training=False)
            self._device, self._model = parts.device, model.eval().to(parts.device)
        state = {"version": TORCH_VERSION, "config": repr(sorted(config.items())), "weights": _hash_weights(model)}
        self.fingerprint = fingerprint({"encoder": "timm", "model": parts.model, **state})
        self.decode_size = 2 * int(config["input_size"][2]), 2 * int(config["input_size"][1])
        self.dim = self.encode([Image.new("RGB", (64, 64))]).shape[1]

    def encode(self, images: Sequence[Image.Image]) -> Floats:
        return self._run(self._model, self._prepare, check_images(images))


class Clip(_Network):
    """A model of open_clip: images and texts in one space, features of length 1."""

    has_text = True

    def __init__(self, rest: str) -> None:
        self.name = f"clip:{rest}"
        parts = parse_model_name(self.name)
        self._torch = import_library("torch", "torch", self.name)
        clip = import_library("open_clip", "torch", self.name)
        with _loading(self._torch, self.name):
            weights = (parts.weights or _default_weights(clip, parts.model)) if parts.pretrained else None
            model, _, self._prepare = clip.create_model_and_transforms(parts.model, pretrained=weights)
            self._tokenize = clip.get_tokenizer(parts.model)
            self._device, self._model = parts.device, model.eval().to(parts.device)
        state = {"version": TORCH_VERSION, "transform": repr(self._prepare), "weights": _hash_weights(model)}
        self.fingerprint = fingerprint({"encoder": "clip", "model": parts.model, **state})
        size = model.visual.image_size
        width, height = (size, size) if isinstance(size, int) else (size[1], size[0])
        self.decode_size = 2 * int(width), 2 * int(height)
        self.dim = self.encode([Image.new("RGB", (64, 64))]).shape[1]

    def encode(self, images: Sequence[Image.Image]) -> Floats:
        return _normalise(self._run(self._model.encode_image, self._prepare, check_images(images)))

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        features = self._run(self._model.encode_text, lambda text: self._tokenize([text])[0], check_texts(texts))
        return _normalise(features)


def parse_model_name(name: str) -> ModelName:
    """Parse the full name of a timm or clip encoder."""
    kind, _, rest = name.partition(":")
    rest, _, text = rest.partition("?")
    options = dict(option.partition("=")[::2] for option in text.split("&") if option)
    pretrained, device = options.pop("pretrained", "1"), options.pop("device", "cpu")
    if options or pretrained not in ("0", "1") or not device:
        raise InvalidInput(f"encoder: expected the options pretrained=0 or 1, device=cpu or cuda, got {name!r}")
    hub = next((prefix for prefix in HUB_PREFIXES if rest.startswith(prefix)), "")
    model, _, weights = rest.removeprefix(hub).partition(":")
    if not model:
        raise InvalidInput(f"encoder: expected the name of a model after {kind}:, got {name!r}")
    return ModelName(hub + model, weights or None, pretrained == "1", device)


@contextmanager
def _loading(torch: Any, name: str) -> Iterator[None]:
    """Make random weights the same each time, keep the caller's random state, and name the encoder in errors."""
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    except StillhashError:
        raise
    except Exception as error:  # network, files, names and shapes each fail in their own way
        reason = " ".join(str(error).split())[:300]
        raise InvalidInput(f"encoder: {name!r} cannot be loaded: {type(error).__name__}: {reason}") from None


def _normalise(features: Floats) -> Floats:
    lengths = np.sqrt(np.einsum("nd,nd->n", features, features))
    return np.asarray(features / np.maximum(lengths, np.float32(1e-12))[:, None])


def _load_checkpoint(torch: Any, model: Any, path: Path) -> None:
    """Load the weights of a checkpoint; those of a classifier are skipped, but none may be missing."""
    if not path.is_file():
        raise InvalidInput(f"encoder: checkpoint: expected a file, got {path}")
    if path.suffix == ".safetensors":
        state = import_library("safetensors.torch", "torch", str(path)).load_file(path)
    else:
        state = torch.load(path, map_location="cpu", weights_only=True)
    for wrapper in ("state_dict", "model"):
        if isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    missing, _ = model.load_state_dict({name.removeprefix("module."): state[name] for name in state}, strict=False)
    if missing:
        raise InvalidInput(f"encoder: checkpoint {path}: expected all weights, got none for {', '.join(missing[:3])}")


def _default_weights(clip: Any, model: str) -> str:
    """Return OpenAI's weights where there are such, or else the first that open_clip lists."""
    tags = clip.list_pretrained_tags_by_model(model)
    if not tags:
        raise InvalidInput(f"encoder: open_clip has no weights for {model!r}; pass a checkpoint: clip:{model}:PATH")
    return "openai" if "openai" in tags else str(tags[0])


def _hash_weights(model: Any) -> str:
    """Hash all weights by their names, whichever library made the file they came from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        array = tensor.detach().float().cpu().numpy()
        digest.update(f"{name} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
