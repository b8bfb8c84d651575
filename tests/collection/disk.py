"""A disk whose power can be cut, and that can fail: disk.cpp, built and steered, and what its log says of a folder.

A process that runs with the library preloaded calls `watch`, then `mark` or `fail`. Who reads the log plays it on a
`Disk`, which knows what must be there after the power was lost, and makes one of the many folders that may be:

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
    """The environment of a process that is to run on this disk."""
    return {**os.environ, "LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": "1"}


def watch(folder: Path, log: Path | None = None) -> None:
    """From now on it is about the files in this folder, and each change goes to the log."""
    _library().disk_watch(os.fsencode(folder), None if log is None else os.fsencode(log))


def mark(number: int) -> None:
    """Notes in the log that so many steps are acknowledged."""
    _library().disk_mark(ctypes.c_long(number))


def fail(kind: str, at: int, torn: bool = False) -> None:
    """Lets the call of this number fail, or on a shaky disk some that the number chooses.

    torn: a write that fails has taken one half.
    """
    calls, error, course = KINDS[kind]
    _library().disk_fail(calls, ctypes.c_long(at), error, course, int(torn))


def seen() -> int:
    """How many calls of the kind there have been since `fail`."""
    return int(_library().disk_seen())


def met() -> int:
    """How many of them failed."""
    return int(_library().disk_met())


def recover() -> None:
    """Nothing fails any more."""
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

    def left(self, chance: random.Random, share: float | None) -> bytes:
        """What may be there; share: of the changes since the sync, None for any of them and torn ones."""
        content = bytearray(self.sure)
        first = len(self.since) if share is None else round(share * len(self.since))
        for offset, data in self.since[:first]:
            if share is None and data is not None:
                offset, data = _torn(offset, data, chance)
            if share is not None or chance.random() < 0.6:
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
        found = dict(self.sure)
        for names in self.since[: round(share * len(self.since))]:
            _name(found, names)
        return found


class Disk:
    """What is sure to be in a folder, and what may be."""

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
            assert (change.what, to.parent) == ("r", change.path.parent), "names move within their folder"
            folder.change({name: None, to.name: folder.now[name]})

    def _folder(self, path: Path) -> Folder:
        folder = self.top
        for name in path.relative_to(self.root).parts:
            found = folder.now[name]
            assert isinstance(found, Folder)
            folder = found
        return folder

    def lose_power(self, to: Path, chance: random.Random) -> None:
        """Makes a folder that may be left: one with all, one with nothing, mostly one in between."""
        share = chance.choice([0.0, 1.0, None, None, None])
        _leave(self.top, to, chance, share)


def _leave(folder: Folder, to: Path, chance: random.Random, share: float | None) -> None:
    to.mkdir()
    for name, node in folder.left(_share(chance, share)).items():
        if isinstance(node, Folder):
            _leave(node, to / name, chance, share)
        elif not name.endswith("-shm"):  # memory that processes share; it means nothing to the next
            kept = chance.choice([None, None, _share(chance, share)]) if share is None else share
            (to / name).write_bytes(node.left(chance, kept))


def _share(chance: random.Random, share: float | None) -> float:
    return chance.choice([0.0, 1.0, chance.random()]) if share is None else share


def _put(content: bytearray, offset: int, data: bytes | None) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


def _torn(offset: int, data: bytes, chance: random.Random) -> tuple[int, bytes]:
    """The write, or one side of it."""
    edges = range(offset - offset % SECTOR + SECTOR, offset + len(data), SECTOR)
    if not edges or chance.random() < 0.7:
        return offset, data
    edge = chance.choice(edges)
    return (offset, data[: edge - offset]) if chance.random() < 0.5 else (edge, data[edge - offset :])


def _name(names: dict[str, File | Folder], changed: dict[str, File | Folder | None]) -> None:
    for name, node in changed.items():
        names.pop(name, None)
        if node is not None:
            names[name] = node
