"""Run the code for Windows on a Linux that refuses what Windows refuses.

- `SYSTEM` is `Windows`; the module `msvcrt`, which Linux lacks, locks bytes by handle, as that of Windows does.
- A file that this process has open or mapped cannot be removed, renamed or replaced; nor can a folder that holds one.
- A rename does not replace anything; a folder cannot be opened.
"""

from __future__ import annotations

import asyncio  # noqa: F401
import fcntl
import multiprocessing.connection  # noqa: F401
import os
import shutil
import struct
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np  # noqa: F401 - before `sys.platform` changes, as all that stillhash imports
import safetensors.numpy  # noqa: F401
import threadpoolctl  # noqa: F401

F_OFD_SETLK = 37  # in fcntl.h of Linux: a lock of this open file, not of the process

REAL: dict[str, Callable[..., Any]] = {
    name: getattr(os, name) for name in ("open", "unlink", "remove", "rename", "replace")
}


def stand_in_msvcrt() -> ModuleType:
    """Return what Windows' module `msvcrt` has for locks, by locks of Linux that work alike."""
    module: Any = ModuleType("msvcrt")
    module.LK_UNLCK, module.LK_LOCK, module.LK_NBLCK = 0, 1, 2

    def locking(handle: int, mode: int, count: int) -> None:
        kind = fcntl.F_UNLCK if mode == module.LK_UNLCK else fcntl.F_WRLCK
        start = os.lseek(handle, 0, os.SEEK_CUR)
        fcntl.fcntl(handle, F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, count, 0))

    module.locking = locking
    return module


def used_files() -> set[str]:
    """Return the files that this process has open or mapped."""
    used = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            used.add(str(entry.readlink()))
        except OSError:  # the folder itself, closed by now
            continue
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        used.add(line.partition("/")[1] + line.partition("/")[2])
    return used


def check_unused(path: Any) -> None:
    """Raise what Windows raises if a file, or one in a folder, is in use."""
    name = os.path.realpath(os.path.dirname(os.fspath(path))) + os.sep + os.path.basename(os.fspath(path))  # noqa: PTH120, PTH119
    for used in used_files():
        if used == name or used.startswith(name + os.sep):
            raise PermissionError(13, f"The process cannot access the file because it is being used: {used}", str(path))


def _remove(path: Any, *, dir_fd: int | None = None) -> None:
    if sys._getframe(1).f_globals["__name__"] != "tempfile":  # there Windows has files that are removed when closed
        check_unused(path)
    REAL["unlink"](path, dir_fd=dir_fd)


def _rename(source: Any, target: Any, **options: Any) -> None:
    if os.path.lexists(target):
        raise FileExistsError(17, "Cannot create a file when that file already exists", str(target))
    check_unused(source)
    REAL["rename"](source, target, **options)


def _replace(source: Any, target: Any, **options: Any) -> None:
    check_unused(source)
    check_unused(target)
    if Path(target).is_dir():
        raise PermissionError(13, "Access is denied", str(target))
    REAL["replace"](source, target, **options)


def _open(path: Any, flags: int, *args: Any, **options: Any) -> int:
    if not isinstance(path, int) and Path(os.fsdecode(path)).is_dir():
        raise PermissionError(13, "Permission denied", str(path))
    handle: int = REAL["open"](path, flags, *args, **options)
    return handle


def install() -> None:
    """Do all of the above, before stillhash is imported."""
    assert "stillhash" not in sys.modules
    sys.modules["msvcrt"] = stand_in_msvcrt()
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    before, sys.platform = sys.platform, "win32"
    try:
        import stillhash.platform
    finally:
        sys.platform = before
    assert stillhash.platform.SYSTEM.name == "Windows"
    os.open, os.unlink, os.remove, os.rename, os.replace = _open, _remove, _remove, _rename, _replace  # type: ignore[assignment]
