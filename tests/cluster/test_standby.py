"""A second server of the same collection waits, and takes over when the first one is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash.cluster import LocalCluster
from stillhash.cluster.controller import Controller
from stillhash.cluster.front import FrontCollection
from stillhash.cluster.storage import Storage
from stillhash.errors import StillhashError
from tests.cli.commands import LAUNCHER
from tests.cluster.search_load import DEADLINE, wait_until
from tests.collection.fixtures import begin, some_rows

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def start_server(folder: Path, address: str, log: Path, *options: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", LAUNCHER, "serve", "films", "--port", "0", "--json", "--shards", "1"]
    words += ["--cluster", address, "--storage", "shards", "--log", "text", *options]
    with log.open("w", encoding="utf-8") as errors:
        return subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True)


def read_url(server: subprocess.Popen[str], log: Path) -> str:
    assert server.stdout is not None
    line = server.stdout.readline()
    assert line, log.read_text(encoding="utf-8")
    return str(json.loads(line)["url"])


class WriteLoad(threading.Thread):
    """Adds rows one by one until the server is gone; `acknowledged` are those that it has stored."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.acknowledged, self.tried = url, list[str](), list[str]()
        self.start()

    def run(self) -> None:
        X = some_rows(1, seed=3).X
        with stillhash.Client(self.url, retries=0) as client:
            while True:
                self.tried.append(f"new-{len(self.tried)}")
                try:
                    client.add([self.tried[-1]], X)
                except StillhashError:
                    return
                self.acknowledged.append(self.tried[-1])


def test_a_standby_takes_over_when_the_writer_is_killed(cluster: LocalCluster, tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "films")
    before = collection.ids(limit=5000)
    collection.close()
    logs = tmp_path / "first.log", tmp_path / "standby.log"
    servers = [start_server(tmp_path, cluster.address, logs[0])]
    try:
        url = read_url(servers[0], logs[0])
        servers.append(start_server(tmp_path, cluster.address, logs[1], "--standby"))
        wait_until(
            lambda: "films: another process is writing to it; waiting" in logs[1].read_text(encoding="utf-8"), "message"
        )
        load = WriteLoad(url)
        wait_until(lambda: len(load.acknowledged) >= 20, "writes")
        servers[0].kill()
        load.join()
        with stillhash.Client(read_url(servers[1], logs[1])) as client:
            names: list[Any] = client.ids(limit=5000)
            assert len(names) == len(set(names)) == client.count()
            new = set(names) - set(before)
            assert set(load.acknowledged) <= new <= set(load.tried) and len(load.tried) == len(load.acknowledged) + 1
            client.add(["last"], some_rows(1, seed=4).X)
            names, expected = client.ids(limit=5000), client.search(some_rows(2, seed=5).X, k=400)
            assert "last" in names
            with FrontCollection(tmp_path / "shards", deadline=DEADLINE) as front:
                wait_until(lambda: front.ids(limit=5000) == names, "publication by the new writer")
                assert front.search(some_rows(2, seed=5).X, k=400) == expected
    finally:
        for server in servers:
            server.kill()
            server.wait()
            assert server.stdout is not None
            server.stdout.close()
        Controller(Storage(tmp_path / "shards"), address=cluster.address).close(stop=True)
