"""Encode images and texts to queries of a collection, and align another encoder to it."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stillhash.collection import Collection
from stillhash.encoders import Encoder, open_encoder
from stillhash.encoders.files import encode_bytes, encode_files
from stillhash.encoders.pixels import read_bytes
from stillhash.errors import InvalidInput
from stillhash.images.indexing import index_folder
from stillhash.io import IMAGE_SUFFIXES, list_images, open_labels
from stillhash.numeric.validation import Floats

ReportFiles = Callable[[float, int], None]  # the share that is done, and how many files were stored


class CollectionEncoder:
    """Encode to features (D,) of a collection, by its own encoder or by one that is aligned to it."""

    has_images = True
    file_suffixes = IMAGE_SUFFIXES  # of files that it can index

    def __init__(self, collection: Collection, encoder: Encoder) -> None:
        self.collection, self.encoder = collection, encoder
        self.has_text = encoder.has_text

    def image(self, data: bytes, name: str = "image") -> Floats:
        return self._translate(encode_bytes(self.encoder, data, name)[None])

    def image_file(self, path: Path) -> Floats:
        return self.image(read_bytes(path), path.name)

    def text(self, words: str) -> Floats:
        return self._translate(self.encoder.encode_texts([words]))

    def index_files(
        self, folder: Path, files: list[str], labels: str = "auto", progress: ReportFiles = lambda share, count: None
    ) -> dict[str, Any]:
        """Index images of a folder, as `index_folder` does but in this thread; return counts, and what is broken.

        progress : called after every commit, with the share that is done and the number of images added or updated.
        """
        if self.collection.encoder is None or self.collection.encoder.name != self.encoder.name:
            raise InvalidInput(f"encoder: expected the collection's own, to index images, got {self.encoder.name!r}")
        report = index_folder(
            folder,
            self.collection,
            self.encoder.name,
            open_labels(folder, labels),
            files=files,
            workers=1,
            progress=lambda now: progress(now.done / max(1, now.files), now.added + now.updated),
        )
        own_folder = f"{folder}{os.sep}"  # which messages do not name
        broken = {name: reason.replace(own_folder, "") for name, reason in report.broken.items()}
        counts = {name: getattr(report, name) for name in ("files", "added", "updated", "skipped", "labelled")}
        return {**counts, "broken": broken, "broken_count": len(broken)}

    def _translate(self, features: Floats) -> Floats:
        return np.asarray(self.collection.translate(features, self.encoder)[0])


def open_query_encoder(collection: Collection, encoder: str | None = None) -> CollectionEncoder:
    """Open the encoder that a collection remembers, or another one that is aligned to it."""
    name = encoder or (collection.encoder.name if collection.encoder else None)
    if name is None:
        raise InvalidInput("encoder: expected a name, since this collection was made from vectors and has no encoder")
    opened = open_encoder(name)
    collection.translate([[0.0] * opened.dim], opened)  # refuses one that is neither its own nor aligned
    return CollectionEncoder(collection, opened)


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
