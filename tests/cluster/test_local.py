from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from stillhash.cluster import LocalCluster
from stillhash.cluster.local_node import LocalNode, session_processes
from stillhash.errors import InvalidInput, Unreachable
from tests.cluster.fixtures import is_running
from tests.support.waiting import until

pytestmark = pytest.mark.cluster
HEAD_ALONE = """
import time
from stillhash.cluster import LocalCluster
cluster = LocalCluster(0)
print(*cluster.processes(cluster.head), flush=True)
time.sleep(600)
"""


def test_all_nodes_run_on_loopback(cluster: LocalCluster) -> None:
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    assert set(cluster.nodes) < alive and len(alive) == len(cluster.nodes) + 1
    assert all(node["NodeManagerAddress"].startswith("127.") for node in ray.nodes())
    assert cluster.head == ray.get_runtime_context().get_node_id()
    with pytest.raises(InvalidInput, match=r"^node"):
        cluster.remove_node("x")
    with pytest.raises(InvalidInput, match="connected"):
        LocalCluster(0)


def test_every_node_has_its_own_address_and_processes(cluster: LocalCluster) -> None:
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    assert len(set(addresses.values())) == len(addresses)
    groups = [set(cluster.processes(node)) for node in (cluster.head, *cluster.nodes)]
    assert all(groups) and len(set.union(*groups)) == sum(map(len, groups))


@pytest.mark.parametrize("graceful", [False, True])
def test_a_removed_node_leaves_no_process_and_no_folder(cluster: LocalCluster, graceful: bool) -> None:
    node = cluster.add_node()
    pin = NodeAffinitySchedulingStrategy(node, soft=False)
    worker = ray.get(ray.remote(lambda: os.getpid()).options(scheduling_strategy=pin).remote())
    pids = cluster.processes(node)
    assert worker in pids
    folders = {Path(word).parents[2] for pid in pids for word in command(pid) if word.endswith("/sockets/raylet")}
    assert cluster.remove_node(graceful=graceful) == node and node not in cluster.nodes
    assert not any(is_running(pid) for pid in pids)
    assert folders and not any(folder.exists() for folder in folders)


def command(pid: int) -> list[str]:
    return [word.rpartition("=")[2] for word in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [None, "token"])
def test_a_cluster_ends_with_the_process_that_started_it(
    cluster: LocalCluster, mode: str | None, tmp_path: Path
) -> None:
    """Whether nodes ask for a token or not, and although there is one: `ray start` would ask for it."""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text(64 * "a", encoding="utf-8")
    environment = {**os.environ, "HOME": str(tmp_path)} | ({} if mode is None else {"RAY_AUTH_MODE": mode})
    command = [sys.executable, "-c", HEAD_ALONE]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    process.stdout.close()
    process.kill()
    process.wait()
    assert pids
    until(lambda: not any(map(is_running, pids)), "end of the processes of the cluster")


def test_a_node_that_does_not_start_says_why() -> None:
    node = LocalNode("127.0.0.9", ["--no-such-option"], {})
    with pytest.raises(Unreachable, match="no-such-option"):
        node.wait_listening(1)
    node.stop(graceful=False)
    assert not node.folder.exists() and not node.processes


def test_processes_of_a_session_are_found() -> None:
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        assert session_processes(process.pid) == [process.pid]
    finally:
        process.kill()
        process.wait()
    assert session_processes(process.pid) == []
