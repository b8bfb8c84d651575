"""A move of segments as an operator sees it: over HTTP, in the terminal, and when its server ends."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

import stillhash
from stillhash.cluster import segment_moves
from stillhash.cluster.manifest import read_latest
from stillhash.cluster.placement import plan_moves
from stillhash.cluster.publisher import Publisher
from stillhash.cluster.served import ServedCluster
from stillhash.cluster.storage import Storage
from stillhash.errors import Closed, StillhashError
from tests.cli.commands import LAUNCHER
from tests.cluster.search_load import wait_until
from tests.cluster.shard_threads import thread_index
from tests.collection.fixtures import begin, some_rows
from tests.server.live_server import LiveServer, live_server

STEP_SECONDS = 0.6  # longer than the pause between two looks of the command


class SlowSteps(ServedCluster):
    """Takes its time for each step of a move."""

    def rebalance(self) -> int:
        return self.index.rebalance(lambda done, rows: time.sleep(STEP_SECONDS))


@contextmanager
def unbalanced_server(folder: Path) -> Iterator[LiveServer]:
    """Serve a collection with all its segments in one of two shards."""
    collection, _ = begin(folder / "c")
    with (
        collection,
        thread_index(folder / "shards", collection.bits, shards=1) as index,
        closing(SlowSteps(index, Publisher(collection, index))) as cluster,
    ):
        for number in range(5):
            collection.add([f"{number}-{n}" for n in range(300)], *some_rows(300, seed=number), learn=False)
            cluster.publisher.publish()
        with pytest.MonkeyPatch.context() as patch:  # a shard that stays empty
            patch.setattr("stillhash.cluster.index.plan_moves", lambda manifest: [])
            cluster.add_shard()
        assert len(plan_moves(index.manifest)) >= 2
        with live_server({"c": collection}, None, None, {"c": cluster}) as server:
            yield server


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_moves, "MOVE_STEP_SEGMENTS", 1)


@pytest.mark.slow
def test_progress_is_shown_over_http_and_in_the_terminal(tmp_path: Path) -> None:
    with unbalanced_server(tmp_path) as server, stillhash.Client(server.url) as client:
        assert client.cluster()["segment_moves"] is None
        master, terminal = pty.openpty()
        words = [sys.executable, "-c", LAUNCHER, "cluster", "rebalance", "--url", server.url]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=terminal, text=True) as command:
            os.close(terminal)
            wait_until(lambda: (client.cluster()["segment_moves"] or {}).get("segments"), "progress")
            moves = client.cluster()["segment_moves"]
            assert moves is None or 0 < moves["rows"] <= moves["of_rows"]
            shown = b""
            with suppress(OSError):  # how the end of a terminal is reported
                while data := os.read(master, 4096):
                    shown += data
            os.close(master)
            assert command.stdout is not None and int(command.stdout.read().split()[0]) >= 2
        assert command.returncode == 0, shown
        assert re.search(rb"1 of \d segments moved", shown), shown
        status = client.cluster()
        assert status["segment_moves"] is None and min(shard["rows"] for shard in status["shards"]) > 0


@pytest.mark.slow
def test_a_server_that_ends_leaves_the_rest_of_a_move_to_the_next(tmp_path: Path) -> None:
    errors = list[StillhashError]()

    def rebalance(url: str) -> None:
        with stillhash.Client(url, retries=0) as client:
            try:
                client.rebalance()
            except StillhashError as error:
                errors.append(error)

    with unbalanced_server(tmp_path) as server, stillhash.Client(server.url) as client:
        thread = threading.Thread(target=rebalance, args=(server.url,))
        thread.start()
        wait_until(lambda: (client.cluster()["segment_moves"] or {}).get("segments"), "progress")
        server.executor().close()  # as at the end of the server, once it has waited for requests for some seconds
        thread.join()
    assert [type(error) for error in errors] == [Closed]
    manifest = read_latest(Storage(tmp_path / "shards"))
    assert manifest.shard_rows()[1] > 0 and plan_moves(manifest) != []
    with thread_index(tmp_path / "shards", manifest.bits) as index:
        assert index.rebalance() > 0 and plan_moves(index.manifest) == []
