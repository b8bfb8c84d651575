"""Parts of encoders of texts that come as a folder of files: tokenizers, configuration, hashes, lengths."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from stillhash.encoders.base import import_library
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
