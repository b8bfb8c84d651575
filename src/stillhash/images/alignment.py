"""Align another encoder to a collection, by images that both encode."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from stillhash.collection import Collection
from stillhash.encoders import open_encoder
from stillhash.encoders.files import encode_files
from stillhash.errors import InvalidInput
from stillhash.io import list_images
from stillhash.numeric.validation import Floats


def align_images(
    collection: Collection, encoder: str, folder: Path, max_images: int, workers: int | None = None
) -> dict[str, Any]:
    """Encode up to `max_images` images with a new encoder and with the collection's, and align the new one."""
    if collection.encoder is None:
        raise InvalidInput("images: expected features of both encoders, since this collection was made from vectors")
    files = list_images(folder)
    sample = sorted(random.Random(0).sample(files, min(max_images, len(files))))
    new, own = (_encode(name, folder, sample, workers) for name in (encoder, collection.encoder.name))
    both = [file for file in sample if file in new and file in own]
    if not both:
        raise InvalidInput(f"images: expected a folder with images that both encoders can encode, got {str(folder)!r}")
    theirs, ours = (np.stack([features[file] for file in both]) for features in (new, own))
    return collection.align(open_encoder(encoder), theirs, ours)


def _encode(encoder: str, folder: Path, files: list[str], workers: int | None) -> dict[str, Floats]:
    """Return the features of those files that can be decoded."""
    entries = encode_files(encoder, [folder / file for file in files], workers=workers, thumbnails=False)
    return {file: entry.features for file, entry in zip(files, entries, strict=True) if entry.features is not None}
