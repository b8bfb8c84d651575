"""Processes on a failing disk, or without memory: each takes the same steps, gets one fault, and goes on if it can.

The parent forks, for each fault, a child that gets it, then a child that opens what is left, on a system that works
again. It prints one JSON object: for each kind how many faults there are, which errors were reported, and what went
wrong at which.
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
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from stillhash import Collection
from stillhash.collection.storage.segments import CodeTable
from stillhash.errors import BadState, StillhashError, StoreFailed
from tests.collection import disk
from tests.collection.compaction_process import SEGMENT_ROWS
from tests.collection.crash_writer import KEEP, open_collection, take, take_on_twin
from tests.collection.fixtures import BITS, INIT, LEARN, some_rows
from tests.collection.reference import Twin
from tests.collection.test_crash import differs

CHILD_TIMEOUT = 60  # seconds; a child takes a fraction of one
NO_CALL = 10**9  # no call has this number
SHAKY_PATTERNS = 2000  # of faults of a shaky disk
FIT_STEP = 2  # after hash functions are fitted; a shaky disk is stable before
STEPS: list[tuple[str, Any]] = [
    ("add", (["early"], *some_rows(1, seed=1))),
    ("add", (list(range(320)), *some_rows(320))),
    ("learn", some_rows(10, seed=2)[:2]),
    ("upsert", (list(range(300, 345)), *some_rows(45, seed=3))),
    ("delete", list(range(0, 100, 3))),
    ("seal", None),
    ("add", (["late", "later"], *some_rows(2, seed=4))),
    ("reopen", None),
    ("learn", some_rows(5, seed=5)[:2]),
    ("compact", None),
    ("rollback", None),
    ("tag", "good"),
    ("feedback", (some_rows(1, seed=3).X[0], [120, 121], [True, False], "source")),
    ("search", some_rows(4, seed=8).X),
    ("upsert", (list(range(40, 100)), *some_rows(60, seed=6))),
    ("seal", None),
    ("delete", list(range(100, 120))),
    ("compact", None),
]
COMMITTED = "add", "upsert", "delete", "compact"  # other steps may have nothing to do
LAST: tuple[str, Any] = "upsert", (list(range(310, 370)), *some_rows(60, seed=7))  # enough of them to learn from


class Faults(Protocol):
    """What fails, of a kind, at a call of a number."""

    reported: tuple[type[StillhashError], ...]  # errors by which steps may report the fault

    def start(self, kind: str, at: int) -> None: ...
    def call_count(self) -> int: ...
    def failed_calls(self) -> int: ...
    def before_check(self) -> None: ...  # ends what the check itself would not survive
    def recover(self) -> None: ...


class DiskFaults:
    """Faults of the disk (disk.py)."""

    reported = StoreFailed, BadState
    call_count, failed_calls = staticmethod(disk.call_count), staticmethod(disk.failed_calls)
    recover = staticmethod(disk.recover)

    def start(self, kind: str, at: int) -> None:
        disk.fail(kind, at, torn=at % 2 == 0)

    def before_check(self) -> None:
        """Go on: a check expects a failing disk."""


@cache
def twin_of(*steps: int) -> Twin:
    """Return a reference model that has taken these steps; children inherit those of the parent."""
    if not steps:
        return Twin(BITS, INIT, LEARN, KEEP)
    twin = deepcopy(twin_of(*steps[:-1]))
    take_on_twin(twin, *STEPS[steps[-1]])
    return twin


class Run:
    """A process that gets the fault."""

    def __init__(self, path: str, faults: Faults) -> None:
        self.path, self.faults = path, faults
        self.errors: Counter[str] = Counter()
        self.collection: Collection | None = None
        self.done: list[int] = []
        self.uncertain: list[int] = []  # failed since the last commit; one of them may appear, from the WAL

    def step(self, number: int) -> None:
        try:
            if self.collection is None or STEPS[number][0] == "reopen":
                self.reopen()
            if STEPS[number][0] != "reopen":
                self.take(number)
        except self.faults.reported as error:
            self.errors[type(error).__name__] += 1
            self.check()

    def reopen(self) -> None:
        if self.collection is not None:
            self.collection.close()
            self.collection = None
        self.collection = open_collection(self.path)
        self.check()

    def take(self, number: int) -> None:
        assert self.collection is not None
        self.uncertain.append(number)
        take(self.path, self.collection, *STEPS[number])
        self.done.append(self.uncertain.pop())
        if STEPS[number][0] in COMMITTED:
            self.uncertain.clear()
        self.check()

    def check(self) -> None:
        """Check that completed steps are there, and failed ones whole or not at all; read errors are fine."""
        if self.collection is not None and self.faults.failed_calls():
            self.faults.before_check()
            try:
                self.done, self.uncertain = settle(self.collection, self.done, self.uncertain)
            except self.faults.reported:
                return


def settle(collection: Collection, done: list[int], uncertain: list[int]) -> tuple[list[int], list[int]]:
    """Return the steps that the collection shows as done, and those that may still appear."""
    if not differs(collection, twin_of(*done)):
        return done, uncertain
    for number in uncertain:
        if not differs(collection, twin_of(*done, number)):
            return [*done, number], []
    raise AssertionError(f"steps {done} are done, of {uncertain} one may be, but something else is there")


def run_with_fault(path: str, faults: Faults, kind: str, at: int) -> dict[str, Any]:
    run = Run(path, faults)
    for number in range(len(STEPS)):
        if number == (FIT_STEP if kind == "shaky" else 0):
            faults.start(kind, at)
        run.step(number)
    if run.collection is not None and at % 4 < 2:  # else it ends as if it were killed
        run.collection.close()
    return {"done": run.done, "uncertain": run.uncertain, "calls": faults.call_count(), "errors": run.errors}


def recover(path: str, faults: Faults, done: list[int], uncertain: list[int]) -> dict[str, Any]:
    faults.recover()
    with open_collection(path) as collection:
        done, _ = settle(collection, done, uncertain)
        assert collection.verify() == []
        take(path, collection, *LAST)
        twin = deepcopy(twin_of(*done))
        take_on_twin(twin, *LAST)
        assert not differs(collection, twin)
    return {}


def run_in_fork(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of a child; "wrong" says how it failed, or that it did not end."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(CHILD_TIMEOUT)
        try:
            result = work()
        except BaseException:
            result = {"wrong": traceback.format_exc()[-10_000:]}
        os.write(writing, json.dumps(result).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        output = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(output) if output else {"wrong": f"the process ended with {status}"}


def try_fault(path: str, faults: Faults, kind: str, at: int) -> dict[str, Any]:
    """Try one fault, from an empty disk on; return what was reported, and what went wrong."""
    result = run_in_fork(lambda: run_with_fault(path, faults, kind, at))
    faults.recover()
    if "wrong" not in result:
        result |= run_in_fork(lambda: recover(path, faults, result["done"], result["uncertain"]))
    shutil.rmtree(path, ignore_errors=True)
    return result


def count_calls(path: str, faults: Faults, kind: str) -> int:
    """Count the calls of this kind in a run without a fault; children inherit what it loads and computes."""
    result = run_with_fault(path, faults, "dead" if kind == "shaky" else kind, NO_CALL)
    twin_of(*result["done"])
    recover(path, faults, result["done"], [])
    shutil.rmtree(path)
    return SHAKY_PATTERNS if kind == "shaky" else int(result["calls"])


def try_faults(path: str, faults: Faults, kind: str, most: int, seed: str) -> dict[str, Any]:
    """Try faults of one kind, each from an empty disk on."""
    calls = count_calls(path, faults, kind)
    calls_to_fail = sorted(random.Random(seed).sample(range(1, calls + 1), min(most, calls)))
    results = {at: try_fault(path, faults, kind, at) for at in calls_to_fail}
    errors = sum((Counter(result.get("errors", {})) for result in results.values()), Counter[str]())
    wrong = {at: result["wrong"] for at, result in results.items() if "wrong" in result}
    return {"calls": calls, "tried": len(calls_to_fail), "errors": errors, "wrong": wrong}


if __name__ == "__main__":
    CodeTable.segment_rows = 2 * SEGMENT_ROWS  # so that a compaction has several steps
    root, most, seed, *kinds = sys.argv[1:]
    disk.watch(Path(root))
    print(json.dumps({kind: try_faults(f"{root}/store", DiskFaults(), kind, int(most), seed) for kind in kinds}))
