"""A folder of images into a collection: recursive, and to be stopped and begun again at any moment.

An item is a file, by its path in the folder. It remembers what the file held, so a second run takes only what is new
or changed. Each batch is one commit: whatever is stored is complete, and nothing is stored twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from stillhash.collection import Collection
from stillhash.encoders.files import Encoded, encode_files
from stillhash.encoders.pixels import content_hash, read_bytes
from stillhash.errors import InvalidInput, StillhashError
from stillhash.images.label_sources import Labels

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")
BATCH = 250  # images of a commit
LOOKED = 1000  # files that are looked for in the collection at a time


@dataclass
class Indexed:
    """What became of a folder."""

    files: int = 0
    added: int = 0
    changed: int = 0
    skipped: int = 0  # were there already
    labelled: int = 0  # of those that were added or changed
    broken: dict[str, str] = field(default_factory=dict)  # files that are no images, and why
    seconds: float = 0.0


def image_files(folder: Path) -> list[str]:
    """The images of a folder, by their paths in it, in order; hidden ones and links to folders are left out."""
    if not folder.is_dir():
        raise InvalidInput(f"folder is {str(folder)!r}; a folder that exists is wanted")
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        here = Path(root).relative_to(folder)
        images = (name for name in files if name.lower().endswith(SUFFIXES) and not name.startswith("."))
        found += [(here / name).as_posix() for name in images]
    return sorted(found)


def index_folder(
    folder: Path,
    collection: Collection,
    encoder: str,
    labels: Labels,
    *,
    files: list[str] | None = None,
    workers: int | None = None,
    progress: Callable[[Indexed], None] = lambda _: None,
) -> Indexed:
    """Adds what is new and replaces what has changed; `progress` hears of every batch."""
    began = time.perf_counter()
    names = image_files(folder) if files is None else files
    done = Indexed(len(names))
    known: dict[str, bool] = {}  # of the files under way: whether they are in the collection

    def wanted() -> Iterator[Path]:
        for some in _some(filter(usable, names), LOOKED):
            for name, item in zip(some, collection.get(some), strict=True):
                if item is not None and _held(folder / name) == (item.metadata or {}).get("content"):
                    done.skipped += 1
                else:
                    known[str(folder / name)] = item is not None
                    yield folder / name

    def usable(name: str) -> bool:
        if not name.isprintable():
            done.broken[ascii(name)] = "its name cannot be printed, so it can be no id"
        return name.isprintable()

    encoded = encode_files(encoder, wanted(), workers=workers)
    while entries := list(islice(encoded, BATCH)):
        good = [entry for entry in entries if entry.features is not None]
        _put(folder, collection, good, labels, done)
        for entry in entries:
            there = known.pop(entry.path)
            if entry.features is None:
                done.broken[_named(folder, entry)] = entry.error or "it cannot be read"
            elif there:
                done.changed += 1
            else:
                done.added += 1
        done.seconds = time.perf_counter() - began
        progress(done)
    done.seconds = time.perf_counter() - began
    return done


def _put(folder: Path, collection: Collection, entries: list[Encoded], labels: Labels, done: Indexed) -> None:
    if not entries:
        return
    names = [_named(folder, entry) for entry in entries]
    told = [labels(name) for name in names]
    metadata = [
        {"width": entry.size[0], "height": entry.size[1], "content": _short(entry.content)} if entry.size else None
        for entry in entries
    ]
    X = np.stack([entry.features for entry in entries if entry.features is not None])
    collection.upsert(names, X, told, metadata, pictures=[entry.thumbnail for entry in entries])
    done.labelled += sum(map(bool, told))


def _named(folder: Path, entry: Encoded) -> str:
    return Path(entry.path).relative_to(folder).as_posix()


def _short(content: str | None) -> str | None:
    """Half of a SHA-256 tells files apart just as well."""
    return content and content[:32]


def _held(path: Path) -> str | None:
    try:
        return _short(content_hash(read_bytes(path)))
    except StillhashError:
        return None


def _some(names: Iterator[str], count: int) -> Iterator[list[str]]:
    while some := list(islice(names, count)):
        yield some
