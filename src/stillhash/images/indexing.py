"""Index a folder of images into a collection: recursive, and resumable at any moment.

An item is a file, by its path in the folder. Its metadata holds a hash of the file, so a second run takes only what is
new or changed. Each batch is one commit: an image is stored completely or not at all, and never twice.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from stillhash.collection import Collection
from stillhash.encoders.files import CONTENT_DIGITS, EncodedFile, content_hash, encode_files
from stillhash.encoders.pixels import read_bytes
from stillhash.errors import StillhashError
from stillhash.io import LabelSource, list_images

COMMIT_IMAGES = 250
LOOKUP_FILES = 1000  # looked up in the collection at a time


@dataclass
class IndexReport:
    """How many files of a folder were indexed, skipped or unreadable."""

    files: int = 0
    added: int = 0
    updated: int = 0
    skipped: int = 0  # already indexed, and unchanged
    labelled: int = 0  # of those added or updated
    broken: dict[str, str] = field(default_factory=dict)  # files that cannot be decoded, and why
    seconds: float = 0.0

    @property
    def done(self) -> int:
        """Count the files that are dealt with."""
        return self.added + self.updated + self.skipped + len(self.broken)


def index_folder(
    folder: Path,
    collection: Collection,
    encoder: str,
    labels: LabelSource,
    *,
    files: list[str] | None = None,
    workers: int | None = None,
    progress: Callable[[IndexReport], None] = lambda _: None,
) -> IndexReport:
    """Add new images and replace changed ones; `progress` is called after every commit."""
    start = time.perf_counter()
    names = list_images(folder) if files is None else files
    report = IndexReport(len(names))
    indexed: dict[str, bool] = {}  # of the files being encoded: whether they are in the collection
    encoded = encode_files(encoder, _changed_files(folder, collection, names, report, indexed), workers=workers)
    while entries := list(islice(encoded, COMMIT_IMAGES)):
        good = [entry for entry in entries if entry.features is not None]
        report.labelled += _store(folder, collection, good, labels)
        for entry in entries:
            replaced = indexed.pop(entry.path)
            if entry.features is None:
                report.broken[entry.name_in(folder)] = entry.error or "cannot be read"
            else:
                report.updated += replaced
                report.added += not replaced
        report.seconds = time.perf_counter() - start
        progress(report)
    report.seconds = time.perf_counter() - start
    return report


def _changed_files(
    folder: Path, collection: Collection, names: list[str], report: IndexReport, indexed: dict[str, bool]
) -> Iterator[Path]:
    """Yield the files that are new or changed; count the others as skipped, and name those that can have no id."""
    report.broken |= {ascii(name): "name: expected printable characters" for name in names if not name.isprintable()}
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
