"""Index a folder of images into a collection: recursive, and resumable at any moment.

An item is a file, by its path in the folder. Its metadata holds a hash of the file, so a second run takes only what is
new or changed. Each batch is one commit: an image is stored completely or not at all, and never twice.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from stillhash.collection import Collection
from stillhash.encoders.base import open_encoder
from stillhash.encoders.files import CONTENT_DIGITS, EncodedFile, content_hash, encode_files
from stillhash.encoders.indexing import IndexReport
from stillhash.encoders.pixels import read_bytes
from stillhash.errors import InvalidInput, StillhashError
from stillhash.io import LabelSource, list_images
from stillhash.numeric.validation import Floats

COMMIT_IMAGES = 250
LOOKUP_FILES = 1000  # looked up in the collection at a time


@dataclass
class ImageIndexReport(IndexReport):
    """How many files of a folder were indexed, skipped or unreadable."""

    files: int = 0

    @property
    def done(self) -> int:
        """Count the files that are dealt with."""
        return self.added + self.updated + self.skipped + self.broken_count


def index_folder(
    folder: Path,
    collection: Collection,
    encoder: str,
    labels: LabelSource,
    *,
    files: list[str] | None = None,
    workers: int | None = None,
    progress: Callable[[ImageIndexReport], None] = lambda _: None,
) -> ImageIndexReport:
    """Add new images and replace changed ones; `progress` is called after every commit."""
    start = time.perf_counter()
    names = list_images(folder) if files is None else files
    report = ImageIndexReport(files=len(names))
    indexed: dict[str, bool] = {}  # of the files being encoded: whether they are in the collection
    encoded = encode_files(encoder, _changed_files(folder, collection, names, report, indexed), workers=workers)
    while entries := list(islice(encoded, COMMIT_IMAGES)):
        good = [entry for entry in entries if entry.features is not None]
        report.labelled += _store(folder, collection, good, labels)
        for entry in entries:
            replaced = indexed.pop(entry.path)
            if entry.features is None:
                report.add_broken(entry.name_in(folder), entry.error or "cannot be read")
            else:
                report.updated += replaced
                report.added += not replaced
        report.progress = report.done / len(names)
        report.seconds = time.perf_counter() - start
        progress(report)
    report.progress, report.seconds = 1.0, time.perf_counter() - start
    return report


def _changed_files(
    folder: Path, collection: Collection, names: list[str], report: ImageIndexReport, indexed: dict[str, bool]
) -> Iterator[Path]:
    """Yield the files that are new or changed; count the others as skipped, and name those that can have no id."""
    for name in names:
        if not name.isprintable():
            report.add_broken(ascii(name), "name: expected printable characters")
    usable = [name for name in names if name.isprintable()]
    for at in range(0, len(usable), LOOKUP_FILES):
        some = usable[at : at + LOOKUP_FILES]
        for name, item in zip(some, collection.get(some), strict=True):
            path = folder / name
            if item is not None and _content(path) == (item.metadata or {}).get("content"):
                report.skipped += 1
            else:
                indexed[str(path)] = item is not None
                yield path


def _store(folder: Path, collection: Collection, entries: list[EncodedFile], labels: LabelSource) -> int:
    """Upsert encoded images in one commit; return how many have labels."""
    if not entries:
        return 0
    names = [entry.name_in(folder) for entry in entries]
    row_labels = [labels(name) for name in names]
    X = np.stack([entry.features for entry in entries if entry.features is not None])
    metadata, pictures = [entry.metadata() for entry in entries], [entry.thumbnail for entry in entries]
    collection.upsert(names, X, row_labels, metadata, pictures=pictures)
    return sum(map(bool, row_labels))


def _content(path: Path) -> str | None:
    try:
        return content_hash(read_bytes(path))[:CONTENT_DIGITS]
    except StillhashError:
        return None


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
