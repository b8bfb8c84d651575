"""Encoders of texts that come as a folder of files: what they share, and `sentence:FOLDER`."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from stillhash.encoders.base import TextOnly, check_output, check_texts, fingerprint, import_library
from stillhash.errors import InvalidInput
from stillhash.numeric.validation import Floats

MAX_CONFIG_BYTES = 1 << 20
UNHASHED_SUFFIXES = (".md", ".gitattributes", ".png")  # files that features do not depend on

Config = TypeVar("Config", dict[str, Any], list[Any])


def load_tokenizer(file: Path, name: str, extra: str = "text") -> Any:
    """Load a tokenizer.json that neither cuts texts nor fills them up."""
    tokenizers = import_library("tokenizers", extra, name)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain exceptions
        raise InvalidInput(f"encoder: {name!r}: {file.name}: expected a tokenizer: {str(error)[:300]}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_config(file: Path, name: str, kind: type[Config]) -> Config:
    """Read a JSON file of this type; an empty one if there is no such file."""
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_CONFIG_BYTES + 1)
        config = json.loads(data) if len(data) <= MAX_CONFIG_BYTES else None
    except FileNotFoundError:
        return kind()
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"encoder: {name!r}: {file.name}: expected JSON: {error}") from None
    if not isinstance(config, kind):
        raise InvalidInput(f"encoder: {name!r}: {file.name}: expected a JSON {kind.__name__}")
    return config


def hash_folder(folder: Path) -> str:
    """Hash the names and contents of all files in a folder, apart from descriptions and hidden files."""
    digest = hashlib.sha256()
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for each in sorted(files):
            if not each.startswith(".") and not each.endswith(UNHASHED_SUFFIXES):
                path = Path(root) / each
                with path.open("rb") as opened:
                    content = hashlib.file_digest(opened, "sha256").hexdigest()
                digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def normalise(features: Floats) -> Floats:
    """Divide rows by their lengths; a row of zeros stays."""
    lengths = np.sqrt(np.square(features, dtype=np.float64).sum(axis=1))
    return np.asarray(features / np.maximum(lengths, 1e-32)[:, None], np.float32)


SENTENCE_VERSION = 1  # changes whenever the same model gives other features


class Sentence(TextOnly):
    """Encode by a model of sentence-transformers, read from a folder: nothing is fetched from a network.

    Texts go through it one by one, so that none is filled up to the length of another and a row is bitwise independent
    of the batch. A text that is longer than the model takes is cut by it.
    """

    def __init__(self, folder: str) -> None:
        self.name = f"sentence:{folder}"
        library = import_library("sentence_transformers", "sentence-transformers", self.name)
        path = Path(folder)
        if not (path / "modules.json").is_file() and not (path / "config.json").is_file():
            expected = "expected a folder with modules.json or config.json"
            raise InvalidInput(f"encoder: {self.name!r}: {expected}, got {folder!r}")
        try:
            with _quiet():
                model = library.SentenceTransformer(str(path.absolute()), device="cpu", local_files_only=True)
            self._model = model.eval()
        except Exception as error:  # files, names and shapes each fail in their own way
            reason = " ".join(str(error).split())[:300]
            raise InvalidInput(f"encoder: {self.name!r} cannot be loaded: {type(error).__name__}: {reason}") from None
        state = {"version": SENTENCE_VERSION, "files": hash_folder(path)}
        self.fingerprint = fingerprint({"encoder": "sentence", **state})
        self.dim = self._encode_one("text").shape[0]

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        rows = [self._encode_one(text) for text in check_texts(texts)]
        features = np.stack(rows) if rows else np.empty((0, self.dim), np.float32)
        return check_output(features, self.name, len(rows))

    def _encode_one(self, text: str) -> Floats:
        try:
            row = self._model.encode(text, batch_size=1, show_progress_bar=False, convert_to_numpy=True)
        except Exception as error:  # networks fail in ways of their own
            raise InvalidInput(f"encoder: {self.name!r} cannot encode {text[:50]!r}: {str(error)[:300]}") from None
        return np.asarray(row, np.float32)


@contextmanager
def _quiet() -> Iterator[None]:
    """Show no progress bar of weights, which are read in a moment."""
    logging = import_module("transformers.utils.logging")
    before = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            logging.enable_progress_bar()
