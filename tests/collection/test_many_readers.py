"""Eight processes search while one writes: each answer is of one commit, none older than what had returned by then.

STILLHASH_READ_SECONDS is how long the writer runs; two minutes make a campaign, and -s shows how many answers were
compared with commits.
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

import pytest

from stillhash import Collection
from stillhash.collection.storage.segments import CodeTable
from tests.collection.fixtures import Rows, begin, some_rows
from tests.collection.reader_process import MARKED, answer_digest, expected_digests
from tests.collection.reference import Twin
from tests.support.seeds import run_seed

SECONDS = float(os.environ.get("STILLHASH_READ_SECONDS", "1"))
READERS = 8
ROOT = Path(__file__).parents[2]


Change = tuple[Callable[[Collection], Any], Callable[[Twin], Any]]  # of the collection, and of the reference model


class CommitWriter:
    """Changes a collection, commit after commit; afterwards the reference model gives the answers of each."""

    def __init__(self, collection: Collection, twin: Twin) -> None:
        self.collection, self.twin = collection, twin
        self.number = 0
        self.rng = random.Random(run_seed())
        self.rows = [some_rows(5, seed) for seed in range(97)]
        self.ids = list(twin.items)  # without the marked ones
        self.done: list[tuple[Change, Any]] = []  # and its result
        self.returned = [time.monotonic()]
        self.commits = {search: [digest] for search, digest in expected_digests(twin).items()}

    def write(self, seconds: float) -> None:
        """Commit changes of every kind, again and again in another order, until the time is over."""
        end = time.monotonic() + seconds
        while len(self.returned) == 1 or time.monotonic() < end:
            changes = self.changes()
            for change in self.rng.sample(changes, len(changes)):
                self.done.append((change, change[0](self.collection)))
                self.returned.append(time.monotonic())

    def update_twin(self) -> None:
        for (_, change), result in self.done:
            assert change(self.twin) in (None, result)
            for search, digest in expected_digests(self.twin).items():
                self.commits[search].append(digest)
        assert all(answer_digest(self.collection, search) == digest[-1] for search, digest in self.commits.items())

    def changes(self) -> list[Change]:
        self.rng.shuffle(self.ids)
        deleted = [[self.ids.pop() for _ in range(5)] for _ in range(4)]
        version = self.rng.choice(self.collection.versions()[-10:])["version"]
        X, labels, _ = self.some()
        return [
            *(self.mark() for _ in range(6)),
            *(self.add() for _ in deleted),
            *map(deleting, deleted),
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
        self.ids += ids
        return lambda c: c.add(ids, *rows), lambda t: t.put(ids, *rows)

    def check(self, search: str, seen: list[tuple[str, float, int]]) -> int:
        """Compare what a reader saw with the commits, in order; return how many answers that were."""
        places: dict[str, list[int]] = defaultdict(list)
        at = 0
        for place, digest in enumerate(self.commits[search]):
            places[digest].append(place)
        for answer, start, _ in seen:
            assert answer in places, f"{search}: an answer that no commit has"
            at = max(at, bisect_right(self.returned, start) - 1)
            later = places[answer][bisect_left(places[answer], at) :]
            assert later, f"{search}: an answer older than commit {at}"
            at = later[0]
        return sum(times for _, _, times in seen)


def deleting(ids: list[Any]) -> Change:
    return lambda c: c.delete(ids), lambda t: t.delete(ids)


@contextmanager
def reader_processes(path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes that search this collection, and wait until each has searched once."""
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


@pytest.mark.slow
def test_other_processes_see_one_commit_per_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CodeTable, "segment_rows", 64)  # so that a compaction has several steps
    writer = CommitWriter(*begin(tmp_path / "c"))
    with reader_processes(tmp_path / "c") as readers:
        writer.write(SECONDS)
        outputs = [reader.communicate()[0] for reader in readers]
        assert not any(reader.returncode for reader in readers)
    writer.update_twin()
    seen = [(search, past) for output in outputs for search, past in json.loads(output).items()]
    answers = sum(writer.check(search, past) for search, past in seen)
    changes = sum(len(past) - 1 for _, past in seen)
    assert changes > 0 and writer.collection.verify() == []
    print(f"{answers} answers, {changes} times another than before, and {len(writer.returned)} commits")
