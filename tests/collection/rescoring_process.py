"""A process that builds rescoring codes, of kept or given features, and kills itself at a point of it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import stillhash
from stillhash.collection.maintenance import rescoring
from stillhash.collection.storage.row_arrays import RowArrayTable
from stillhash.collection.storage.segments import CodeTable
from stillhash.collection.storage.store import Store
from tests.collection.fixtures import some_rows

ROWS, CHUNK, SEGMENT_ROWS = 700, 128, 256
# In a chunk, between two chunks, between two files, before the commit that lets the collection have codes, after it.
POINTS = ("chunk", "chunks", "files", "change", "commit")


def build(collection: stillhash.Collection) -> None:
    """Give the features of all rows again, unless they are kept, and then build all."""
    X = some_rows(ROWS).X
    if not collection.stats()["keep_features"]:
        for start in range(0, ROWS, CHUNK):
            collection.build_rescoring(range(start, min(start + CHUNK, ROWS)), X[start : start + CHUNK])
    assert collection.build_rescoring() == 0


def die_at(holder: Any, name: str, count: int, *, after: bool) -> None:
    """Let the process die before or after the call of this number, from 0."""
    original: Callable[..., Any] = getattr(holder, name)
    calls = iter(range(count, -1, -1))

    def wrapped(*args: Any, **options: Any) -> Any:
        last = next(calls) == 0
        result = None if last and not after else original(*args, **options)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(holder, name, wrapped)


def set_point(point: str) -> None:
    if point == "chunk":
        die_at(rescoring, "add_built", 2, after=True)
    elif point == "chunks":
        die_at(rescoring, "begin_build", 2, after=False)
    elif point == "files":
        die_at(RowArrayTable, "write_values", 1, after=False)
    elif point == "change":
        die_at(rescoring, "_change_over", 0, after=True)
    else:
        die_at(Store, "shrink", 0, after=False)


if __name__ == "__main__":
    path, point = sys.argv[1:]
    CodeTable.segment_rows, rescoring.KEPT_ROWS = SEGMENT_ROWS, CHUNK
    with stillhash.open(path) as collection:
        set_point(point)
        build(collection)
    print("done", flush=True)
