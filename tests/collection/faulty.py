"""Processes on a disk that fails: each takes the same steps, meets one fault, and goes on as best it can.

The one that is started forks, for each fault, a child that meets it, then a child that opens what is left, on a disk
that works again. It prints one JSON object: for each kind how many faults there are, and what went wrong at which.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from stillhash import Collection
from stillhash.errors import BadState, StoreFailed
from tests.collection import disk
from tests.collection.crash_writer import KEEP, imagine, opened, take
from tests.collection.fixtures import BITS, INIT, LEARN, some_rows
from tests.collection.reference import Twin
from tests.collection.test_crash import differs

PATIENCE = 60  # seconds that a child may take; one takes a fraction of a second
NEVER = 10**9  # no call has this number
SHAKY = 2000  # ways in which a disk can be shaky
FITTED = 2  # the step before which hash functions are fitted; before, a disk that is shaky is not
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
    ("upsert", (list(range(40, 100)), *some_rows(60, seed=6))),
    ("seal", None),
    ("delete", list(range(100, 120))),
    ("compact", None),
]
COMMITTED = "add", "upsert", "delete", "compact"  # other steps may have nothing to do
LAST: tuple[str, Any] = "upsert", (list(range(310, 370)), *some_rows(60, seed=7))  # enough of them to learn from


@cache
def twin_of(*steps: int) -> Twin:
    """A twin that has taken these steps; the children of a process have those that it made."""
    if not steps:
        return Twin(BITS, INIT, LEARN, KEEP)
    twin = deepcopy(twin_of(*steps[:-1]))
    imagine(twin, *STEPS[steps[-1]])
    return twin


class Run:
    """A process that meets the fault."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.collection: Collection | None = None
        self.done: list[int] = []
        self.perhaps: list[int] = []  # failed since the last commit; one of them may come to light, from the WAL

    def step(self, number: int) -> None:
        try:
            if self.collection is None or STEPS[number][0] == "reopen":
                self.reopen()
            if STEPS[number][0] != "reopen":
                self.take(number)
        except (StoreFailed, BadState):
            self.look()

    def reopen(self) -> None:
        if self.collection is not None:
            self.collection.close()
            self.collection = None
        self.collection = opened(self.path)
        self.look()

    def take(self, number: int) -> None:
        assert self.collection is not None
        self.perhaps.append(number)
        take(self.collection, *STEPS[number])
        self.done.append(self.perhaps.pop())
        if STEPS[number][0] in COMMITTED:
            self.perhaps.clear()
        self.look()

    def look(self) -> None:
        """What is done is there, and of what failed all or nothing; where nothing can be read, no answer is wrong."""
        if self.collection is not None and disk.met():
            try:
                self.done, self.perhaps = settled(self.collection, self.done, self.perhaps)
            except (StoreFailed, BadState):
                return


def settled(collection: Collection, done: list[int], perhaps: list[int]) -> tuple[list[int], list[int]]:
    """The steps that the collection shows as done, and those that may yet come to light."""
    if not differs(collection, twin_of(*done)):
        return done, perhaps
    for number in perhaps:
        if not differs(collection, twin_of(*done, number)):
            return [*done, number], []
    raise AssertionError(f"steps {done} are done, of {perhaps} one may be, but something else is there")


def meet(path: str, kind: str, at: int) -> dict[str, Any]:
    run = Run(path)
    for number in range(len(STEPS)):
        if number == (FITTED if kind == "shaky" else 0):
            disk.fail(kind, at, torn=at % 2 == 0)
        run.step(number)
    if run.collection is not None and at % 4 < 2:  # else it ends as if it were killed
        run.collection.close()
    return {"done": run.done, "perhaps": run.perhaps, "seen": disk.seen()}


def recover(path: str, done: list[int], perhaps: list[int]) -> dict[str, Any]:
    disk.recover()
    with opened(path) as collection:
        done, _ = settled(collection, done, perhaps)
        assert collection.verify() == []
        take(collection, *LAST)
        twin = deepcopy(twin_of(*done))
        imagine(twin, *LAST)
        assert not differs(collection, twin)
    return {}


def forked(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a child says; "wrong" tells how it failed, or that it did not end."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(PATIENCE)
        try:
            told = work()
        except BaseException:
            told = {"wrong": traceback.format_exc()[-10_000:]}
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(said) if said else {"wrong": f"the process ended with {status}"}


def tried(path: str, kind: str, at: int) -> str | None:
    """One fault, from an empty disk on; what went wrong."""
    told = forked(lambda: meet(path, kind, at))
    told |= {} if "wrong" in told else forked(lambda: recover(path, told["done"], told["perhaps"]))
    shutil.rmtree(path, ignore_errors=True)
    return told.get("wrong")


def calm(path: str, kind: str) -> int:
    """A run without a fault: how many calls of the kind it has. What it loads and makes, children need not."""
    told = meet(path, "dead" if kind == "shaky" else kind, NEVER)
    twin_of(*told["done"])
    recover(path, told["done"], [])
    shutil.rmtree(path)
    return SHAKY if kind == "shaky" else int(told["seen"])


def all_of(path: str, kind: str, most: int, seed: str) -> dict[str, Any]:
    """Faults of one kind, each from an empty disk on."""
    calls = calm(path, kind)
    chosen = sorted(random.Random(seed).sample(range(1, calls + 1), min(most, calls)))
    wrong = {at: text for at in chosen if (text := tried(path, kind, at))}
    return {"calls": calls, "tried": len(chosen), "wrong": wrong}


if __name__ == "__main__":
    root, most, seed, *kinds = sys.argv[1:]
    disk.watch(Path(root))
    print(json.dumps({kind: all_of(f"{root}/store", kind, int(most), seed) for kind in kinds}))
