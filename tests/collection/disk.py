"""A disk whose power can be cut, and that can fail: controls disk.cpp, and replays its log.

A process that runs with the library preloaded calls `watch`, then `mark` or `fail`. A `Disk` replays the log, knows
what must be there after a power cut, and makes one of the many folders that may be:

- A file holds what was written before its last sync. Each write since is there, or is not, or is torn between two
  sectors of 512 bytes; what a missing write would have filled is zero.
- A folder knows the names it had at its own last sync. Of what was created, renamed and removed since, the first so
  many changes are there, in order: file systems with a journal keep that order.
- A name without the sync of its file is there with what the file is sure of, which may be nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SECTOR = 512
HEAD = struct.Struct("<IIQqQ")
WRITE, SYNC, RENAME, GROW, REMOVE, CREATE, READ = 1, 2, 4, 8, 16, 32, 64
CHANGES = WRITE | SYNC | RENAME | GROW | REMOVE | CREATE
ONCE, FROM_THEN, NOW_AND_THEN = 0, 1, 2
KINDS = {  # of failing disks: the calls that may fail, the error, and when they do
    "write": (WRITE | GROW, errno.EIO, ONCE),
    "sync": (SYNC, errno.EIO, ONCE),
    "rename": (RENAME, errno.EIO, ONCE),
    "remove": (REMOVE, errno.EIO, ONCE),
    "create": (CREATE, errno.EIO, ONCE),
    "read": (READ, errno.EIO, ONCE),
    "full": (WRITE | GROW | CREATE, errno.ENOSPC, FROM_THEN),
    "read-only": (CHANGES & ~SYNC, errno.EROFS, FROM_THEN),
    "dead": (CHANGES, errno.EIO, FROM_THEN),
    "shaky": (CHANGES, errno.EIO, NOW_AND_THEN),
}


# ---- the library ----


def build(library: Path) -> None:
    source = Path(__file__).with_name("disk.cpp")
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, "-x", "c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)


def preloaded(library: Path) -> dict[str, str]:
    """Return the environment of a process that runs on this disk."""
    before = os.environ.get("LD_PRELOAD", "")  # the runtime of a sanitizer, which must be first
    return {**os.environ, "LD_PRELOAD": f"{before} {library}".strip(), "OPENBLAS_NUM_THREADS": "1"}


def watch(folder: Path, log: Path | None = None) -> None:
    """Watch the files in this folder from now on, and log each change."""
    _library().disk_watch(os.fsencode(folder), None if log is None else os.fsencode(log))


def mark(number: int) -> None:
    """Log that so many steps are acknowledged."""
    _library().disk_mark(ctypes.c_long(number))


def fail(kind: str, at: int, torn: bool = False) -> None:
    """Let the call of this number fail, or on a shaky disk some that the number selects.

    torn: a failing write has written one half.
    """
    calls, error, course = KINDS[kind]
    _library().disk_fail(calls, ctypes.c_long(at), error, course, int(torn))


def call_count() -> int:
    """Return how many calls of the kind there were since `fail`."""
    return int(_library().disk_seen())


def failed_calls() -> int:
    """Return how many of them failed."""
    return int(_library().disk_met())


def recover() -> None:
    """Let all calls succeed again."""
    _library().disk_fail(0, ctypes.c_long(0), 0, 0, 0)


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


# ---- the log ----


class Change(NamedTuple):
    what: str
    path: Path
    file: int  # its inode, which another may have later
    offset: int
    data: bytes


def changes(log: Path) -> Iterator[Change]:
    left = memoryview(log.read_bytes())
    while left:
        what, path, file, offset, data = HEAD.unpack_from(left)
        name, end = HEAD.size + path, HEAD.size + path + data
        yield Change(chr(what), Path(os.fsdecode(bytes(left[HEAD.size : name]))), file, offset, bytes(left[name:end]))
        left = left[end:]


# ---- what may be left ----


class File:
    def __init__(self) -> None:
        self.sure = bytearray()
        self.since: list[tuple[int, bytes | None]] = []  # data written at a place, or None for a new size

    def sync(self) -> None:
        for offset, data in self.since:
            _put(self.sure, offset, data)
        self.since.clear()

    def left(self, rng: random.Random, share: float | None) -> bytes:
        """Return what may be there; share: of the changes since the sync, None for any of them and torn ones."""
        content = bytearray(self.sure)
        first = len(self.since) if share is None else round(share * len(self.since))
        for offset, data in self.since[:first]:
            if share is None and data is not None:
                offset, data = _torn(offset, data, rng)
            if share is not None or rng.random() < 0.6:
                _put(content, offset, data)
        return bytes(content)


class Folder:
    def __init__(self) -> None:
        self.sure: dict[str, File | Folder] = {}
        self.now: dict[str, File | Folder] = {}
        self.since: list[dict[str, File | Folder | None]] = []  # names that change together, None for a removed one

    def change(self, names: dict[str, File | Folder | None]) -> None:
        self.since.append(names)
        _name(self.now, names)

    def sync(self) -> None:
        self.sure = dict(self.now)
        self.since.clear()

    def left(self, share: float) -> dict[str, File | Folder]:
        names_left = dict(self.sure)
        for names in self.since[: round(share * len(self.since))]:
            _name(names_left, names)
        return names_left


class Disk:
    """What must be in a folder, and what may be."""

    def __init__(self, root: Path) -> None:
        self.root, self.top = root, Folder()
        self.files: dict[int, File] = {}
        self.marked = 0  # steps acknowledged

    def play(self, change: Change) -> None:
        if change.what in "wts":
            self._on_file(change)
        elif change.what == "d":
            self._folder(change.path).sync()
        elif change.what == "a":
            self.marked = change.offset
        else:
            self._on_name(change)

    def _on_file(self, change: Change) -> None:
        file = self.files[change.file]
        if change.what == "s":
            file.sync()
        else:
            file.since.append((change.offset, change.data if change.what == "w" else None))

    def _on_name(self, change: Change) -> None:
        folder, name = self._folder(change.path.parent), change.path.name
        if change.what == "c":
            self.files[change.file] = file = File()
            folder.change({name: file})
        elif change.what == "m":
            folder.change({name: Folder()})
        elif change.what == "u":
            folder.change({name: None})
        else:
            to = Path(os.fsdecode(change.data))
            assert change.what in "rl" and to.parent == change.path.parent, "names move within their folder"
            moved = {to.name: folder.now[name]}
            folder.change(moved if change.what == "l" else {name: None, **moved})

    def _folder(self, path: Path) -> Folder:
        folder = self.top
        for name in path.relative_to(self.root).parts:
            node = folder.now[name]
            assert isinstance(node, Folder)
            folder = node
        return folder

    def lose_power(self, to: Path, rng: random.Random) -> None:
        """Make a folder that may be left: one with all, one with nothing, mostly one in between."""
        share = rng.choice([0.0, 1.0, None, None, None])
        _leave(self.top, to, rng, share)


def _leave(folder: Folder, to: Path, rng: random.Random, share: float | None) -> None:
    to.mkdir()
    for name, node in folder.left(_share(rng, share)).items():
        if isinstance(node, Folder):
            _leave(node, to / name, rng, share)
        elif not name.endswith("-shm"):  # memory that processes share; it means nothing to the next
            file_share = rng.choice([None, None, _share(rng, share)]) if share is None else share
            (to / name).write_bytes(node.left(rng, file_share))


def _share(rng: random.Random, share: float | None) -> float:
    return rng.choice([0.0, 1.0, rng.random()]) if share is None else share


def _put(content: bytearray, offset: int, data: bytes | None) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


def _torn(offset: int, data: bytes, rng: random.Random) -> tuple[int, bytes]:
    """Return the write, or one side of it."""
    edges = range(offset - offset % SECTOR + SECTOR, offset + len(data), SECTOR)
    if not edges or rng.random() < 0.7:
        return offset, data
    edge = rng.choice(edges)
    return (offset, data[: edge - offset]) if rng.random() < 0.5 else (edge, data[edge - offset :])


def _name(names: dict[str, File | Folder], changed: dict[str, File | Folder | None]) -> None:
    for name, node in changed.items():
        names.pop(name, None)
        if node is not None:
            names[name] = node
