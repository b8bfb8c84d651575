"""Control the preloaded system (faults.cpp): what fails, when, and for which sizes; or how far the clock is off.

The processes that run on it map one file, so that a test can change what fails in a server while it runs.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np

LAYOUT = struct.Struct("<8q")  # of Control in faults.cpp
MEMORY, THREAD, LEARN = 1, 2, 4
COURSES = {"once": 0, "from then": 1, "each": 2}
LARGE = 4096  # bytes from which an allocation may fail: a page, so that Python itself can go on
PYTHON_ARENA = 1 << 20  # bytes that Python takes at a time for its small objects
NEVER = 1 << 62

Course = Literal["once", "from then", "each"]


def missing() -> str | None:
    """Return why faults cannot be injected here; None if they can."""
    if sys.platform != "linux":
        return "the library that injects faults needs Linux"
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        return "the library that injects faults needs a C++ compiler"
    return None


def build(source: str, library: Path) -> Path:
    """Compile a library to preload, and return its path."""
    compiler = os.environ.get("CXX", "c++")
    file = Path(__file__).parent / source
    command = [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(library), str(file), "-ldl"]
    subprocess.run(command, check=True)
    return library


class Injection:
    """What fails in the processes that run in `environment`."""

    def __init__(self, library: Path, control: Path) -> None:
        self.library, self.file = library, control
        if not control.exists():
            control.write_bytes(bytes(LAYOUT.size))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), LAYOUT.size)

    @property
    def environment(self) -> dict[str, str]:
        own = {"LD_PRELOAD": str(self.library), "STILLHASH_FAULT_CONTROL": str(self.file)}
        return {**os.environ, **own, "OPENBLAS_NUM_THREADS": "1"}

    @classmethod
    def of_this_process(cls) -> Injection:
        """Return what this process runs on, once it is known from where NumPy allocates arrays."""
        injection = cls(Path(os.environ["LD_PRELOAD"]), Path(os.environ["STILLHASH_FAULT_CONTROL"]))
        injection._write(LEARN, 0, 0, 0, 0, 0, 0)
        array = np.concatenate([np.zeros(LARGE), np.empty(LARGE)])
        array.resize(2 * LARGE)
        injection.stop()
        return injection

    def fail(self, kind: int, course: Course, at: int, least: int = LARGE, *, kernels: bool = False) -> None:
        """Let calls of a kind fail: the one of this number from now on, all from it on, or each such one.

        least: smaller allocations succeed. kernels: all others than those of the native kernels succeed too.
        """
        self._write(0, 0, 0, 0, 0, 0, 0)
        self._write(kind, COURSES[course], at, least, int(kernels), 0, 0)

    def count(self, kind: int, least: int = LARGE, *, kernels: bool = False) -> None:
        """Count the calls of a kind from now on, and let all succeed."""
        self.fail(kind, "once", NEVER, least, kernels=kernels)

    def stop(self) -> tuple[int, int]:
        """Let all calls succeed again; return how many there were, and how many of them failed."""
        seen, failed = self.seen, self.failed
        self._write(0, 0, 0, 0, 0, 0, 0)
        return seen, failed

    def set_clock(self, seconds: float) -> None:
        """Let the clock of the day be so many seconds ahead, or behind."""
        self._control[-8:] = struct.pack("<q", round(seconds * 1e9))

    @property
    def seen(self) -> int:
        return int(struct.unpack_from("<q", self._control, 40)[0])

    @property
    def failed(self) -> int:
        return int(struct.unpack_from("<q", self._control, 48)[0])

    def _write(self, *numbers: int) -> None:
        for place in (6, 5, 4, 3, 2, 1, 0):  # what fails comes last
            struct.pack_into("<q", self._control, 8 * place, numbers[place])
