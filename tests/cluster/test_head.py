"""The head of Ray is killed and started again, with Redis as its memory: shards serve meanwhile and are found after."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stillhash.cluster.local_node import free_port

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed"),
]
# In a process of its own, since this one may be connected to another cluster already.
PROGRAM = """
import os, signal, sys
from pathlib import Path

import numpy as np

from stillhash import Index
from stillhash.cluster import ClusterIndex, LocalCluster
from stillhash.cluster.endpoints import read_endpoints
from tests.contracts.searchers import random_codes
from tests.support.waiting import until

DEADLINE = 120.0
rng = np.random.default_rng(5)
codes, weights = random_codes(rng, 2000, 64, 50), rng.integers(-2, 3, (8, 64)).astype(np.float32)
reference = Index(64, threads=1)
reference.add(codes)
expected = reference.search(weights, 10)


def right(index):
    hits = index.search(weights, 10)
    return hits.ids.tobytes() == expected.ids.tobytes() and hits.scores.tobytes() == expected.scores.tobytes()


def listening_pids(index):
    return {endpoint.name: endpoint.pid for endpoint in read_endpoints(index.storage)}


def is_head(pid):
    return b"gcs_server" in Path(f"/proc/{pid}/cmdline").read_bytes()


with LocalCluster(2, cpus=2, fast_health_check=True, redis=sys.argv[1]) as cluster:
    index = ClusterIndex(64, 2, 1, storage=sys.argv[2], detached=True)
    index.drain(cluster.head)  # whose processes all end with the one that is killed
    index.add(codes)
    index.wait_ready(DEADLINE)
    before = {actor["name"]: actor["pid"] for actor in index.status()["actors"]}
    assert len(before) == 2 and right(index)
    (pid,) = filter(is_head, cluster.processes(cluster.head))
    os.kill(pid, signal.SIGKILL)
    until(lambda: any("head" in problem for problem in index.status()["problems"]), "notice of the lost head", DEADLINE)
    assert all(right(index) for _ in range(50))
    index.remove([0])  # writes need no head either
    reference.remove([0])
    expected = reference.search(weights, 10)
    assert all(right(index) for _ in range(50))
    cluster.restart_head()
    until(lambda: not index.status()["problems"] and index.status()["ready"], "end of the problems", DEADLINE)
    assert {actor["name"]: actor["pid"] for actor in index.status()["actors"]} == before and right(index)
    victim = min(before)
    os.kill(before[victim], signal.SIGKILL)  # the new head restarts actors
    until(lambda: listening_pids(index)[victim] != before[victim] and right(index), "restarted actor", DEADLINE)
    until(lambda: index.status()["ready"], "ready status", DEADLINE)
    assert {actor["name"] for actor in index.status()["actors"]} == set(before)
    index.close()
print("all right")
"""


def test_shards_serve_while_the_head_is_away(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    redis = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
    try:
        words = [sys.executable, "-c", PROGRAM, f"127.0.0.1:{port}", str(tmp_path / "storage")]
        result = subprocess.run(words, capture_output=True, text=True, timeout=500)
    finally:
        redis.send_signal(signal.SIGTERM)
        redis.wait()
    assert result.returncode == 0 and "all right" in result.stdout, result.stdout + result.stderr
