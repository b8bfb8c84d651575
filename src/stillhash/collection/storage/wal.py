"""SQLite's write-ahead log, as far as its pages must be known: https://www.sqlite.org/walformat.html.

Each frame carries a checksum of all that came before it, so to SQLite the log ends at the first frame that is damaged,
and the commits after it are gone. `mend` flips a single flipped bit back, which brings them back too. It needs other
checksums for that: SQLite's do not tell which bit it was.

The log can be read beside SQLite. store.db and its -shm cannot, in a process that has them open: closing any handle on
a file drops all locks the process has on it.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.checksums import BLOCK, mended, pair
from stillhash.collection.storage.sealed_files import write_durably

PAGE = BLOCK
HEAD, FRAME = 32, 24  # bytes before all frames, and before the page of each
SOME = 4096  # frames looked at at a time
MAGIC, VERSION = 0x377F0682, 3007000
NOTES = "wal.sums"

Bytes = NDArray[np.uint8]


class Wal(NamedTuple):
    """What is committed in a log."""

    frames: Bytes  # (n, 24 + 4096)
    pages: int  # of the database, after the last commit; 0 if there is none

    @property
    def numbers(self) -> NDArray[np.int64]:
        """For each frame the number of its page, from 0."""
        return np.ascontiguousarray(self.frames[:, :4]).view(">u4").reshape(-1).astype(np.int64) - 1


def read_wal(path: Path) -> Wal:
    """The frames up to the last commit before anything is damaged, or not written yet."""
    data = _read(path)
    frames = _frames(data)[: _good(data)]
    ends = np.ascontiguousarray(frames[:, 4:8]).view(">u4").reshape(-1)
    commits = np.flatnonzero(ends)
    return Wal(frames[: commits[-1] + 1], int(ends[commits[-1]])) if len(commits) else Wal(frames[:0], 0)


def _good(data: Bytes) -> int:
    """How many frames are good, from the first on: of this log, and with the checksum they should have."""
    if len(data) < HEAD or not _head_sound(data):
        return 0
    frames = _frames(data)
    strange = np.flatnonzero((frames[:, 8:16] != data[16:24]).any(axis=1))
    count = int(strange[0]) if len(strange) else len(frames)
    before = np.concatenate([data[None, 24:32], frames[:count, 16:24]])  # each sum starts from the one before
    for s in range(0, count, SOME):
        some = frames[s : min(count, s + SOME)]
        found = _sums(np.concatenate([some[:, :8], some[:, FRAME:]], axis=1), before[s : s + len(some)], data)
        wrong = np.flatnonzero((found != before[s + 1 : s + 1 + len(some)]).any(axis=1))
        if len(wrong):
            return s + int(wrong[0])
    return count


def _head_sound(data: Bytes) -> bool:
    magic, version = struct.unpack(">II", data[:8].tobytes())
    own = _sums(data[None, :24], np.zeros((1, 8), np.uint8), data)[0]
    return magic & ~1 == MAGIC and version == VERSION and bool((own == data[24:32]).all())


def _sums(covered: Bytes, start: Bytes, data: Bytes) -> Bytes:
    """The checksums (n, 8) of rows of bytes, from where each starts. The magic number says how words are to be read."""
    words = np.ascontiguousarray(covered).view(">u4" if data[3] & 1 else "<u4").astype(np.uint32).T.copy()
    a, b = (np.ascontiguousarray(start[:, s : s + 4]).view(">u4").reshape(-1).astype(np.uint32) for s in (0, 4))
    for x, y in zip(words[::2], words[1::2], strict=True):
        a += x + b
        b += y + a
    return np.stack([a, b], axis=1).astype(">u4").view(np.uint8)


def _frames(data: Bytes) -> Bytes:
    count = max(0, len(data) - HEAD) // (FRAME + PAGE)
    return data[HEAD : HEAD + count * (FRAME + PAGE)].reshape(count, FRAME + PAGE)


def _read(path: Path) -> Bytes:
    """Read and not mapped: another process may cut it short at any time."""
    try:
        return np.frombuffer((path / "store.db-wal").read_bytes(), np.uint8)
    except FileNotFoundError:
        return np.empty(0, np.uint8)


# ---- mending ----


class Noted:
    """Checksums of the log's head and of each frame, kept beside it and synced never, for `mend` alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.frames = 0  # that are noted
        self._head = b""

    def note(self) -> None:
        """What this process committed since the last time."""
        with (self.path / "store.db-wal").open("rb") as file:
            head = file.read(HEAD)
            first = self.frames if head == self._head else 0
            file.seek(HEAD + first * (FRAME + PAGE))
            frames, ended = [], 0
            while len(frame := file.read(FRAME + PAGE)) == FRAME + PAGE and frame[8:16] == head[16:24]:
                frames.append(frame)
                ended = len(frames) if any(frame[4:8]) else ended  # with a commit
        handle = os.open(self.path / NOTES, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(handle, _pairs([head]), 0)
            os.pwrite(handle, _pairs(frames[:ended]), 8 * (1 + first))
        finally:
            os.close(handle)
        self._head, self.frames = head, first + ended


def mend(path: Path) -> bool:
    """Flips back a flipped bit of the log's head or of its first bad frame, if there is one."""
    data = bytearray(_read(path).tobytes())
    notes = (path / NOTES).read_bytes() if (path / NOTES).exists() else b""
    sums = np.frombuffer(notes[: len(notes) // 8 * 8], "<u4").reshape(-1, 2)
    bad, place, size = 0, 0, HEAD
    view = np.frombuffer(bytes(data), np.uint8)
    if len(data) >= HEAD and _head_sound(view):
        bad, size = 1 + _good(view), FRAME + PAGE
        place = HEAD + (bad - 1) * size
    if bad >= len(sums) or (fixed := mended(bytes(data[place : place + size]), sums[bad])) is None:
        return False
    data[place : place + size] = fixed
    write_durably(path / "store.db-wal", [bytes(data)])
    return True


def _pairs(blocks: list[bytes]) -> bytes:
    return np.array([pair(block) for block in blocks], "<u4").tobytes()
