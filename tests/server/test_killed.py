"""kill -9 of a server that several clients write to: what it acknowledged is there, and the rest whole or not at all.

STILLHASH_SERVER_KILLS is how many servers are killed; some hundreds make a campaign.
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

KILLS = int(os.environ.get("STILLHASH_SERVER_KILLS", "4"))
CLIENTS = 4
PATIENCE = 0.5  # the longest that a server lives once clients write, in seconds
LONGEST = 60.0  # until something that should have ended is a failure
ROOT = Path(__file__).parents[2]

Rows = dict[str, tuple[list[Any], Any]]  # labels and metadata by id


@contextmanager
def running(path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server in a process of its own, and its address."""
    command = [sys.executable, "-m", "tests.server.fixtures", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().decode().strip()
        finally:
            process.kill()


@dataclass
class Writer:
    """A client that adds rows under names of its own, and notes which of them were acknowledged."""

    name: str
    kept: Rows = field(default_factory=dict)
    unsure: list[Rows] = field(default_factory=list)  # for each request that had no answer, its rows
    number: int = 0
    wrong: list[Exception] = field(default_factory=list)

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
                    self.wrong.append(error)
                    return

    def made(self, n: int) -> tuple[list[str], Any, Rows]:
        """So many new rows, and how they will look when they are asked for."""
        self.number += 1
        ids = [f"{self.name}/{self.number}/{r}" for r in range(n)]
        rows = some_rows(n, seed=self.number)
        return ids, rows, dict(zip(ids, zip(rows.labels, rows.metadata, strict=True), strict=True))

    def by_add(self, client: Client) -> None:
        ids, rows, wanted = self.made(1 + self.number % 30)
        self.told(lambda: client.add(ids, *rows), wanted)

    def by_stream(self, client: Client) -> None:
        ids, rows, wanted = self.made(1 + self.number % 30)
        lines = [
            dict(zip(("id", "features", "labels", "metadata"), row, strict=True))
            for row in zip(ids, *rows, strict=True)
        ]
        self.told(lambda: client.ingest(lines), wanted)

    def told(self, call: Callable[[], int], wanted: Rows) -> None:
        try:
            assert call() == len(wanted)
        except Unreachable:
            self.unsure.append(wanted)
            raise
        self.kept |= wanted


def check(path: Path, writers: list[Writer]) -> None:
    """All that was acknowledged is there; of what was not answered, each request is there as a whole or not at all."""
    with stillhash.open(path) as collection:
        assert collection.verify() == []
        for writer in writers:
            assert writer.wrong == []
            for rows in writer.unsure:
                there = [item is not None for item in collection.get(list(rows))]
                assert all(there) or not any(there), f"{sum(there)} of {len(there)} rows of one request"
                writer.kept |= rows if all(there) else {}
            writer.unsure = []
            found = collection.get(list(writer.kept))
            assert [item and (item.labels, item.metadata) for item in found] == [*writer.kept.values()]
        assert collection.count() == sum(len(writer.kept) for writer in writers)


def test_a_killed_server_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    chance = random.Random(run_seed())
    writers = [Writer(f"client {n}") for n in range(CLIENTS)]
    for _ in range(KILLS):
        with running(tmp_path / "c") as (process, url):
            threads = [threading.Thread(target=writer.work, args=[url]) for writer in writers]
            for thread in threads:
                thread.start()
            time.sleep(chance.uniform(0.05, PATIENCE))
            assert process.poll() is None, "it ended before it was killed"
            os.kill(process.pid, signal.SIGKILL)
            for thread in threads:
                thread.join(LONGEST)
                assert not thread.is_alive()
        check(tmp_path / "c", writers)
    kept = sum(len(writer.kept) for writer in writers)
    print(f"{KILLS} kills, {kept} rows acknowledged")
    assert kept > 0


def test_a_server_that_is_told_to_stop_ends_what_it_began(tmp_path: Path) -> None:
    writer = Writer("client")
    with running(tmp_path / "c") as (process, url):
        thread = threading.Thread(target=writer.work, args=[url])
        thread.start()
        end = time.monotonic() + LONGEST
        while len(writer.kept) < 100 and time.monotonic() < end and thread.is_alive():
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.wait(LONGEST)
        thread.join(LONGEST)
        assert not thread.is_alive() and len(writer.kept) >= 100
    check(tmp_path / "c", [writer])


def test_a_collection_that_is_served_has_one_writer(tmp_path: Path) -> None:
    with running(tmp_path / "c") as (_, url), Client(url) as client:
        client.add([1], some_rows(1).X)
        with stillhash.open(tmp_path / "c", read_only=True) as reader:
            assert reader.count() == 1
        with pytest.raises(Conflict, match="written by another process"):
            stillhash.open(tmp_path / "c")
