"""A process that compacts a collection with small segments, and kills itself at a point of it."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import stillhash
from stillhash.collection.storage.segments import CodeTable
from stillhash.collection.storage.store import Store

SEGMENT_ROWS = 64
POINTS = ("step", "files", "commit", "last commit", "removal")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(point: str, count: int) -> Any:
    """Let the process die at the point of this number, from 0; return the progress callback that it needs."""
    left = [count]

    def passed(*_: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            die()

    if point == "step":
        return passed
    name = {"files": "replace_segments", "commit": "replace_segments", "last commit": "finish_compaction"}
    method = name.get(point, "remove_obsolete_files")
    original = getattr(Store, method)

    def wrapped(store: Store, *args: Any, **options: Any) -> Any:
        if point != "commit":
            passed()
        result = original(store, *args, **options)
        if point == "commit":
            passed()
        return result

    setattr(Store, method, wrapped)
    return None


if __name__ == "__main__":
    path, point, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    CodeTable.segment_rows = SEGMENT_ROWS
    progress = die_at(point, count)
    with stillhash.open(path) as collection:
        collection.compact(progress=progress)
    print("done", flush=True)
