"""A process whose changes to its disk are logged: it changes a collection, and marks each completed step.

Of three seeds one makes a long series in which the collection stays open, so that the WAL fills, is copied to the
database and starts again; the others make short ones in which it is closed and opened again and again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.collection import disk
from tests.collection.crash_writer import open_collection, step_at, take
from tests.collection.fixtures import some_rows

SHORT, LONG = 70, 270  # steps
FIT_STEP = 6  # adds enough rows for hash functions
REOPEN_STEPS = 16  # until it is closed and opened


def step_of(seed: int, number: int) -> tuple[str, Any]:
    return ("upsert", (list(range(320)), *some_rows(320))) if number == FIT_STEP else step_at(seed, number)


def record(root: Path, log: Path, seed: int) -> None:
    disk.watch(root, log)
    path = root / "store"
    collection = open_collection(path)
    for number in range(SHORT if seed % 3 else LONG):
        if seed % 3 and number % REOPEN_STEPS == REOPEN_STEPS - 1:
            collection.close()
            collection = open_collection(path)
        take(path, collection, *step_of(seed, number))
        disk.mark(number + 1)
    collection.close()


if __name__ == "__main__":
    record(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
