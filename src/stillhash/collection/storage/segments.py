"""Segments: immutable files of codes in the layout that the scan reads, mapped into memory.

    bytes 0-79    magic, format, bits, rows, the first row or -1, and which segment it is (SegmentIdentity)
    bytes 4096-   tiles (tiles, planes, TILE), then, if they are not consecutive, the row numbers as int64;
                  then digests of features, ascending, as int64, and the places of their rows as uint32

A segment is a sealed file (files.py). Its checksums are verified once, before the first search, and by `verify`.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState
from stillhash.files import (
    check_sealed,
    content_size,
    map_file,
    open_regular,
    translate_read_errors,
    write_sealed,
)
from stillhash.numeric.codes import NO_DIGEST, TILE, Tiles, from_tiles, to_tiles, width
from stillhash.numeric.validation import Codes

SEGMENT_MAGIC, SEGMENT_FORMAT = b"STILLSEG", 2
SEGMENT_HEADER = struct.Struct("<8sIIQqQ16sQ16s")  # magic, format, bits, rows, first row or -1, digests, identity
TILES_OFFSET = 4096  # of the tiles: a page, so that they can be mapped
CONTENT_DIGEST_BYTES = 16
SEGMENT_ROWS = 131_072  # a segment has at most so many; those of earlier releases may have more
PLACES_PART = 1 << 20  # digests that are compared at a time


class CodedRows(NamedTuple):
    """Rows in ascending order with their codes and the digests of their features."""

    numbers: NDArray[np.int64]  # (n,)
    codes: Codes  # (n, bytes)
    digests: NDArray[np.int64]  # (n,), NO_DIGEST where the features were never known

    @classmethod
    def without_digests(cls, numbers: NDArray[np.int64], codes: Codes) -> "CodedRows":
        return cls(numbers, codes, np.full(len(codes), NO_DIGEST, np.int64))

    @classmethod
    def join(cls, parts: Iterable["CodedRows"], bits: int) -> "CodedRows":
        """Return the rows of all parts, in the order of the parts."""
        none = cls.without_digests(np.empty(0, np.int64), np.empty((0, width(bits)), np.uint8))
        return cls(*map(np.concatenate, zip(none, *parts, strict=True)))

    def select(self, keep: NDArray[Any] | slice) -> "CodedRows":
        """Return the rows that a mask or places choose."""
        return CodedRows(self.numbers[keep], self.codes[keep], self.digests[keep])

    @classmethod
    def regroup(cls, parts: Iterable["CodedRows"], rows: int, bits: int) -> Iterator["CodedRows"]:
        """Yield the rows of all parts again, so many at a time, and the rest at last."""
        waiting: list[CodedRows] = []
        count = 0
        for part in parts:
            waiting.append(part)
            count += len(part.numbers)
            if count >= rows:
                whole = cls.join(waiting, bits)
                for start in range(0, count - count % rows, rows):
                    yield whole.select(slice(start, start + rows))
                waiting, count = [whole.select(slice(count - count % rows, None))], count % rows
        if count:
            yield cls.join(waiting, bits)


def even_rows(total: int, most: int) -> int:
    """Return how many rows each segment gets, of so many in all: about as many as all others, and not too many."""
    return max(1, -(-total // max(1, -(-total // most))))


class SegmentIdentity(NamedTuple):
    """Which segment a file is: the same stands in the table of segments, so that no other file passes for it."""

    collection: bytes = bytes(16)  # the id of the collection, zero outside of one
    number: int = 0
    content: bytes = bytes(CONTENT_DIGEST_BYTES)  # BLAKE2b of what follows the header


class Segment(NamedTuple):
    """The codes of rows first, first + 1, ..., or of `numbers`."""

    path: Path
    bits: int
    rows: int
    first: int
    identity: SegmentIdentity
    tiles: Tiles
    numbers: NDArray[np.int64] | None
    digests: NDArray[np.int64]  # of features, ascending
    places: NDArray[np.uint32]  # the rows of the digests, from 0

    def row_numbers(self) -> NDArray[np.int64]:
        return np.arange(self.first, self.first + self.rows) if self.numbers is None else np.asarray(self.numbers)

    def bounds(self) -> tuple[int, int]:
        """Return the first and the last row number of a segment that is not empty."""
        if self.numbers is None:
            return self.first, self.first + self.rows - 1
        return int(self.numbers[0]), int(self.numbers[-1])

    def check_rows(self) -> None:
        """Raise BadState unless row numbers ascend from 0 or more, and digests belong to rows that there are."""
        numbers = self.numbers
        ascending = numbers is None or bool((numbers[:1] >= 0).all() and (numbers[1:] > numbers[:-1]).all())
        if not ascending or (len(self.places) and int(self.places.max()) >= self.rows):
            raise BadState(f"{self.path.parent.name}/{self.path.name}: expected ascending rows, got others")

    def rows_with(self, digest: int) -> list[int]:
        """Return the row numbers that have this digest."""
        start = self.digests.searchsorted(digest)
        if start == len(self.digests) or self.digests[start] != digest:
            return []
        places = self.places[start : self.digests.searchsorted(digest, "right")].astype(np.int64)
        return sorted((places + self.first if self.numbers is None else self.numbers[places]).tolist())

    def coded_rows(self) -> CodedRows:
        """Read all rows."""
        return self._read(0, self.rows)

    def parts(self, rows: int = SEGMENT_ROWS) -> Iterator[CodedRows]:
        """Read all rows, about so many at a time: whole tiles."""
        step = max(1, rows // TILE) * TILE
        return (self._read(start, min(start + step, self.rows)) for start in range(0, self.rows, step))

    def _read(self, start: int, stop: int) -> CodedRows:
        """Read the rows from one place, at which a tile begins, to another."""
        digests = np.full(stop - start, NO_DIGEST, np.int64)
        for begin in range(0, len(self.places), PLACES_PART):
            places = self.places[begin : begin + PLACES_PART].astype(np.int64) - start
            inside = np.flatnonzero((places >= 0) & (places < stop - start))
            digests[places[inside]] = self.digests[begin + inside]
        codes = from_tiles(self.tiles[start // TILE : -(-stop // TILE)], stop - start)
        if self.numbers is None:
            return CodedRows(np.arange(self.first + start, self.first + stop), codes, digests)
        return CodedRows(np.array(self.numbers[start:stop]), codes, digests)


class Layout(NamedTuple):
    """How many of everything follow the header."""

    bits: int
    rows: int
    numbers: int  # that are listed: all, or none if they are consecutive
    digests: int

    def ends(self) -> list[int]:
        """Return the ends of tiles, row numbers, digests and places."""
        tiles = -(-self.rows // TILE) * width(self.bits) * TILE
        return list(accumulate([tiles, 8 * self.numbers, 8 * self.digests, 4 * self.digests]))

    def split(self, content: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Return the bytes of each of the four parts."""
        return np.split(content, self.ends())[:4]


def write_segment(path: Path, rows: CodedRows, bits: int, collection: bytes = bytes(16), number: int = 0) -> bytes:
    """Write these rows, and return the digest of the content; the file is on disk when this returns."""
    numbers = rows.numbers
    consecutive = len(numbers) > 0 and int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1
    places = np.flatnonzero(rows.digests != NO_DIGEST)
    places = places[np.argsort(rows.digests[places], kind="stable")]
    parts = [to_tiles(rows.codes, bits), np.asarray(numbers[:0] if consecutive else numbers, "<i8")]
    parts += [rows.digests[places].astype("<i8"), places.astype("<u4")]
    content = b"".join(part.tobytes() for part in parts)
    digest = hashlib.blake2b(content, digest_size=CONTENT_DIGEST_BYTES).digest()
    shape = bits, len(rows.codes), int(numbers[0]) if consecutive else -1, len(places)
    head = SEGMENT_HEADER.pack(SEGMENT_MAGIC, SEGMENT_FORMAT, *shape, collection, number, digest)
    write_sealed(path, [head.ljust(TILES_OFFSET, b"\0"), content])
    return digest


def read_segment(
    path: Path,
    bits: int,
    expected: tuple[int, SegmentIdentity] | None = None,
    *,
    check: bool = True,
    on_bytes: Callable[[int], object] | None = None,
) -> Segment:
    """Map a segment of these rows and this identity, once its checksums are verified, unless they have been already."""
    name = f"{path.parent.name}/{path.name}"
    with translate_read_errors(path), open_regular(path) as file:
        head = file.read(SEGMENT_HEADER.size)
    if head[:8] != SEGMENT_MAGIC[: len(head)] or not head:
        raise BadState(f"{name}: not a segment file")
    if len(head) < SEGMENT_HEADER.size:
        raise BadState(f"{name}: expected a header of {SEGMENT_HEADER.size} bytes, got {len(head)}")
    _, format_, stored_bits, rows, first, digests, *identity = SEGMENT_HEADER.unpack(head)
    if format_ != SEGMENT_FORMAT:
        raise BadState(f"{name}: expected format {SEGMENT_FORMAT}, got {format_}")
    if expected is not None and expected != (rows, SegmentIdentity(*identity)):
        raise BadState(f"{name}: expected segment {expected[1].number} of this collection, got another")
    layout = Layout(bits, rows, rows if first < 0 else 0, digests)
    if stored_bits != bits or content_size(path) != TILES_OFFSET + layout.ends()[-1]:
        raise BadState(f"{name}: expected codes of {bits} bits, got {rows} of {stored_bits} bits")
    if check:
        check_sealed(path, on_bytes)
    parts = layout.split(map_file(path)[TILES_OFFSET:])
    tiles, numbers = parts[0].reshape(-1, width(bits), TILE), None if first >= 0 else parts[1].view("<i8")
    by_digest = np.asarray(parts[2].view("<i8")), np.asarray(parts[3].view("<u4"))  # found faster without the subclass
    segment = Segment(path, bits, rows, first, SegmentIdentity(*identity), tiles, numbers, *by_digest)
    if check:
        segment.check_rows()
    return segment
