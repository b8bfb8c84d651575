"""Bridges by images that are described with both encoders, or by features that are."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from stillhash.collection import Collection
from stillhash.encoders import open_encoder
from stillhash.encoders.files import encode_files
from stillhash.errors import InvalidInput
from stillhash.images.indexing import image_files
from stillhash.numeric.validation import Floats


def bridge_images(
    collection: Collection, encoder: str, folder: Path, most: int, workers: int | None = None
) -> dict[str, Any]:
    """Describes at most so many images of a folder with the collection's encoder and with a new one."""
    if collection.encoder is None:
        raise InvalidInput("this collection was made from ready vectors; give features of both, not images")
    files = image_files(folder)
    some = sorted(random.Random(0).sample(files, min(most, len(files))))
    both = [_described(name, folder, some, workers) for name in (encoder, collection.encoder.name)]
    whole = [file for file in some if all(file in found for found in both)]
    if not whole:
        raise InvalidInput(f"{folder} holds no images that both encoders can describe")
    theirs, ours = (np.stack([found[file] for file in whole]) for found in both)
    return collection.align(open_encoder(encoder), theirs, ours)


def _described(encoder: str, folder: Path, files: list[str], workers: int | None) -> dict[str, Floats]:
    """The features of those files that can be read."""
    entries = encode_files(encoder, [folder / file for file in files], workers=workers, thumbnails=False)
    return {file: entry.features for file, entry in zip(files, entries, strict=True) if entry.features is not None}
