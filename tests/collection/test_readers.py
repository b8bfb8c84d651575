"""One process writes, others read: they see each commit as a whole, at once, and cannot write."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import Collection
from stillhash.errors import Closed, Conflict
from stillhash.platform import SYSTEM
from tests.collection.fixtures import DIM, begin, copied, some_rows
from tests.collection.reference import agree
from tests.support.toys import toy

QUERIES = toy(2, DIM, 4, seed=77).X
ROUNDS = 40
MARKED = [f"m{i}" for i in range(5)]

# Answers each line of its input: with the state it sees, or with the result of opening for writing.
READER = """
import json, sys
import numpy as np
import stillhash

path, queries = sys.argv[1], np.array(json.loads(sys.argv[2]), np.float32)
reader = stillhash.open(path, read_only=True)
print("ready", flush=True)
for line in sys.stdin:
    if line == "write\\n":
        try:
            stillhash.open(path).close()
            print(json.dumps("written"), flush=True)
        except stillhash.errors.Conflict as error:
            print(json.dumps(str(error)), flush=True)
        continue
    answers = reader.search(queries, 500)
    hits = [[(hit.id, hit.score) for hit in answer.hits] for answer in answers]
    print(json.dumps([reader.count(), answers[0].version, hits]), flush=True)
"""


@contextmanager
def other_process(script: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, str(path), json.dumps(QUERIES.tolist())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def request(process: subprocess.Popen[str], command: str = "state") -> Any:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(command + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def state(collection: Collection) -> Any:
    answers = collection.search(QUERIES, 500)
    return [collection.count(), answers[0].version, [[[h.id, h.score] for h in answer.hits] for answer in answers]]


def changes(collection: Collection) -> Iterator[Any]:
    """Call each verb that writes."""
    rows = some_rows(60, seed=3)
    yield collection.add([f"t{r}" for r in range(60)], *rows)
    yield collection.upsert(["t1", "t2", "new"], *some_rows(3, seed=4))
    yield collection.delete([5, "t5"])
    yield collection.learn(*rows[:2])
    yield collection.seal()
    yield collection.add(["after"], rows.X[:1], [["a"]])
    yield collection.flush()
    yield collection.rollback(1)
    yield collection.compact()
    yield collection.delete(["new"])
    yield collection.tag(2, "two")


@pytest.mark.medium
def test_another_process_sees_each_commit(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 299)
    with other_process(READER, tmp_path / "c") as reader:
        assert request(reader)[0] == 299
        collection.add(["300th"], *some_rows(1))
        assert request(reader) == state(collection)
        for _ in changes(collection):
            assert request(reader) == state(collection)


@pytest.mark.medium
def test_one_process_writes(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 5)
    with other_process(READER, tmp_path / "c") as other:
        assert "another process" in request(other, "write")
        for settings in ({}, {"dim": DIM}):
            with pytest.raises(Conflict, match="read_only=True"):
                stillhash.open(tmp_path / "c", **settings)
        collection.add(["more"], *some_rows(1))
        collection.close()
        assert request(other, "write") == "written"
        assert request(other)[0] == 6
    with stillhash.open(tmp_path / "c") as again:
        assert len(again) == 6


def test_reader_in_this_process_sees_each_commit(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c")
    with stillhash.open(tmp_path / "c", read_only=True) as reader:
        agree(reader, twin, QUERIES[0])
        for _ in changes(collection):
            assert state(reader) == state(collection)
            assert reader.versions() == collection.versions()
            assert reader.get(["t1", 5]) == collection.get(["t1", 5])
        assert reader.verify() == []


def test_reader_cannot_write(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c")
    collection.close()
    with stillhash.open(tmp_path / "c", read_only=True) as reader:
        before = state(reader), reader.versions(), set((tmp_path / "c").rglob("*"))
        X, labels, metadata = some_rows(2)
        for call in (
            lambda: reader.add(["a", "b"], X, labels, metadata),
            lambda: reader.upsert([1, 2], X),
            lambda: reader.delete([1]),
            lambda: reader.learn(X, labels),
            reader.flush,
            reader.fit,
            lambda: reader.tag(1, "one"),
            lambda: reader.rollback(1),
            reader.seal,
            reader.compact,
        ):
            with pytest.raises(Conflict):
                call()
        assert (state(reader), reader.versions(), set((tmp_path / "c").rglob("*"))) == before


def test_closed_collection_cannot_write(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 5)
    collection.close()
    collection.close()
    with pytest.raises(Closed):
        collection.add(["a"], *some_rows(1))
    with stillhash.open(tmp_path / "c") as again:
        assert len(again) == 5


def replace_marked(collection: Collection, number: int) -> None:
    """Replace five items by five others, in one commit."""
    rows = some_rows(5, seed=number)
    collection.upsert(MARKED, rows.X, rows.labels, [{"round": number}] * 5)


def write_rounds(collection: Collection) -> None:
    for number in range(ROUNDS):
        replace_marked(collection, number)
        if number % 7 == 3:
            collection.seal()
        if number % 10 == 9:
            collection.compact()
        if number % 13 == 5:
            collection.learn(*some_rows(5, seed=number)[:2])


@pytest.mark.medium
def test_threads_see_one_commit_per_answer(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c")
    replace_marked(collection, 0)
    stop, wrong, searches = threading.Event(), list[Any](), [0, 0, 0]

    def search(thread: int) -> None:
        try:
            while not stop.is_set() or not searches[thread]:
                for answer in collection.search(QUERIES, 10, where={"round": {"$exists": True}}):
                    rounds = {hit.metadata["round"] for hit in answer.hits if hit.metadata}
                    if len(answer.hits) != 5 or len(rounds) != 1:
                        wrong.append(answer)
                version = collection.search(QUERIES[0], 500).version
                assert collection.stats()["version"] >= version
                searches[thread] += 1
        except BaseException as error:
            wrong.append(error)
            raise

    threads = [threading.Thread(target=search, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    write_rounds(collection)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong and min(searches) > 0


def test_threads_write_one_after_the_other(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c")
    rows = some_rows(40, seed=6)

    def write(thread: int) -> None:
        for r in range(10):
            collection.add([f"{thread}/{r}"], rows.X[r : r + 1], rows.labels[r : r + 1])
        collection.learn(*rows[:2])

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(collection) == 360 and collection.verify() == []
    assert len(collection.search(QUERIES[0], 1000).hits) == 360
    assert np.all(np.diff([v["version"] for v in collection.versions()]) == 1)


def test_copy_of_closed_collection_opens(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c")
    collection.seal()
    collection.close()
    with stillhash.open(copied(tmp_path / "c", tmp_path / "d")) as copy, stillhash.open(tmp_path / "c") as original:
        original.delete([1])
        agree(copy, twin, QUERIES[0], 500)


@pytest.mark.slow
def test_closing_while_a_thread_writes_leaves_a_sound_store(tmp_path: Path) -> None:
    """Run in a process of its own, since a mistake here would end it."""
    script = """
import sys, threading, numpy as np, stillhash
path, leave, writes = sys.argv[1], sys.argv[2], int(sys.argv[3])
c = stillhash.open(path)
written = threading.Semaphore(0)
def write(n=0):
    try:
        while True:
            c.upsert([f"w{n % 50}"], np.random.default_rng(n).standard_normal((1, 8)))
            n += 1
            written.release()
    except stillhash.errors.Closed:
        pass
threading.Thread(target=write, daemon=True).start()
for _ in range(writes):
    written.acquire()
if leave == "close":
    c.close()
"""
    collection, _ = begin(tmp_path / "c")
    collection.close()
    for writes, leave in enumerate(["close", "exit"] * 3, 1):
        command = [sys.executable, "-c", script, str(tmp_path / "c"), leave, str(writes)]
        done = subprocess.run(command, capture_output=True, check=False, text=True)
        assert done.returncode == 0, done.stderr
        with stillhash.open(tmp_path / "c") as again:
            assert again.verify() == [] and again.count() > 320


@pytest.mark.medium
def test_second_name_of_a_folder_keeps_locks(tmp_path: Path) -> None:
    """Nothing that is opened in between may drop the locks of the first: it still sees what others commit."""
    collection, _ = begin(tmp_path / "c")
    collection.close()
    (tmp_path / "link").symlink_to(tmp_path / "c")
    reader = stillhash.open(tmp_path / "c", read_only=True)
    thread = threading.Thread(target=reader.count)
    thread.start()
    thread.join()
    assert reader.count() == 320
    with stillhash.open(tmp_path / "link", read_only=True) as other:
        assert other.count() == 320
    add = "import sys, numpy as np, stillhash; c = stillhash.open(sys.argv[1]); c.add([sys.argv[2]], np.ones((1, 8)))"
    for n in range(3):
        subprocess.run([sys.executable, "-c", add, str(tmp_path / "c"), f"n{n}"], check=True)
        assert reader.count() == 321 + n
    reader.close()


@pytest.mark.skipif(not SYSTEM.open_files_can_move, reason="the lock cannot be removed while it is open")
def test_a_writer_whose_lock_was_removed_stops_writing(tmp_path: Path) -> None:
    """Another process can then take a new lock, so two would write."""
    first, _ = begin(tmp_path / "c")
    (tmp_path / "c" / "lock").unlink()
    with pytest.raises(Conflict, match=r"^c: its file lock was removed or replaced"):
        first.delete([0])
    with stillhash.open(tmp_path / "c") as second:
        for change in (lambda: first.add(["x"], some_rows(1).X), first.seal, first.compact, first.flush):
            with pytest.raises(Conflict, match="removed or replaced"):
                change()
        second.add(["y"], some_rows(1).X)
        assert [hit.id for hit in first.search(some_rows(1).X[0], 1).hits]  # it still reads
        first.close()
        second.add(["z"], some_rows(1).X)
    with stillhash.open(tmp_path / "c") as again:
        assert again.verify() == [] and again.count() == 322


def test_what_is_created_is_for_the_owner_alone(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        collection, _ = begin(tmp_path / "c")
        collection.seal()
        collection.snapshot(tmp_path / "copy")
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
        collection.close()
    finally:
        os.umask(previous)
    assert len(modes) > 20
    assert {path.name: oct(mode) for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)} == {}
