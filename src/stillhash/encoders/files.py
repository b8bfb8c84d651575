"""Encode many image files in several processes.

Results come in the order of the paths, and only a few batches are under way at a time, so memory stays flat over any
number of files. A file that cannot be decoded is an entry with an error. A process that dies, as when the system kills
it for its memory, costs only the file it died of: its batch is tried again file by file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stillhash.encoders.base import Encoder, open_encoder
from stillhash.encoders.pixels import THUMBNAIL_SIDE, decode, read_bytes, thumbnail
from stillhash.encoders.workers import map_batches
from stillhash.errors import StillhashError, WrongType
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Floats, check_integer

if TYPE_CHECKING:
    from PIL.Image import Image

CONTENT_DIGITS = 32  # half of a SHA-256 tells files apart just as well

AnyPath = str | os.PathLike[str]


class EncodedFile(NamedTuple):
    """A file with its features, or with an error."""

    path: str
    features: Floats | None = None  # (dim,)
    content: str | None = None  # sha256 of the file, hex; None if it could not be read
    thumbnail: bytes | None = None  # a JPEG
    size: tuple[int, int] | None = None  # width and height in full, upright
    error: str | None = None

    def name_in(self, folder: Path) -> str:
        """Return the path in a folder, with / between, which is the id of an image."""
        return Path(self.path).relative_to(folder).as_posix()

    def metadata(self) -> dict[str, Any] | None:
        """Return what a collection stores about an image: its size, and a key of the file's bytes."""
        if self.size is None or self.content is None:
            return None
        return {"width": self.size[0], "height": self.size[1], "content": self.content[:CONTENT_DIGITS]}


def content_hash(data: bytes) -> str:
    """Return the SHA-256 of a file, in hex."""
    return hashlib.sha256(data).hexdigest()


def encode_files(
    encoder: str, paths: Iterable[AnyPath], *, workers: int | None = None, batch: int = 32, thumbnails: bool = True
) -> Iterator[EncodedFile]:
    """Yield one entry for each path, in order.

    encoder : a name, since each process opens the encoder itself.
    workers : processes; None for all usable cores, 1 for none besides this one.
    """
    check_integer(batch, "batch", 1)
    if isinstance(paths, (str, os.PathLike)):
        raise WrongType(f"paths: expected several, [{str(paths)!r}], got one path")
    if workers is not None:
        check_integer(workers, "workers", 1)
    opened = open_encoder(encoder)  # a wrong name or a missing library fails here, once
    return _encode_batches(opened, _split(paths, batch), workers, thumbnails)


def encode_bytes(encoder: Encoder, data: bytes, name: str = "image") -> Floats:
    """Return the features (dim,) of one file's bytes, equal to those of `encode_files`."""
    image, _ = decode(data, name, target=_decode_target(encoder))
    row: Floats = encoder.encode([image])[0]
    return row


def _encode_batches(
    encoder: Encoder, batches: Iterator[list[str]], workers: int | None, thumbnails: bool
) -> Iterator[EncodedFile]:
    first = list(islice(batches, 2))
    if workers is None:
        workers = usable_cores() if len(first) > 1 else 1  # starting processes takes longer than a batch
    batches = chain(first, batches)
    if workers > 1:
        yield from map_batches(partial(_encode_by_name, encoder.name, thumbnails), batches, workers, _lost_file)
    else:
        for paths in batches:
            yield from _encode_batch(encoder, paths, thumbnails)


def _encode_by_name(encoder: str, thumbnails: bool, paths: list[str]) -> list[EncodedFile]:
    return _encode_batch(_open_once(encoder), paths, thumbnails)


_open_once = cache(open_encoder)  # in each process


def _encode_batch(encoder: Encoder, paths: list[str], thumbnails: bool) -> list[EncodedFile]:
    """Encode a batch; images are scaled down as they are decoded, so that large ones take no more memory."""
    entries, images = [], {}
    for at, path in enumerate(paths):
        entry = EncodedFile(path)
        try:
            data = read_bytes(path)
            entry = entry._replace(content=content_hash(data))
            image, size = decode(data, path, target=_decode_target(encoder))
            entry = entry._replace(size=size, thumbnail=thumbnail(image) if thumbnails else None)
            images[at] = image
        except StillhashError as error:
            entry = entry._replace(error=str(error))
        entries.append(entry)
    for at, row in zip(images, _encode_images(encoder, list(images.values())), strict=True):
        entries[at] = entries[at]._replace(**({"error": row} if isinstance(row, str) else {"features": row}))
    return entries


def _encode_images(encoder: Encoder, images: list[Image]) -> list[Floats | str]:
    """Return a row or an error for each image: one that cannot be encoded does not cost the others theirs."""
    try:
        return list(encoder.encode(images))
    except Exception as error:  # networks fail in ways of their own
        if len(images) == 1:
            return [f"cannot be encoded: {error or type(error).__name__}"]
        return [row for image in images for row in _encode_images(encoder, [image])]


def _decode_target(encoder: Encoder) -> tuple[int, int]:
    """Return the size to decode to: the same with and without thumbnails, as features must not depend on them."""
    return max(encoder.decode_size[0], THUMBNAIL_SIDE), max(encoder.decode_size[1], THUMBNAIL_SIDE)


def _lost_file(path: str) -> EncodedFile:
    return EncodedFile(path, error=f"{path} cannot be encoded: the process died of it")


def _split(paths: Iterable[AnyPath], size: int) -> Iterator[list[str]]:
    rest = iter(paths)
    while batch := [os.fsdecode(path) for path in islice(rest, size)]:
        yield batch
