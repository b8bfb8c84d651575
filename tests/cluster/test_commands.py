"""The commands of a cluster, as an operator runs them: up, serve, front, status, shards, nodes, down."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash.errors import Busy, NotFound, Unreachable
from tests.cli.commands import LAUNCHER
from tests.cli.commands import stillhash as run
from tests.cluster.search_load import wait_until
from tests.collection.fixtures import begin, some_rows

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.smoke]


@contextmanager
def running(*args: Any, cwd: Path) -> Iterator[dict[str, Any]]:
    """Run a command until the end of the block; yield the JSON object that it prints when it can be used."""
    words = [sys.executable, "-c", LAUNCHER, *map(str, args), "--json"]
    with subprocess.Popen(words, cwd=cwd, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"{args} printed nothing and ended with {process.wait()}"
            yield json.loads(line)
        finally:
            process.terminate()
            process.wait()


def command(*args: Any, cwd: Path) -> dict[str, Any]:
    result = run("cluster", *args, "--json", cwd=cwd)
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def is_ready(client: stillhash.Client) -> bool:
    try:
        return bool(client.ready()["ready"])
    except (Busy, Unreachable):
        return False


def test_a_collection_is_served_by_shards_and_fronts(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "films")
    query = some_rows(1, seed=7).X[0]
    expected = [hit.id for hit in collection.search(query, k=5).hits]
    collection.close()
    with running("cluster", "up", "--nodes", 2, "--cpus", 2, cwd=tmp_path) as cluster:
        serve = ("serve", "films", "--port", 0, "--cluster", cluster["address"], "--shards", 2)
        with running(*serve, cwd=tmp_path) as server, stillhash.Client(server["url"], retries=0) as client:
            wait_until(lambda: is_ready(client), "readiness of the writer")
            with (
                running("cluster", "front", "films.shards", "--port", 0, cwd=tmp_path) as front,
                stillhash.Client(front["url"], retries=0) as reader,
            ):
                wait_until(lambda: is_ready(reader), "readiness of the front")
                assert [hit.id for hit in reader.search(query, k=5).hits] == expected
                url = ("--url", server["url"])
                status = command("status", *url, cwd=tmp_path)
                assert status["ready"] and len(status["nodes"]) == 3 and len(status["actors"]) == 2
                shown = run("cluster", "status", *url, cwd=tmp_path)
                assert all(node[:8] in shown.stdout for node in status["nodes"]) and "ready" in shown.stdout
                node = status["actors"][0]["node"]
                assert command("drain", node[:8], *url, cwd=tmp_path)["moved"] == 1
                assert command("status", *url, cwd=tmp_path)["drained"] == [node]
                command("undrain", node[:8], *url, cwd=tmp_path)
                assert command("add-shard", *url, cwd=tmp_path) == {"shard": 2}
                assert command("remove-shard", 0, *url, cwd=tmp_path) == {"shard": 0}
                command("rebalance", *url, cwd=tmp_path)
                assert command("compact", *url, cwd=tmp_path)["files"] >= 0
                assert [hit.id for hit in reader.search(query, k=5).hits] == expected
        assert command("stop", "films.shards", "--address", cluster["address"], cwd=tmp_path)["stopped"] >= 2
        assert not list((tmp_path / "films.shards" / "endpoints").iterdir())
        assert run("cluster", "down", cwd=tmp_path).returncode == 0
    wait_until(lambda: not (tmp_path / ".stillhash-cluster.json").exists(), "end of the cluster")
    assert run("cluster", "down", cwd=tmp_path).returncode == NotFound.exit_code
