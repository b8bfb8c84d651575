"""Which source files, and how many functions, a call really passes through, as a profiler sees them."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import stillhash

SOURCES = str(Path(stillhash.__file__).parent)


def called_functions(call: Callable[[], Any]) -> Counter[tuple[str, str]]:
    """Return the functions of the package that a call of this thread runs: (file, qualified name), with counts."""
    called: Counter[tuple[str, str]] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCES):
            called[code.co_filename[len(SOURCES) + 1 :], code.co_qualname] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(before)
    return called


def called_files(call: Callable[[], Any]) -> set[str]:
    """Return the files of the package, relative to it, of functions that a call really runs."""
    return {file for file, _ in called_functions(call)}
