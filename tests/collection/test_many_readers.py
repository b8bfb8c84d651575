"""Eight processes ask while one writes: each answer is that of one commit, none older than what had returned by then.

STILLHASH_READ_SECONDS is how long the writer goes on; two minutes make a campaign, and -s shows how
many answers were held against commits.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stillhash import Collection
from tests.collection.fixtures import Rows, begin, some_rows
from tests.collection.reader_process import MARKED, answered, wanted
from tests.collection.reference import Twin
from tests.support.seeds import run_seed

SECONDS = float(os.environ.get("STILLHASH_READ_SECONDS", "1"))
READERS = 8
ROOT = Path(__file__).parents[2]


Change = tuple[Callable[[Collection], Any], Callable[[Twin], Any]]  # of the one, and the same of the other


class Writer:
    """Changes a collection, one commit right after the other; later its twin tells how each should be answered."""

    def __init__(self, collection: Collection, twin: Twin) -> None:
        self.collection, self.twin = collection, twin
        self.number = 0
        self.chance = random.Random(run_seed())
        self.rows = [some_rows(5, seed) for seed in range(97)]
        self.there = list(twin.items)  # but for those that are marked
        self.done: list[tuple[Change, Any]] = []  # and what came of it
        self.returned = [time.monotonic()]
        self.commits = {question: [told] for question, told in wanted(twin).items()}

    def go_on(self, seconds: float) -> None:
        """Changes of every kind, again and again in another order, until the time is over."""
        end = time.monotonic() + seconds
        while len(self.returned) == 1 or time.monotonic() < end:
            changes = self.changes()
            for change in self.chance.sample(changes, len(changes)):
                self.done.append((change, change[0](self.collection)))
                self.returned.append(time.monotonic())

    def bring_twin_along(self) -> None:
        for (_, change), result in self.done:
            assert change(self.twin) in (None, result)
            for question, told in wanted(self.twin).items():
                self.commits[question].append(told)
        assert all(answered(self.collection, question) == told[-1] for question, told in self.commits.items())

    def changes(self) -> list[Change]:
        self.chance.shuffle(self.there)
        gone = [[self.there.pop() for _ in range(5)] for _ in range(4)]
        version = self.chance.choice(self.collection.versions()[-10:])["version"]
        X, labels, _ = self.some()
        return [
            *(self.mark() for _ in range(6)),
            *(self.add() for _ in gone),
            *map(deleting, gone),
            (lambda c: c.learn(X, labels), lambda t: t.learn(X, labels)),
            (lambda c: c.flush(), lambda t: t.flush()),
            (lambda c: c.rollback(version), lambda t: t.rollback(version)),
            *[(lambda c: c.seal(), lambda t: None)] * 2,
            (lambda c: c.compact(), lambda t: None),
        ]

    def some(self) -> Rows:
        self.number += 1
        return self.rows[self.number % len(self.rows)]

    def mark(self) -> Change:
        X, labels, _ = self.some()
        metadata = [{"round": self.number}] * len(MARKED)
        return lambda c: c.upsert(MARKED, X, labels, metadata), lambda t: t.put(MARKED, X, labels, metadata)

    def add(self) -> Change:
        rows = self.some()
        ids = [f"{self.number}/{r}" for r in range(5)]
        self.there += ids
        return lambda c: c.add(ids, *rows), lambda t: t.put(ids, *rows)

    def check(self, question: str, seen: list[tuple[str, float, int]]) -> int:
        """Holds what a reader saw against the commits, in order; how many answers that were."""
        places: dict[str, list[int]] = defaultdict(list)
        at = 0
        for place, told in enumerate(self.commits[question]):
            places[told].append(place)
        for found, asked, _ in seen:
            assert found in places, f"{question}: an answer that no commit has"
            at = max(at, bisect_right(self.returned, asked) - 1)
            later = places[found][bisect_left(places[found], at) :]
            assert later, f"{question}: an answer older than commit {at}"
            at = later[0]
        return sum(times for _, _, times in seen)


def deleting(ids: list[Any]) -> Change:
    return lambda c: c.delete(ids), lambda t: t.delete(ids)


@contextmanager
def looking(path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that ask this collection, all of them ready."""
    command = [sys.executable, "-m", "tests.collection.reader_process", str(path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    readers = [subprocess.Popen(command, **pipes) for _ in range(READERS)]
    try:
        for reader in readers:
            assert reader.stdout is not None and reader.stdout.readline() == "ready\n"
        yield readers
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()


def test_each_answer_is_of_one_commit_in_other_processes(tmp_path: Path) -> None:
    writer = Writer(*begin(tmp_path / "c"))
    with looking(tmp_path / "c") as readers:
        writer.go_on(SECONDS)
        told = [reader.communicate()[0] for reader in readers]
        assert not any(reader.returncode for reader in readers)
    writer.bring_twin_along()
    seen = [(question, past) for each in told for question, past in json.loads(each).items()]
    answers = sum(writer.check(question, past) for question, past in seen)
    changes = sum(len(past) - 1 for _, past in seen)
    assert changes > 0 and writer.collection.verify() == []
    print(f"{answers} answers, {changes} times another than before, and {len(writer.returned)} commits")
