"""`timm:NAME[:PATH]` and `clip:NAME[:PATH]`: features by a network of timm or of open_clip.

Weights come from where these libraries keep them, or from the checkpoint at PATH (for CLIP also the name of one of its
sets of weights). After a question mark stand options, as in `timm:resnet18?pretrained=0`: pretrained=0 leaves the
weights random, the same ones each time, which is for tests; device=cuda runs on a GPU.

On the CPU images go through one by one, so that a row is the same to the last bit in any batch. On a GPU they go in
batches, and rows may differ in their last digits. Checkpoints are read as plain tensors and cannot run code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from stillhash.encoders.base import WithoutText, check_images, check_texts, fingerprint, finite, library
from stillhash.errors import InvalidInput, StillhashError
from stillhash.numeric.validation import Floats

VERSION = 1  # another one whenever the same weights give other features
BATCH = 32  # on a GPU
HUBS = ("hf-hub:", "hf_hub:", "local-dir:")  # names that have a colon of their own


class Asked(NamedTuple):
    model: str
    weights: str | None  # a path, or for CLIP the name of a set
    pretrained: bool
    device: str


def open_timm(told: str) -> Timm:
    """From what follows `timm:` in a name."""
    return Timm(told, _asked(f"timm:{told}", told))


def open_clip(told: str) -> Clip:
    """From what follows `clip:` in a name."""
    return Clip(told, _asked(f"clip:{told}", told))


class Timm(WithoutText):
    """A model of timm without its classifier; pictures are prepared as the model's own configuration says."""

    def __init__(self, told: str, asked: Asked) -> None:
        self.name = f"timm:{told}"
        self._torch = library("torch", "torch", f"encoder {self.name}")
        timm = library("timm", "torch", f"encoder {self.name}")
        try:
            with _seeded(self._torch):
                own = asked.pretrained and asked.weights is None
                model = timm.create_model(asked.model, pretrained=own, num_classes=0)
            if asked.weights is not None:
                _load(self._torch, model, Path(asked.weights))
            config = timm.data.resolve_model_data_config(model)
            self._prepare = timm.data.create_transform(**config, is_training=False)
            self._device, self._model = asked.device, model.eval().to(asked.device)
        except StillhashError:
            raise
        except Exception as error:  # network, files, names and shapes each fail in their own way
            raise _unloaded(self.name, error) from None
        told_of = {"version": VERSION, "config": repr(sorted(config.items())), "weights": _sum(model)}
        self.fingerprint = fingerprint({"encoder": "timm", "model": asked.model, **told_of})
        self.needs = 2 * int(config["input_size"][2]), 2 * int(config["input_size"][1])
        self.dim = int(model.num_features)
        self.dim = self.encode([Image.new("RGB", (64, 64))]).shape[1]

    def encode(self, images: Sequence[Image.Image]) -> Floats:
        return _encode(self, self._torch, self._model, self._prepare, check_images(images))


class Clip:
    """A model of open_clip: images and texts in one space, features of length 1."""

    has_text = True

    def __init__(self, told: str, asked: Asked) -> None:
        self.name = f"clip:{told}"
        self._torch = library("torch", "torch", f"encoder {self.name}")
        clip = library("open_clip", "torch", f"encoder {self.name}")
        try:
            with _seeded(self._torch):
                weights = (asked.weights or _usual(clip, asked.model)) if asked.pretrained else None
                model, _, self._prepare = clip.create_model_and_transforms(asked.model, pretrained=weights)
            self._tokens = clip.get_tokenizer(asked.model)
            self._device, self._model = asked.device, model.eval().to(asked.device)
        except StillhashError:
            raise
        except Exception as error:  # as above
            raise _unloaded(self.name, error) from None
        told_of = {"version": VERSION, "transform": repr(self._prepare), "weights": _sum(model)}
        self.fingerprint = fingerprint({"encoder": "clip", "model": asked.model, **told_of})
        size = model.visual.image_size
        width, height = (size, size) if isinstance(size, int) else (size[1], size[0])
        self.needs = 2 * int(width), 2 * int(height)
        self.dim = 0
        self.dim = self.encode([Image.new("RGB", (64, 64))]).shape[1]

    def encode(self, images: Sequence[Image.Image]) -> Floats:
        return _unit(_encode(self, self._torch, self._model.encode_image, self._prepare, check_images(images)))

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        checked = check_texts(texts)
        return _unit(_encode(self, self._torch, self._model.encode_text, lambda text: self._tokens([text])[0], checked))


def _encode(encoder: Any, torch: Any, network: Any, prepare: Any, things: list[Any]) -> Floats:
    if not things:
        return np.empty((0, encoder.dim), np.float32)
    rows, step = [], 1 if encoder._device == "cpu" else BATCH
    with torch.inference_mode():
        for at in range(0, len(things), step):
            batch = torch.stack([prepare(thing) for thing in things[at : at + step]]).to(encoder._device)
            rows.append(network(batch).float().cpu().numpy())
    return finite(np.concatenate(rows), f"encoder {encoder.name}", len(things))


def _unit(features: Floats) -> Floats:
    lengths = np.sqrt(np.einsum("nd,nd->n", features, features))
    unit: Floats = features / np.maximum(lengths, np.float32(1e-12))[:, None]
    return unit


def _asked(name: str, told: str) -> Asked:
    rest, _, options = told.partition("?")
    given = dict(option.partition("=")[::2] for option in options.split("&") if option)
    pretrained, device = given.pop("pretrained", "1"), given.pop("device", "cpu")
    if given or pretrained not in ("0", "1") or not device:
        raise InvalidInput(f"encoder is {name!r}; the options are pretrained=0 or 1, and device=cpu or cuda")
    hub = next((hub for hub in HUBS if rest.startswith(hub)), "")
    model, _, weights = rest.removeprefix(hub).partition(":")
    if not model:
        raise InvalidInput(f"encoder is {name!r}; the name of a model is wanted after {name.partition(':')[0]}:")
    return Asked(hub + model, weights or None, pretrained == "1", device)


def _seeded(torch: Any) -> Any:
    """Random weights the same each time, with the caller's own random numbers left as they were."""
    guard = torch.random.fork_rng(devices=[])

    class Seeded:
        def __enter__(self) -> None:
            guard.__enter__()
            torch.manual_seed(0)

        def __exit__(self, *error: Any) -> None:
            guard.__exit__(*error)

    return Seeded()


def _load(torch: Any, model: Any, path: Path) -> None:
    """The weights in a checkpoint; those of a classifier are passed over, but none may be missing."""
    if not path.is_file():
        raise InvalidInput(f"the checkpoint {path} is not a file")
    if path.suffix == ".safetensors":
        state = library("safetensors.torch", "torch", f"the checkpoint {path}").load_file(path)
    else:
        state = torch.load(path, map_location="cpu", weights_only=True)
    for wrapped in ("state_dict", "model"):
        if isinstance(state.get(wrapped), dict):
            state = state[wrapped]
    missing, _ = model.load_state_dict({name.removeprefix("module."): state[name] for name in state}, strict=False)
    if missing:
        raise InvalidInput(f"the checkpoint {path} lacks {len(missing)} weights of the model, {missing[0]} for one")


def _usual(clip: Any, model: str) -> str:
    """OpenAI's weights where there are such, or else the first that open_clip lists."""
    tags = clip.list_pretrained_tags_by_model(model)
    if not tags:
        raise InvalidInput(f"open_clip knows no weights for {model!r}; give a checkpoint: clip:{model}:PATH")
    return "openai" if "openai" in tags else str(tags[0])


def _sum(model: Any) -> str:
    """Of all weights by their names, whichever library made the file they came from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        array = tensor.detach().float().cpu().numpy()
        digest.update(f"{name} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _unloaded(name: str, error: Exception) -> InvalidInput:
    told = " ".join(str(error).split())[:300]
    return InvalidInput(f"encoder {name} cannot be loaded: {type(error).__name__}: {told}")
