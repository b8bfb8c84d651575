"""Processes that upgrade a collection and are killed, or whose disk fails, at a chosen call.

The parent forks a child for each of them, checks what is left, and prints one JSON object: how many were tried, how
often each state was left, and what went wrong at which call.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import traceback
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import stillhash
from stillhash.collection.storage.format_1 import FORMAT_1, stored_format
from stillhash.errors import BadState, StoreFailed
from stillhash.platform import SYSTEM
from tests.collection import disk
from tests.collection.fault_process import NO_CALL, run_in_fork
from tests.collection.format_1 import contents, unpack_golden
from tests.collection.golden import answers

EVENTS = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "sqlite3.connect"}
INTERRUPTED = "interrupted"
LAST_CALLS = 5


class KillAt:
    """An audit hook that kills the process before the n-th thing that Python does to files in a folder."""

    def __init__(self, root: Path, number: int) -> None:
        self.root, self.left, self.seen = str(root), number, 0

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in EVENTS or self.root not in str(args[0]):
            return
        self.seen += 1
        if self.seen == self.left:
            os.kill(os.getpid(), signal.SIGKILL)


@cache
def original(root: Path) -> tuple[Path, dict[str, bytes], Any]:
    """Return a collection of format 1, its files, and what it answers."""
    path, _ = unpack_golden(root)
    return path, contents(path), answers_of(path)


def answers_of(path: Path) -> Any:
    with stillhash.open(path, read_only=True) as collection:
        assert collection.verify() == []
        return answers(collection)


def state_of(path: Path, before: dict[str, bytes], expected: Any) -> str:
    """Return which state an upgrade has left; each must be one that can be read, or be finished."""
    if path.exists():
        assert answers_of(path) == expected
        assert stored_format(path) != FORMAT_1 or contents(path) == before
        return f"format {stored_format(path)}"
    for settings in ({}, {"dim": 8}, {"read_only": True}):
        try:
            stillhash.open(path, **settings).close()
        except BadState as error:
            assert INTERRUPTED in str(error)
        else:
            raise AssertionError("a collection was opened that is not there")
    return INTERRUPTED


def check(path: Path, before: dict[str, bytes], expected: Any) -> str:
    """Check what an upgrade has left, and that the next one ends as if nothing had happened; return the state."""
    state = state_of(path, before, expected)
    stillhash.upgrade(path)
    assert answers_of(path) == expected and stored_format(path) != FORMAT_1
    assert contents(path.with_name("golden.format-1")) == before
    assert {folder.name for folder in path.parent.iterdir()} == {"golden", "golden.format-1"}
    return state


def kill_at(root: Path, number: int) -> dict[str, Any]:
    """Upgrade, and be killed; without that, return how many moments there were."""
    hook = KillAt(root, number)
    sys.addaudithook(hook)
    stillhash.upgrade(root / "golden")
    return {"seen": hook.seen}


def fail_at(root: Path, kind: str, number: int) -> dict[str, Any]:
    """Upgrade on a disk that fails; a failure is reported, and the process goes on."""
    disk.fail(kind, number, torn=number % 2 == 0)
    try:
        stillhash.upgrade(root / "golden")
        failed = False
    except (StoreFailed, BadState):
        failed = True
    return {"seen": disk.call_count(), "failed": failed}


def attempt(root: Path, kind: str, number: int) -> dict[str, Any]:
    """Upgrade a fresh copy in a child, with one fault, and check what is left."""
    source, before, expected = original(root.with_name("original"))
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(source, root / "golden")
    result = run_in_fork(lambda: kill_at(root, number) if kind == "kill" else fail_at(root, kind, number))
    if "wrong" in result and (kind != "kill" or str(-signal.SIGKILL) not in result["wrong"]):
        return result
    result.pop("wrong", None)
    try:
        state = check(root / "golden", before, expected)
        if result.get("failed") and kind in ("write", "create", "read", "full"):
            assert state == f"format {FORMAT_1}", f"it failed, and {state} is there"
        return {**result, "state": state}
    except BaseException:
        return {"wrong": traceback.format_exc()[-10_000:]}


def attempts(root: Path, kind: str, most: int, seed: str) -> dict[str, Any]:
    """Try faults of one kind, chosen at random, and those of the last calls, which swap the folders."""
    first = attempt(root, kind, NO_CALL)
    assert "wrong" not in first, first
    calls = int(first["seen"])
    everywhere, last = range(1, calls + 1), range(max(1, calls - LAST_CALLS), calls + 1)
    numbers = sorted({*random.Random(seed).sample(everywhere, min(most, calls)), *last})
    results = {number: attempt(root, kind, number) for number in numbers}
    wrong = {number: result["wrong"] for number, result in results.items() if "wrong" in result}
    states = Counter(result["state"] for result in results.values() if "state" in result)
    return {"calls": calls, "tried": len(numbers), "states": states, "wrong": wrong}


def record(root: Path, log: Path) -> None:
    """Log all that an upgrade does to the disk, from a collection on that is safely there."""
    _, files, _ = original(root.with_name("original"))
    disk.watch(root, log)
    for name, data in [*files.items(), ("lock", b"")]:
        file = root / "golden" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        SYSTEM.sync(file)
    for folder in (root / "golden" / "segments", root / "golden" / "learner", root / "golden", root):
        SYSTEM.sync(folder)
    disk.mark(1)
    stillhash.upgrade(root / "golden")
    disk.mark(2)


if __name__ == "__main__" and sys.argv[1] == "record":
    record(Path(sys.argv[2]), Path(sys.argv[3]))
elif __name__ == "__main__":
    folder, most, seed, *kinds = sys.argv[1:]
    (Path(folder) / "work").mkdir()
    if kinds != ["kill"]:
        disk.watch(Path(folder) / "work")
    print(json.dumps({kind: attempts(Path(folder) / "work", kind, int(most), seed) for kind in kinds}))
