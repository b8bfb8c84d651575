"""Read SQLite's write-ahead log, as far as its pages must be known: https://www.sqlite.org/walformat.html.

Each frame carries a checksum of all that came before it, so to SQLite the log ends at the first damaged frame, and the
commits after it are lost.
"""

import functools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.verify_pages import PAGE_SIZE
from stillhash.files import checksum_pair, open_regular

WAL_HEADER, FRAME_HEADER = 32, 24  # bytes before all frames, and before the page of each
FRAME_SIZE = FRAME_HEADER + PAGE_SIZE
FRAMES_PER_READ = 1 << 10
READ_BYTES = 1 << 18  # of frames that were just written are read at a time
WAL_MAGIC, WAL_VERSION = 0x377F0682, 3007000

ByteArray = NDArray[np.uint8]


class Wal(NamedTuple):
    """The committed part of a log, without its pages: a large transaction has more of them than fit into memory."""

    frames: ByteArray  # (n, FRAME_HEADER): their headers
    page_count: int  # of the database after the last commit; 0 if there is none
    checksums: NDArray[np.uint32]  # (n, 2), if requested, of the pages that no later frame overwrites

    @property
    def page_numbers(self) -> NDArray[np.int64]:
        """The page that each frame holds, from 0."""
        return _page_numbers(self.frames)


def read_wal(path: Path, *, checksums: bool = False) -> Wal:
    """Read the frames up to the last commit before the first that is damaged or not written yet."""
    headers, pairs = [np.empty((0, FRAME_HEADER), np.uint8)], [np.empty((0, 2), np.uint32)]
    for frames in _read_valid_frames(path):
        headers.append(frames[:, :FRAME_HEADER].copy())
        if checksums:
            pairs.append(_page_checksums(frames))
    every, sums = np.concatenate(headers), np.concatenate(pairs)
    page_counts = _page_counts(every)
    commits = np.flatnonzero(page_counts)
    end = int(commits[-1]) + 1 if len(commits) else 0
    return Wal(every[:end], int(page_counts[end - 1]) if end else 0, sums[:end])


def _page_numbers(frames: ByteArray) -> NDArray[np.int64]:
    return np.ascontiguousarray(frames[:, :4]).view(">u4").reshape(-1).astype(np.int64) - 1


def _page_counts(frames: ByteArray) -> NDArray[np.uint32]:
    """Return the pages of the database after each frame that is the last of a commit, 0 for the others."""
    return np.ascontiguousarray(frames[:, 4:8]).view(">u4").reshape(-1)


def _page_checksums(frames: ByteArray) -> NDArray[np.uint32]:
    """Return the checksums of the pages that no later frame overwrites, among those of commits and among the others."""
    pairs, commits = np.zeros((len(frames), 2), np.uint32), np.flatnonzero(_page_counts(frames))
    end, pages = int(commits[-1]) + 1 if len(commits) else 0, _page_numbers(frames).tolist()
    for part in (range(end), range(end, len(frames))):
        for place in {pages[place]: place for place in part}.values():
            pairs[place] = checksum_pair(frames[place, FRAME_HEADER:])
    return pairs


def _read_valid_frames(path: Path) -> Iterator[ByteArray]:
    """Yield the leading frames that are valid, (n, FRAME_SIZE), some at a time: the file may have any size.

    They are not mapped, because another process may truncate the file at any time.
    """
    try:
        with open_regular(path / "store.db-wal") as file:
            header = np.frombuffer(file.read(WAL_HEADER), np.uint8)
            before, complete = header[24:32], len(header) == WAL_HEADER and _header_valid(header)
            while complete and (data := file.read(FRAMES_PER_READ * FRAME_SIZE)):
                frames = _frames(np.frombuffer(data, np.uint8))
                valid = frames[: _count_valid_frames(frames, before, header)]
                yield valid
                complete = len(data) == FRAMES_PER_READ * FRAME_SIZE and len(valid) == len(frames)
                before = frames[-1, 16:24] if complete else before
    except FileNotFoundError:
        pass


def _count_valid_frames(frames: ByteArray, before: ByteArray, header: ByteArray) -> int:
    """Count the leading frames that belong to the log of this header and match their checksums, after those before."""
    foreign = np.flatnonzero((frames[:, 8:16] != header[16:24]).any(axis=1))
    count = int(foreign[0]) if len(foreign) else len(frames)
    stored = np.concatenate([before[None], frames[:count, 16:24]])  # each sum starts from the one before
    wrong = np.flatnonzero((wal_sums(frames[:count], stored[:-1], header) != stored[1:]).any(axis=1))
    return int(wrong[0]) if len(wrong) else count


def _header_valid(data: ByteArray) -> bool:
    magic, version = struct.unpack(">II", data[:8].tobytes())
    own = wal_sums(data[None, :WAL_HEADER], np.zeros((1, 8), np.uint8), data)[0]
    return magic & ~1 == WAL_MAGIC and version == WAL_VERSION and bool((own == data[24:32]).all())


def wal_sums(blocks: ByteArray, starts: ByteArray, data: ByteArray) -> ByteArray:
    """Compute SQLite's checksums (n, 8) of headers or frames, each from its start; the magic number of the log gives
    the byte order. The checksums are sums of words, modulo 2^32, each with a weight."""
    words = blocks.view(">u4" if data[3] & 1 else "<u4").astype(np.uint32, copy=False)
    before = np.ascontiguousarray(starts).view(">u4").astype(np.uint32)
    weights, start_weights = _sum_weights(blocks.shape[1])
    sums = np.einsum("nw,sw->ns", words, weights) + before @ start_weights.T
    return np.asarray(sums, ">u4").view(np.uint8)


@functools.cache
def _sum_weights(size: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return how much each word of a header or frame counts in its two checksums (2, words), and those before (2, 2).

    For each pair of words x, y SQLite does a += x + b; b += y + a. From the last pair to the first, `a` and `b` are
    how much these two still count in the result.
    """
    covered = np.arange(size // 4)
    covered = covered[:6] if size == WAL_HEADER else np.concatenate([covered[:2], covered[FRAME_HEADER // 4 :]])
    weights, (a, b) = np.zeros((2, size // 4), np.uint32), np.eye(2, dtype=np.uint32)
    for x, y in covered.reshape(-1, 2)[::-1].tolist():
        weights[:, y] = b
        weights[:, x] = a = a + b
        b = a + b
    return weights, np.stack([a, b], axis=1)


def _frames(data: ByteArray) -> ByteArray:
    """Return bytes after the header as frames, without the last one if it is not whole."""
    count = len(data) // FRAME_SIZE
    return data[: count * FRAME_SIZE].reshape(count, FRAME_SIZE)


class WalFrames:
    """How many frames of commits the log has, counted as this process commits them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._header = b""

    def update(self) -> None:
        """Count the frames that were committed since the last update."""
        with (self.path / "store.db-wal").open("rb", READ_BYTES) as file:
            header = file.read(WAL_HEADER)
            count = number = self.count if header == self._header else 0
            file.seek(WAL_HEADER + count * FRAME_SIZE)
            while len(frame := file.read(FRAME_SIZE)) == FRAME_SIZE and frame[8:16] == header[16:24]:
                number += 1
                count = number if any(frame[4:8]) else count  # this frame ends a commit
        self._header, self.count = header, count
