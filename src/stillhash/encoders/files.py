"""Features of many image files, by several processes.

Results come in the order of the paths, and no more than a few batches are under way at a time, so memory stays flat
over any number of files. A file that cannot be decoded is an entry with an error and nothing more. Even a process that
dies, as one does that the system kills for its memory, costs only the file it died of: the batch it had is tried again
file by file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stillhash.encoders.base import Encoder, open_encoder
from stillhash.encoders.pixels import THUMBNAIL, content_hash, decode_sized, read_bytes, thumbnail
from stillhash.encoders.workers import in_order
from stillhash.errors import StillhashError, WrongType
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Floats, check_integer

if TYPE_CHECKING:
    from PIL.Image import Image

CONTENT_DIGITS = 32  # half of a SHA-256 tells files apart just as well

AnyPath = str | os.PathLike[str]


class EncodedFile(NamedTuple):
    """A file, and what became of it: features or an error."""

    path: str
    features: Floats | None  # (dim,)
    content: str | None  # sha256 of the file, hex; None if it could not be read
    thumbnail: bytes | None  # a JPEG
    size: tuple[int, int] | None  # width and height in full, upright
    error: str | None

    def name_in(self, folder: Path) -> str:
        """Return the path in a folder, with / between, which is the id of an image."""
        return Path(self.path).relative_to(folder).as_posix()

    def metadata(self) -> dict[str, Any] | None:
        """Return what a collection stores about an image: its size, and a key of the file's bytes."""
        if self.size is None or self.content is None:
            return None
        return {"width": self.size[0], "height": self.size[1], "content": self.content[:CONTENT_DIGITS]}


def content_key(data: bytes) -> str:
    """Return the key of a file's bytes in an image's metadata."""
    return content_hash(data)[:CONTENT_DIGITS]


def encode_files(
    encoder: str, paths: Iterable[AnyPath], *, workers: int | None = None, batch: int = 32, thumbnails: bool = True
) -> Iterator[EncodedFile]:
    """One entry for each path, in order. `workers` is the number of processes, all usable cores if None; 1 stays here.

    The encoder is given by its name, for each process opens it for itself.
    """
    check_integer(batch, "batch", 1)
    if isinstance(paths, (str, os.PathLike)):
        raise WrongType(f"paths is one path, {str(paths)!r}; several are wanted: [{str(paths)!r}]")
    if workers is not None:
        check_integer(workers, "workers", 1)
    opened = open_encoder(encoder)  # a name that is wrong, or a library that is missing, is told now and once
    return _entries(opened, _batched(paths, batch), workers, thumbnails)


def _entries(
    encoder: Encoder, batches: Iterator[list[str]], workers: int | None, thumbnails: bool
) -> Iterator[EncodedFile]:
    first = list(islice(batches, 2))
    if workers is None:
        workers = usable_cores() if len(first) > 1 else 1  # starting processes takes longer than a batch
    batches = chain(first, batches)
    if workers > 1:
        yield from in_order(_begin, (encoder.name, thumbnails), batches, workers, _lost)
    else:
        for some in batches:
            yield from _encode(encoder, some, thumbnails)


def encode_bytes(encoder: Encoder, data: bytes, name: str = "image") -> Floats:
    """Features (dim,) of one file's bytes: the very ones that `encode_files` gives."""
    image, _ = decode_sized(data, name, at_most=_fineness(encoder))
    row: Floats = encoder.encode([image])[0]
    return row


def _encode(encoder: Encoder, paths: list[str], thumbnails: bool) -> list[EncodedFile]:
    """A batch. Pictures are made small as they are decoded, so that a batch of large ones is no larger."""
    entries, images = [], []
    for path in paths:
        content = None
        try:
            data = read_bytes(path)
            content = content_hash(data)
            image, size = decode_sized(data, path, at_most=_fineness(encoder))
            small = thumbnail(image) if thumbnails else None
        except StillhashError as error:
            entries.append(EncodedFile(path, None, content, None, None, str(error)))
            continue
        images.append(image)
        entries.append(EncodedFile(path, None, content, small, size, None))
    whole = [at for at, entry in enumerate(entries) if entry.error is None]
    for at, row in zip(whole, _features(encoder, images), strict=True):
        told = {"error": row} if isinstance(row, str) else {"features": row}
        entries[at] = entries[at]._replace(**told)
    return entries


def _features(encoder: Encoder, images: list[Image]) -> list[Floats | str]:
    """A row or a reason for each image: one that the encoder cannot take does not cost the others theirs."""
    if not images:
        return []
    try:
        return list(encoder.encode(images))
    except Exception as error:  # networks fail in ways of their own
        if len(images) == 1:
            return [f"it could not be encoded: {error or type(error).__name__}"]
        return [row for image in images for row in _features(encoder, [image])]


def _fineness(encoder: Encoder) -> tuple[int, int]:
    """Of decoding. The same with and without thumbnails, as features must not depend on them."""
    return max(encoder.needs[0], THUMBNAIL), max(encoder.needs[1], THUMBNAIL)


def _begin(encoder: str, thumbnails: bool) -> Callable[[list[str]], list[EncodedFile]]:
    """In a process of its own: the encoder is opened once."""
    opened = open_encoder(encoder)
    return lambda paths: _encode(opened, paths, thumbnails)


def _lost(path: str) -> EncodedFile:
    return EncodedFile(path, None, None, None, None, f"{path} could not be encoded: the process died of it")


def _batched(paths: Iterable[AnyPath], size: int) -> Iterator[list[str]]:
    rest = iter(paths)
    while some := [os.fsdecode(path) for path in islice(rest, size)]:
        yield some
