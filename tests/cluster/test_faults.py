"""Kill actors, nodes, the head, readers and the writer under load: no answer is wrong, and no row is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cluster_processes import Child, marked_code, weigh_first_bit
from stillhash.cluster import ClusterIndex, ClusterReader, LocalCluster
from stillhash.errors import Conflict, InvalidInput, Unreachable
from tests.cluster.fixtures import is_running
from tests.cluster.search_load import DEADLINE, ROWS, SEGMENTS, reference_index, search_load, wait_until
from tests.contracts.searchers import random_codes

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
FIRST = 1_000_000  # of the ids of a writer that is killed


@contextmanager
def filled_index(folder: Path, codes: np.ndarray, **options: Any) -> Iterator[ClusterIndex]:
    with ClusterIndex(64, storage=folder, threads=1, deadline=DEADLINE, **options) as index:
        for part in np.split(codes, SEGMENTS):
            index.add(part)
        wait_until(lambda: set(index.readiness()["replicas"].values()) == {index.replicas}, "replicas")
        yield index


def actors(index: ClusterIndex, shard: int | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = index.status()["actors"]
    return [actor for actor in found if shard in (None, actor["shard"])]


def actor_nodes(index: ClusterIndex) -> set[str]:
    return {actor["node"] for actor in actors(index)}


def assert_same(index: ClusterReader, reference: Any, weights: np.ndarray, k: int = 50) -> None:
    hits, expected = index.search(weights, k), reference.search(weights, k)
    assert hits.ids.tobytes() == expected.ids.tobytes() and hits.scores.tobytes() == expected.scores.tobytes()


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_actor_is_killed_under_load(cluster: LocalCluster, tmp_path: Path, replicas: int) -> None:
    """Ray restarts it, and it serves again without being asked."""
    reference, codes, weights = reference_index()
    with filled_index(tmp_path, codes, shards=2, replicas=replicas) as index:
        for shard in range(2):
            assert len({actor["node"] for actor in actors(index, shard)}) == replicas
        removed = np.arange(100)
        assert index.remove(removed) == reference.remove(removed) == 100
        victim = actors(index, 0)[-1]
        with search_load(index, reference, weights) as load:
            os.kill(victim["pid"], signal.SIGKILL)
            load.wait_for_answers()
            wait_until(lambda: victim["pid"] not in [a["pid"] for a in actors(index)], "notice of the loss")
            wait_until(lambda: index.status()["ready"], "restart of the actor")
        assert set(load.outcomes) == {"right"}, load.outcomes
        assert victim["name"] in [actor["name"] for actor in actors(index)]  # the same actor in a new process
        wait_until(lambda: index.readiness()["replicas"] == dict.fromkeys(range(2), replicas), "its connection")
        rows = {shard["shard"]: shard["rows"] for shard in index.status()["shards"]}
        assert all(actor["rows"] == rows[actor["shard"]] for actor in actors(index))
        index.add(codes[:100], removed)  # the restarted actor follows later commits
        reference.add(codes[:100], removed)
        assert_same(index, reference, weights)


def test_nodes_leave_and_join_under_load(cluster: LocalCluster, tmp_path: Path) -> None:
    reference, codes, weights = reference_index()
    with filled_index(tmp_path, codes, shards=4) as index:
        with search_load(index, reference, weights) as load:
            lost = next(node for node in reversed(cluster.nodes) if node in actor_nodes(index))
            pids = {actor["pid"] for actor in actors(index) if actor["node"] == lost}
            assert pids and cluster.remove_node(lost) == lost
            assert not any(is_running(pid) for pid in pids)  # no actor of the lost node still answers
            wait_until(lambda: lost not in index.status()["nodes"], "notice of the lost node")
            wait_until(lambda: index.status()["ready"], "replacement of its replicas")
            load.wait_for_answers()
            assert not pids & {actor["pid"] for actor in actors(index)} and lost not in actor_nodes(index)
            new = cluster.add_node()
            wait_until(lambda: new in actor_nodes(index), "replica on the new node")
            load.wait_for_answers()
            index.rebalance()  # from here on no replica moves or is being replaced
            held = sum(actor["node"] == new for actor in actors(index))
            assert index.drain(new) == held > 0 and new not in actor_nodes(index)
            assert index.status()["drained"] == [new]
            load.wait_for_answers()
            assert index.undrain(new) > 0 and new in actor_nodes(index) and index.status()["drained"] == []
        assert set(load.outcomes) == {"right"}, load.outcomes
        with pytest.raises(InvalidInput, match=r"^node"):
            index.drain("x")
        last = actors(index)[0]["node"]
        for node in set(index.status()["nodes"]) - {last}:
            index.drain(node)
        assert actor_nodes(index) == {last}
        with pytest.raises(Conflict, match=r"^node"):
            index.drain(last)
        assert_same(index, reference, weights)


def test_shards_come_and_go_under_load(cluster: LocalCluster, tmp_path: Path) -> None:
    reference, codes, weights = reference_index()
    with filled_index(tmp_path, codes, shards=1) as index:
        removed = np.arange(0, ROWS, 7)
        assert index.remove(removed) == reference.remove(removed)
        reader = ClusterReader(tmp_path, deadline=DEADLINE)
        with search_load(index, reference, weights, 2) as load, search_load(reader, reference, weights, 2) as read:
            assert index.add_shard() == 1
            rows = index.manifest.shard_rows()
            assert sum(rows.values()) == len(reference) == len(index) and min(rows.values()) > 0
            load.wait_for_answers()
            index.remove_shard(0)
            read.wait_for_answers()
        reader.close()
        assert set(load.outcomes) == set(read.outcomes) == {"right"}, (load.outcomes, read.outcomes)
        assert {actor["shard"] for actor in actors(index) if not actor["moving"]} == {1}
        assert index.codes(np.arange(1, 7)).tobytes() == codes[1:7].tobytes()


def test_readers_search_while_the_head_is_away(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.cluster.head_loss", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result["outcomes"]) == {"right"} and result["same"] and result["written"], result
    assert any("head" in problem for problem in result["problems"]), result
    assert result["rows"] == ROWS + 10


def test_a_reader_is_killed(cluster: LocalCluster, tmp_path: Path) -> None:
    """Others notice nothing: a reader holds nothing that they need."""
    reference, codes, weights = reference_index()
    with filled_index(tmp_path, codes, shards=2) as index, search_load(index, reference, weights) as load:
        for _ in range(2):
            front = Child("front", tmp_path, DEADLINE)
            front.wait_for("port")
            front.kill()
            load.wait_for_answers()
        assert all(actor["ready"] for actor in actors(index))
    assert set(load.outcomes) == {"right"}, load.outcomes


def test_a_killed_writer_is_replaced_and_no_row_is_lost(cluster: LocalCluster, tmp_path: Path) -> None:
    """The shards are detached and go on; another writer takes over when the lease has run out."""
    reference, codes, weights = reference_index()
    weights = weigh_first_bit(weights)
    with filled_index(tmp_path, codes, shards=2):
        pass
    arguments = tmp_path, cluster.address, 2, 1, 2.0
    writer = Child("writer", *arguments)
    reader = None
    try:
        writer.wait_for("ready")
        reader = ClusterReader(tmp_path, deadline=DEADLINE)
        acknowledged: list[int] = []
        with search_load(reader, reference, weights) as load:
            for turn in range(2):
                writer.send(f"write {FIRST + 1000 * turn}")
                writer.wait_for("acknowledged", 20)
                writer.kill()
                acknowledged += writer.values("acknowledged")
                load.wait_for_answers()
                writer = Child("writer", *arguments)
                writer.wait_for("ready")
        assert set(load.outcomes) == {"right"}, load.outcomes
        writer.send(f"ids {FIRST}")
        ids = writer.wait_for("ids")
        assert len(ids) == len(set(ids)) and set(acknowledged) <= set(ids)
        assert len(set(ids) - set(acknowledged)) <= 2  # rows that were stored when the writer was killed
        reader.refresh()
        assert len(reader) == ROWS + len(ids)
        assert reader.codes(ids).tobytes() == b"".join(marked_code(number).tobytes() for number in ids)
    finally:
        writer.close()
        if reader is not None:
            reader.close()
        with ClusterIndex(64, 2, storage=tmp_path, lease_seconds=2.0):  # not detached: its end stops the shards
            pass


def test_shards_that_cannot_be_placed_are_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"^capacity: expected .*12 replicas of 2 CPUs each"):
        ClusterIndex(64, 12, storage=tmp_path, cpus=2)
    with ClusterIndex(64, 2, storage=tmp_path / "other", cpus=2) as index:  # nothing is left of the attempt
        assert len(actors(index)) == 2
    with ClusterIndex(64, 12, storage=tmp_path, cpus=0.25) as index:  # and the lease is free
        assert len({actor["shard"] for actor in actors(index)}) == 12


def test_a_closed_index_leaves_no_processes(cluster: LocalCluster, tmp_path: Path) -> None:
    index = ClusterIndex(64, 2, storage=tmp_path)
    index.add(random_codes(np.random.default_rng(0), 10, 64))
    index.wait_ready(DEADLINE)
    pids = [actor["pid"] for actor in actors(index)]
    assert len(pids) == 2 and all(is_running(pid) for pid in pids)
    index.close()
    index.close()
    wait_until(lambda: not any(is_running(pid) for pid in pids), "end of the actors")
    assert index.storage.list("endpoints") == []
