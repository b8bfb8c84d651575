"""Rows where they lie: .npy shards, Parquet files, or a folder of images; and how they are cut into parts.

    shard.npy        features (n, D); shard.ids.npy (n,) and shard.labels.npy (n,) or (n, labels) may lie beside it
    table.parquet    columns features (a list a row) and perhaps id, labels (a list, or one), metadata (struct or JSON)
    images           in folders of any depth; ids are their paths, and thumbnails come along

A source is files in order, each of so many rows, so every row has a number, and a part is a range of numbers. All
machines see the files under the same path. A file that changes after it was looked at is refused.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from stillhash.cluster.rows import READERS, Rows, beside, read_images
from stillhash.collection.types import check_path
from stillhash.errors import Conflict, InvalidInput, WrongType
from stillhash.numeric.validation import check_features, check_integer

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")  # of images
ASIDE = (".ids.npy", ".labels.npy")


class File(NamedTuple):
    name: str  # in the folder of the source
    rows: int
    size: int  # bytes, with those of ids and labels beside it
    modified: int  # nanoseconds, the latest of these files


class Part(NamedTuple):
    """Rows first to end - 1 of a source, and where they lie: so many of these files' rows."""

    number: int
    first: int
    end: int
    pieces: list[tuple[File, int, int]]


class Source(NamedTuple):
    folder: Path
    encoder: str | None  # of images
    files: list[File]

    def parts(self, size: int) -> list[Part]:
        """All rows in order, `size` at a time."""
        ends = list(accumulate(file.rows for file in self.files))
        total = ends[-1]
        cuts = [*range(0, total, check_integer(size, "rows_per_part", 1)), total]
        ranges = enumerate(pairwise(cuts))
        return [Part(number, first, end, self._pieces(ends, first, end)) for number, (first, end) in ranges]

    def _pieces(self, ends: list[int], first: int, end: int) -> list[tuple[File, int, int]]:
        found, at = [], bisect_right(ends, first)
        while first < end:
            start = first - (ends[at] - self.files[at].rows)
            stop = start + min(end, ends[at]) - first
            if stop > start:
                found.append((self.files[at], start, stop))
            first, at = first + stop - start, at + 1
        return found


def find(source: Any, encoder: str | None = None) -> Source:
    """What lies at a path, or at several; with an encoder, the images of a folder."""
    several = not isinstance(source, (str, os.PathLike))
    if several and not isinstance(source, Iterable):
        raise WrongType(f"source is {source!r}; a folder, a file or a list of files is wanted")
    paths = [check_path(path) for path in source] if several else [check_path(source)]
    if encoder is not None:
        if several or not paths[0].is_dir():
            raise InvalidInput(f"source is {source!r}; an encoder wants one folder of images")
        folder, names = paths[0], _images(paths[0])
    elif several or not paths[0].is_dir():
        folder = Path(os.path.commonpath([path.parent for path in paths])) if paths else Path()
        names = [path.relative_to(folder).as_posix() for path in paths]
    else:
        folder, names = paths[0], sorted(file.name for file in paths[0].iterdir() if _is_rows(file.name))
    files = [look(folder, name, encoder) for name in names]
    if not sum(file.rows for file in files):
        raise InvalidInput(f"source is {source!r}; there are no rows in {len(files)} files of it")
    return Source(folder, encoder, files)


def look(folder: Path, name: str, encoder: str | None) -> File:
    """A file as it is now."""
    path = folder / name
    with told_of(name):
        if encoder is None and path.suffix not in READERS:
            raise InvalidInput(f"files of rows end in {', '.join(READERS)}")
        there = [path, *(aside for what in ("ids", "labels") if (aside := beside(path, what)).is_file())]
        known = [file.stat() for file in (there if encoder is None else [path])]
        rows = 1 if encoder is not None else READERS[path.suffix][0](path)
    return File(name, rows, sum(one.st_size for one in known), max(one.st_mtime_ns for one in known))


def read(folder: Path, encoder: str | None, part: Part, columns: int) -> Iterator[Rows]:
    """The rows of a part, a block at a time, once its files are found as they were; with so many features, finite."""
    for file, _, _ in part.pieces:
        if look(folder, file.name, encoder) != file:
            raise Conflict(f"{file.name} has changed since the work was begun; begin anew, in another folder")
    if encoder is not None:
        blocks = read_images(folder, [file.name for file, _, _ in part.pieces], encoder)
        yield from (rows._replace(features=_checked(rows, columns)) for rows in blocks)
        return
    for file, start, stop in part.pieces:
        with told_of(f"{file.name}, rows {start} to {stop - 1}"):
            for rows in READERS[Path(file.name).suffix][1](folder / file.name, start, stop):
                yield rows._replace(features=_checked(rows, columns))


@contextmanager
def told_of(place: str) -> Iterator[None]:
    """What is wrong with a file names it."""
    try:
        yield
    except InvalidInput as error:
        raise type(error)(f"{place}: {error}") from None
    except (OSError, ValueError) as error:  # of the disk, or of a format that is not kept to
        raise InvalidInput(f"{place}: it cannot be read: {error}") from error


def _checked(rows: Rows, columns: int) -> Any:
    features = rows.features if len(rows.features) else rows.features.reshape(0, columns)
    return check_features(features, "features", columns=columns, whose="this hasher")


def _is_rows(name: str) -> bool:
    return name.endswith(tuple(READERS)) and not name.endswith(ASIDE) and not name.startswith(".")


def _images(folder: Path) -> list[str]:
    """By their paths in the folder, in order; hidden ones and links to folders are left out."""
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        here = Path(root).relative_to(folder)
        images = (name for name in files if name.lower().endswith(SUFFIXES) and not name.startswith("."))
        found += [(here / name).as_posix() for name in images]
    return sorted(found)
