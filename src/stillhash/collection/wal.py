"""SQLite's write-ahead log, as far as its pages must be known: https://www.sqlite.org/walformat.html.

Each frame carries a checksum of all that came before it, so to SQLite the log ends at the first frame that is damaged,
and the commits after it are gone. `mend` flips a single flipped bit back, which brings them back too. It needs other
checksums for that: SQLite's do not tell which bit it was.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.checksums import BLOCK, mended, pair
from stillhash.collection.files import write_durably

PAGE = BLOCK
HEAD, FRAME = 32, 24  # bytes before all frames, and before the page of each
MASK = 0xFFFFFFFF
NOTES = "wal.sums"

Pair = tuple[int, int]


class Wal(NamedTuple):
    """Where the log stands, by its index."""

    file: Path
    frames: int  # that are committed
    moved: int  # of them, those that store.db has already
    pages: int  # of the database

    @classmethod
    def of(cls, path: Path) -> Wal:
        try:
            with (path / "store.db-shm").open("rb") as file:
                head = file.read(100)
            frames, pages = struct.unpack_from("=II", head, 16)
            (moved,) = struct.unpack_from("=I", head, 96)
        except (OSError, struct.error):  # nobody has written since the last connection was closed
            frames = moved = pages = 0
        return cls(path / "store.db-wal", frames, min(moved, frames), pages)

    def mapped(self) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """For each frame the number of its page, from 0, and the page."""
        if not self.frames:
            return np.empty(0, np.int64), np.empty((0, PAGE), np.uint8)
        frames = np.memmap(self.file, np.uint8, "r", HEAD, (self.frames, FRAME + PAGE))
        numbers = np.ascontiguousarray(frames[:, :4]).view(">u4").reshape(-1)
        return numbers.astype(np.int64) - 1, frames[:, FRAME:]


def committed(file: Path) -> set[int]:
    """The pages, from 0, that the log holds; by its checksums alone, for when SQLite cannot say."""
    data = bytearray(file.read_bytes()) if file.exists() else bytearray()
    pages: set[int] = set()
    some: set[int] = set()
    if len(data) < HEAD or not _head_sound(data):
        return pages
    start, so_far = HEAD, _told(data, 24)
    while (after := _after(data, start, so_far)) is not None:
        page, ends = _told(data, start)
        some.add(page - 1)
        if ends:  # a commit
            pages, some = pages | some, set()
        start, so_far = start + FRAME + PAGE, after
    return pages


# ---- mending ----


class Noted:
    """Checksums of the log's head and of each frame, kept beside it and synced never, for `mend` alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._head, self._frames = b"", 0  # what is noted

    def note(self) -> None:
        """What was committed since the last time."""
        wal = Wal.of(self.path)
        with wal.file.open("rb") as file:
            head = file.read(HEAD)
            first = self._frames if head == self._head else 0
            file.seek(HEAD + first * (FRAME + PAGE))
            frames = [file.read(FRAME + PAGE) for _ in range(first, wal.frames)]
        handle = os.open(self.path / NOTES, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(handle, _pairs([head]), 0)
            os.pwrite(handle, _pairs(frames), 8 * (1 + first))
        finally:
            os.close(handle)
        self._head, self._frames = head, wal.frames


def mend(path: Path) -> bool:
    """Flips back a flipped bit of the log's head or of its first bad frame, if there is one."""
    file = path / "store.db-wal"
    if not file.exists() or not (path / NOTES).exists():
        return False
    data, notes = bytearray(file.read_bytes()), (path / NOTES).read_bytes()
    sums = np.frombuffer(notes[: len(notes) // 8 * 8], "<u4").reshape(-1, 2)
    if len(data) < HEAD or not len(sums):
        return False
    bad, place, size = 0, 0, HEAD
    if _head_sound(data):
        place, so_far, size = HEAD, _told(data, 24), FRAME + PAGE
        bad = 1
        while (after := _after(data, place, so_far)) is not None:
            place, so_far, bad = place + size, after, bad + 1
    if bad >= len(sums) or (fixed := mended(bytes(data[place : place + size]), sums[bad])) is None:
        return False
    data[place : place + size] = fixed
    write_durably(file, [bytes(data)])
    return True


def _head_sound(data: bytearray) -> bool:
    magic, version = _told(data, 0)
    return magic & ~1 == 0x377F0682 and version == 3007000 and _sum(data[:24], (0, 0), data) == _told(data, 24)


def _after(data: bytearray, start: int, so_far: Pair) -> Pair | None:
    """The checksum after the frame that starts here; None if it is no good frame."""
    if start + FRAME + PAGE > len(data) or data[start + 8 : start + 16] != data[16:24]:
        return None
    found = _sum(data[start : start + 8] + data[start + FRAME : start + FRAME + PAGE], so_far, data)
    return found if found == _told(data, start + 16) else None


def _sum(covered: bytearray, so_far: Pair, data: bytearray) -> Pair:
    a, b = so_far
    words = np.frombuffer(covered, _order(data)).tolist()
    for x, y in zip(words[::2], words[1::2], strict=True):
        a = (a + x + b) & MASK
        b = (b + y + a) & MASK
    return a, b


def _told(data: bytearray, place: int) -> Pair:
    first, second = struct.unpack_from(">II", data, place)
    return first, second


def _order(data: bytearray) -> str:
    """Of the words that are summed: the last bit of the magic number says."""
    return ">u4" if data[3] & 1 else "<u4"


def _pairs(blocks: list[bytes]) -> bytes:
    return np.array([pair(block) for block in blocks], "<u4").tobytes()
