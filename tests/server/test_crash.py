"""kill -9 of a server that several clients write to: acknowledged rows are stored, the others completely or not at all.

STILLHASH_SERVER_KILLS is the number of servers that are killed; a campaign takes some hundreds.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash import Client
from stillhash.errors import Busy, Conflict, Unreachable
from tests.collection.fixtures import some_rows
from tests.support.seeds import run_seed
from tests.support.waiting import TIMEOUT, until

KILLS = int(os.environ.get("STILLHASH_SERVER_KILLS", "4"))
CLIENTS = 4
MAX_LIFE = 0.5  # seconds that a server lives once rows are acknowledged
ROOT = Path(__file__).parents[2]

Rows = dict[str, tuple[list[Any], Any]]  # labels and metadata by id


@contextmanager
def running(path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start a server in its own process; yield it and its address."""
    command = [sys.executable, "-m", "tests.server.serve_process", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().decode().strip()
        finally:
            process.kill()


@dataclass
class Writer:
    """A client that adds rows under ids of its own, and records which were acknowledged."""

    name: str
    acknowledged: Rows = field(default_factory=dict)
    unanswered: list[Rows] = field(default_factory=list)  # one entry for each request
    number: int = 0
    errors: list[Exception] = field(default_factory=list)

    def work(self, url: str) -> None:
        with Client(url, collection="c", retries=0) as client:
            while True:
                verb = (self.by_add, self.by_stream)[self.number % 2]
                try:
                    verb(client)
                except Busy:
                    time.sleep(0.01)
                except Unreachable:
                    return
                except Exception as error:
                    self.errors.append(error)
                    return

    def new_rows(self, n: int) -> tuple[list[str], Any, Rows]:
        """Return new rows, and their labels and metadata by id."""
        self.number += 1
        ids = [f"{self.name}/{self.number}/{r}" for r in range(n)]
        rows = some_rows(n, seed=self.number)
        return ids, rows, dict(zip(ids, zip(rows.labels, rows.metadata, strict=True), strict=True))

    def by_add(self, client: Client) -> None:
        ids, rows, expected = self.new_rows(1 + self.number % 30)
        self.record(lambda: client.add(ids, *rows), expected)

    def by_stream(self, client: Client) -> None:
        ids, rows, expected = self.new_rows(1 + self.number % 30)
        lines = [
            dict(zip(("id", "features", "labels", "metadata"), row, strict=True))
            for row in zip(ids, *rows, strict=True)
        ]
        self.record(lambda: client.ingest(lines), expected)

    def record(self, call: Callable[[], int], expected: Rows) -> None:
        try:
            assert call() == len(expected)
        except Unreachable:
            self.unanswered.append(expected)
            raise
        self.acknowledged |= expected


def acknowledged(writers: list[Writer]) -> int:
    return sum(len(writer.acknowledged) for writer in writers)


def check(path: Path, writers: list[Writer]) -> None:
    """Acknowledged rows are stored; each unanswered request is stored completely or not at all."""
    with stillhash.open(path) as collection:
        assert collection.verify() == []
        for writer in writers:
            assert writer.errors == []
            for rows in writer.unanswered:
                there = [item is not None for item in collection.get(list(rows))]
                assert all(there) or not any(there), f"{sum(there)} of {len(there)} rows of one request"
                writer.acknowledged |= rows if all(there) else {}
            writer.unanswered = []
            items = collection.get(list(writer.acknowledged))
            assert [item and (item.labels, item.metadata) for item in items] == [*writer.acknowledged.values()]
        assert collection.count() == sum(len(writer.acknowledged) for writer in writers)


@pytest.mark.slow
def test_killed_server_loses_no_acknowledged_rows(tmp_path: Path) -> None:
    rng = random.Random(run_seed())
    writers = [Writer(f"client {n}") for n in range(CLIENTS)]
    for _ in range(KILLS):
        before = acknowledged(writers)
        with running(tmp_path / "c") as (process, url):
            threads = [threading.Thread(target=writer.work, args=[url]) for writer in writers]
            for thread in threads:
                thread.start()
            until(lambda rows=before: acknowledged(writers) > rows)  # so that every server is killed under load
            time.sleep(rng.uniform(0, MAX_LIFE))
            assert process.poll() is None, "it ended before it was killed"
            os.kill(process.pid, signal.SIGKILL)
            for thread in threads:
                thread.join(TIMEOUT)
                assert not thread.is_alive()
        check(tmp_path / "c", writers)
    print(f"{KILLS} kills, {acknowledged(writers)} rows acknowledged")


@pytest.mark.slow
def test_stopped_server_finishes_running_writes(tmp_path: Path) -> None:
    writer = Writer("client")
    with running(tmp_path / "c") as (process, url):
        thread = threading.Thread(target=writer.work, args=[url])
        thread.start()
        until(lambda: acknowledged([writer]) >= 100 or not thread.is_alive())
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT)
        thread.join(TIMEOUT)
        assert not thread.is_alive() and len(writer.acknowledged) >= 100
    check(tmp_path / "c", [writer])


@pytest.mark.slow
def test_served_collection_has_one_writer(tmp_path: Path) -> None:
    with running(tmp_path / "c") as (_, url), Client(url) as client:
        client.add([1], some_rows(1).X)
        with stillhash.open(tmp_path / "c", read_only=True) as reader:
            assert reader.count() == 1
        with pytest.raises(Conflict):
            stillhash.open(tmp_path / "c")
