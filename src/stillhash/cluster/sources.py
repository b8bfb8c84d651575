"""The rows of a bulk job: .npy shards, Parquet files, or a folder of images; and how they are cut into parts.

    shard.npy        features (n, D); shard.ids.npy (n,) and shard.labels.npy (n,) or (n, labels) may be beside it
    table.parquet    columns features (a list per row), and perhaps id, labels (a list, or one), metadata (struct, JSON)
    images           in folders of any depth; ids are their paths, and thumbnails come along

A source is files in order, so every row has a number, and a part is a range of numbers. All machines see the files
under the same path. A file that changes after the job began is refused.
"""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.types import Id
from stillhash.collection.validation import check_label_lists, check_metadata, check_path
from stillhash.encoders import open_encoder
from stillhash.encoders.files import encode_files
from stillhash.errors import Conflict, InvalidInput, WrongType
from stillhash.io import count_rows, list_images, list_row_files, read_blocks, reading, siblings
from stillhash.numeric.validation import Floats, check_features, check_integer

BLOCK_IMAGES = 256  # images encoded at a time
SourcePaths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]  # a folder, a file, or several files


class SourceFile(NamedTuple):
    name: str  # in the folder of the source
    rows: int
    size: int  # bytes, with those of ids and labels beside it
    modified: int  # nanoseconds, the latest of these files


class SourcePart(NamedTuple):
    """Rows first to end - 1 of a source, as (file, start, stop) for each file that holds some."""

    number: int
    first: int
    end: int
    file_ranges: list[tuple[SourceFile, int, int]]


class SourceRows(NamedTuple):
    """Validated rows of a part."""

    features: Floats  # (n, D)
    ids: list[Id] | None  # None: the rows' numbers
    labels: list[list[Any]]
    metadata: list[str | None]  # JSON
    pictures: list[bytes | None] | None = None
    broken: dict[str, str] | None = None  # files that cannot be decoded, and why


class Source(NamedTuple):
    folder: Path
    encoder: str | None  # of images
    files: list[SourceFile]

    def parts(self, size: int) -> list[SourcePart]:
        """Cut all rows, in order, into parts of `size` rows."""
        starts = list(accumulate((file.rows for file in self.files), initial=0))
        cuts = [*range(0, starts[-1], check_integer(size, "rows_per_part", 1)), starts[-1]]
        parts = []
        for number, (first, end) in enumerate(pairwise(cuts)):
            held = slice(bisect_right(starts, first) - 1, bisect_left(starts, end))
            files = zip(self.files[held], starts[held], strict=True)
            ranges = [(file, max(0, first - at), min(file.rows, end - at)) for file, at in files if file.rows]
            parts.append(SourcePart(number, first, end, ranges))
        return parts


def find_source(source: SourcePaths, encoder: str | None = None) -> Source:
    """List the files at a path, or at several; with an encoder, the images of a folder."""
    if not isinstance(source, (str, os.PathLike, Iterable)):
        raise WrongType(f"source: expected a folder, a file or a list of files, got {source!r}")
    paths = [check_path(path) for path in ([source] if isinstance(source, (str, os.PathLike)) else source)]
    if isinstance(source, (str, os.PathLike)) and paths[0].is_dir():
        folder, names = paths[0], list_row_files(paths[0]) if encoder is None else list_images(paths[0])
    elif encoder is not None:
        raise InvalidInput(f"source: expected one folder of images for an encoder, got {source!r}")
    else:
        folder = Path(os.path.commonpath([path.parent for path in paths])) if paths else Path()
        names = [path.relative_to(folder).as_posix() for path in paths]
    files = [_describe_file(folder, name, encoder) for name in names]
    if not sum(file.rows for file in files):
        raise InvalidInput(f"source: expected rows, got none in {len(files)} files of {source!r}")
    return Source(folder, encoder, files)


def read_part_rows(folder: Path, encoder: str | None, part: SourcePart, columns: int) -> Iterator[SourceRows]:
    """Yield the rows of a part, a block at a time, with `columns` features; Conflict if one of its files changed."""
    for file, _, _ in part.file_ranges:
        if _describe_file(folder, file.name, encoder) != file:
            raise Conflict(f"{file.name} has changed since the job began. Start again in another folder.")
    if encoder is not None:
        yield from _read_images(folder, [file.name for file, _, _ in part.file_ranges], encoder, columns)
        return
    for file, start, stop in part.file_ranges:
        for block in read_blocks(folder / file.name, start, stop):
            try:
                labels = _row_labels(block.labels, len(block.features))
                features = check_features(block.features, "features", columns=columns, whose="this hasher")
                metadata = check_metadata(block.metadata, len(features))
            except InvalidInput as error:
                raise type(error)(f"{file.name}, rows {start} to {stop - 1}: {error}") from None
            yield SourceRows(features, block.ids, labels, metadata)


def count_columns(source: Source) -> int:
    """Return how many features a row has: those of the encoder, or of the first file."""
    if source.encoder is not None:
        return open_encoder(source.encoder).dim
    file = next(file for file in source.files if file.rows)
    (block,) = read_blocks(source.folder / file.name, 0, 1)
    return int(block.features.shape[1])


def _describe_file(folder: Path, name: str, encoder: str | None) -> SourceFile:
    """Return a file as it is now."""
    path = folder / name
    rows = count_rows(path) if encoder is None else 1
    files = [path, *siblings(path).values()] if encoder is None else [path]
    with reading(path):
        stats = [file.stat() for file in files]
    return SourceFile(name, rows, sum(one.st_size for one in stats), max(one.st_mtime_ns for one in stats))


def _row_labels(labels: NDArray[Any] | list[Any] | None, rows: int) -> list[list[Any]]:
    """Return the labels of each row; where rows have one each, every distinct label is checked once."""
    if not isinstance(labels, np.ndarray) or labels.ndim != 1:
        return check_label_lists(labels, rows)
    values, places = np.unique(labels, return_inverse=True)
    names = check_label_lists(values, len(values))
    return [names[place] for place in places.tolist()]


def _read_images(folder: Path, names: list[str], encoder: str, columns: int) -> Iterator[SourceRows]:
    """Yield the images of these names; those that cannot be decoded come last, as `broken`, and are not rows."""
    usable = [name for name in names if name.isprintable()]
    broken = {ascii(name): "name: expected printable characters" for name in names if name not in usable}
    encoded = encode_files(encoder, [folder / name for name in usable], workers=1)
    while entries := list(islice(encoded, BLOCK_IMAGES)):
        good = [entry for entry in entries if entry.features is not None]
        broken |= {e.name_in(folder): e.error or "cannot be read" for e in entries if e.features is None}
        if good:
            X = np.stack([entry.features for entry in good if entry.features is not None])
            metadata = check_metadata([entry.metadata() for entry in good], len(good))
            ids: list[Id] = [entry.name_in(folder) for entry in good]
            features = check_features(X, "features", columns=columns, whose="this hasher")
            yield SourceRows(features, ids, [[] for _ in good], metadata, [entry.thumbnail for entry in good])
    if broken:
        yield SourceRows(np.empty((0, columns), np.float32), [], [], [], [], broken)
