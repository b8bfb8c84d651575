"""Rows of several segments as those of one, in the order of their ids, without their codes in memory."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.segments import (
    CONTENT_DIGEST_BYTES,
    SEGMENT_FORMAT,
    SEGMENT_HEADER,
    SEGMENT_MAGIC,
    TILES_OFFSET,
    Segment,
)
from stillhash.files import BLOCK_SIZE, write_sealed
from stillhash.numeric import kernels
from stillhash.numeric.codes import TILE, to_tiles, width

MERGED_PART_BYTES = 1 << 20  # of codes in memory
WRITTEN_BLOCKS = 1 << 8  # that are written at a time


class SegmentRows(NamedTuple):
    """Some rows of a segment, ascending."""

    segment: Segment
    rows: NDArray[np.uint32]

    def numbers(self) -> NDArray[np.int64]:
        """Return the ids of the rows."""
        segment = self.segment
        return segment.first + self.rows.astype(np.int64) if segment.numbers is None else segment.numbers[self.rows]


class MergedRows:
    """The rows of parts, each with ascending ids; `numbers` are the ids of all."""

    def __init__(self, parts: Sequence[SegmentRows], bits: int) -> None:
        self.parts, self.bits = parts, bits
        none = np.empty(0, np.int64)
        self.numbers = np.concatenate([none, *(part.numbers() for part in parts)])
        self._ends = np.cumsum([0, *(len(part.rows) for part in parts)])
        self._order: NDArray[np.int64] | None = None  # None: they ascend already
        if not (self.numbers[1:] > self.numbers[:-1]).all():
            self._order = np.argsort(self.numbers, kind="stable")
            self.numbers = self.numbers[self._order]

    def write(self, path: Path) -> None:
        """Write a segment, the same to the byte as `write_segment` writes from memory."""
        digest = hashlib.blake2b(digest_size=CONTENT_DIGEST_BYTES)
        digests, places = self._digests()
        for part in self._content(digests, places):  # twice: the header has the digest of what follows it
            digest.update(part)
        consecutive = int(self.numbers[-1]) - int(self.numbers[0]) == len(self.numbers) - 1
        shape = self.bits, len(self.numbers), int(self.numbers[0]) if consecutive else -1, len(places)
        head = SEGMENT_HEADER.pack(SEGMENT_MAGIC, SEGMENT_FORMAT, *shape, bytes(16), 0, digest.digest())
        parts = chain([head.ljust(TILES_OFFSET, b"\0")], self._content(digests, places))
        write_sealed(path, _whole_blocks(parts))

    def _content(self, digests: NDArray[np.int64], places: NDArray[np.uint32]) -> Iterator[bytes]:
        """Yield tiles, row numbers unless they are consecutive, digests and their places."""
        step = max(1, MERGED_PART_BYTES // (TILE * width(self.bits))) * TILE
        for start in range(0, len(self.numbers), step):
            yield to_tiles(self._codes(start, min(start + step, len(self.numbers))), self.bits).tobytes()
        if int(self.numbers[-1]) - int(self.numbers[0]) != len(self.numbers) - 1:
            for start in range(0, len(self.numbers), step):
                yield self.numbers[start : start + step].astype("<i8").tobytes()
        for start in range(0, len(digests), step):
            yield digests[start : start + step].astype("<i8").tobytes()
        for start in range(0, len(places), step):
            yield places[start : start + step].astype("<u4").tobytes()

    def _codes(self, start: int, end: int) -> NDArray[np.uint8]:
        """Return the codes of the rows from `start` to `end`."""
        places = np.arange(start, end) if self._order is None else self._order[start:end]
        sources = np.searchsorted(self._ends, places, "right") - 1
        codes = np.empty((end - start, width(self.bits)), np.uint8)
        for source in np.unique(sources).tolist():
            chosen = np.flatnonzero(sources == source)
            rows = self.parts[source].rows[places[chosen] - self._ends[source]]
            codes[chosen] = kernels.read_tiles(self.parts[source].segment.tiles, rows.astype(np.int64))
        return codes

    def _digests(self) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Return the digests of features, ascending, and the places of their rows."""
        all_digests, all_places = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        target = None if self._order is None else np.argsort(self._order)
        for number, (segment, rows) in enumerate(self.parts):
            if not len(segment.digests):
                continue
            at = np.searchsorted(rows, segment.places)
            live = (at < len(rows)) & (rows[np.minimum(at, len(rows) - 1)] == segment.places)
            places = at[live] + self._ends[number]
            all_digests.append(segment.digests[live])
            all_places.append(places if target is None else target[places])
        digests, places = np.concatenate(all_digests), np.concatenate(all_places)
        order = np.lexsort((places, digests))
        return digests[order], places[order].astype(np.uint32)


def _whole_blocks(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in parts of whole blocks, except the last one."""
    left = b""
    for part in parts:
        data = left + part
        whole = len(data) // (BLOCK_SIZE * WRITTEN_BLOCKS) * BLOCK_SIZE * WRITTEN_BLOCKS
        if whole:
            yield data[:whole]
        left = data[whole:]
    if left:
        yield left
