"""Kill actors and remove nodes under load: no answer is wrong, and none lacks rows without saying so."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash import Index
from stillhash.cluster import ClusterIndex, LocalCluster, PartialHits
from stillhash.cluster.local_node import is_running
from stillhash.errors import Conflict, InvalidInput, Unreachable
from tests.contracts.searchers import random_codes

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
ROWS, SEGMENTS = 12_000, 12
DEADLINE = 180.0  # seconds; only a test that fails waits so long


def reference_index() -> tuple[Index, np.ndarray, np.ndarray]:
    """Return one index of rows with many ties, its codes, and queries."""
    rng = np.random.default_rng(5)
    codes = random_codes(rng, ROWS, 64, 50)
    reference = Index(64, threads=1)
    reference.add(codes)
    return reference, codes, rng.integers(-2, 3, (32, 64)).astype(np.float32)


@contextmanager
def filled_index(folder: Path, codes: np.ndarray, **options: Any) -> Iterator[ClusterIndex]:
    with ClusterIndex(64, storage=folder, threads=1, **options) as index:
        for part in np.split(codes, SEGMENTS):
            index.add(part)
        yield index


@contextmanager
def search_load(index: ClusterIndex, reference: Index, weights: np.ndarray, threads: int = 3) -> Iterator[Counter[str]]:
    """Search all the time in threads, and count right, wrong and failed answers."""
    stop, outcomes = threading.Event(), Counter[str]()

    def search(turn: int) -> None:
        while not stop.is_set():
            q, k = turn % len(weights), (1, 10, 300)[turn % 3]
            turn += 1
            try:
                hits, expected = index.search(weights[q], k), reference.search(weights[q], k)
            except BaseException as error:
                outcomes[f"raised {error!r}"] += 1
                continue
            right = hits.ids.tobytes() == expected.ids.tobytes() and hits.scores.tobytes() == expected.scores.tobytes()
            outcomes["right" if right else "wrong"] += 1

    searchers = [threading.Thread(target=search, args=(n,)) for n in range(threads)]
    for searcher in searchers:
        searcher.start()
    try:
        wait_for_answers(outcomes)
        yield outcomes
        wait_for_answers(outcomes)
    finally:
        stop.set()
        for searcher in searchers:
            searcher.join()


def wait_for_answers(outcomes: Counter[str], count: int = 10) -> None:
    """Wait until there are so many more answers, or one that is not right."""
    target = outcomes["right"] + count
    wait_until(lambda: outcomes["right"] >= target or set(outcomes) != {"right"}, "answers")


def wait_until(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"no {what} in {DEADLINE:g} seconds"
        time.sleep(0.05)


def kill_actor(index: ClusterIndex, shard: int = 0, replica: int = 0) -> int:
    pid = next(a["pid"] for a in index.status()["actors"] if (a["shard"], a["replica"]) == (shard, replica))
    os.kill(pid, signal.SIGKILL)
    return int(pid)


def actor_nodes(index: ClusterIndex) -> set[str]:
    return {actor["node"] for actor in index.status()["actors"]}


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_actor_is_killed_under_load(cluster: LocalCluster, tmp_path: Path, replicas: int) -> None:
    reference, codes, weights = reference_index()
    with filled_index(tmp_path, codes, shards=2, replicas=replicas, deadline=DEADLINE) as index:
        index.wait_ready(DEADLINE)
        twins = [{a["node"] for a in index.status()["actors"] if a["shard"] == shard} for shard in range(2)]
        assert all(len(nodes) == replicas for nodes in twins)
        removed = np.arange(100)
        assert index.remove(removed) == reference.remove(removed) == 100
        index.wait_ready(DEADLINE)
        with search_load(index, reference, weights) as outcomes:
            pid = kill_actor(index, replica=replicas - 1)
            wait_for_answers(outcomes)
            index.wait_ready(DEADLINE)
        assert set(outcomes) == {"right"}, outcomes
        wait_until(lambda: index.status()["ready"], "ready status")
        status = index.status()
        assert pid not in [actor["pid"] for actor in status["actors"]]
        rows = {shard["shard"]: shard["rows"] for shard in status["shards"]}
        assert all(actor["rows"] == rows[actor["shard"]] for actor in status["actors"])
        index.add(codes[:100], removed)  # the restarted actor takes part in writes
        reference.add(codes[:100], removed)
        assert index.search(weights, 50).ids.tobytes() == reference.search(weights, 50).ids.tobytes()


def test_nodes_leave_and_join_under_load(cluster: LocalCluster, tmp_path: Path) -> None:
    reference, codes, weights = reference_index()
    with filled_index(tmp_path, codes, shards=4, deadline=DEADLINE) as index:
        index.wait_ready(DEADLINE)
        with search_load(index, reference, weights) as outcomes:
            lost = cluster.nodes[-1]
            pids = {a["pid"] for a in index.status()["actors"] if a["node"] == lost}
            assert pids and cluster.remove_node() == lost
            assert not any(is_running(pid) for pid in pids)  # no actor of the lost node still answers
            wait_until(lambda: lost not in index.status()["nodes"], "notice of the lost node")
            index.wait_ready(DEADLINE)
            wait_for_answers(outcomes)
            assert not pids & {a.get("pid") for a in index.status()["actors"]}
            assert lost not in actor_nodes(index)
            new = cluster.add_node()
            wait_until(lambda: new in actor_nodes(index), "actor on the new node")
            wait_for_answers(outcomes)
            assert index.drain(new) == 1 and new not in actor_nodes(index)
        assert set(outcomes) == {"right"}, outcomes
        with pytest.raises(InvalidInput, match=r"^node"):
            index.drain("x")
        last = index.status()["actors"][0]["node"]
        for node in set(index.status()["nodes"]) - {last, new}:
            index.drain(node)
        assert actor_nodes(index) == {last}
        with pytest.raises(Conflict, match=r"^node"):
            index.drain(last)
        assert index.search(weights, 9).ids.tobytes() == reference.search(weights, 9).ids.tobytes()


def test_a_new_shard_is_filled_under_load(cluster: LocalCluster, tmp_path: Path) -> None:
    reference, codes, weights = reference_index()
    with filled_index(tmp_path, codes, shards=1, deadline=DEADLINE) as index:
        removed = np.arange(0, ROWS, 7)
        assert index.remove(removed) == reference.remove(removed)
        with search_load(index, reference, weights) as outcomes:
            assert index.add_shard() == 1 and index.rebalance() > 0
        assert set(outcomes) == {"right"}, outcomes
        rows = [shard["rows"] for shard in index.status()["shards"]]
        assert sum(rows) == len(reference) == len(index) and abs(rows[0] - rows[1]) <= ROWS // SEGMENTS
        assert index.codes(np.arange(1, 7)).tobytes() == codes[1:7].tobytes()


def test_a_shard_that_does_not_reply_is_reported(cluster: LocalCluster, tmp_path: Path) -> None:
    """The actor is stopped, not dead, so only the deadline notices."""
    reference, codes, weights = reference_index()
    with filled_index(tmp_path, codes, shards=2, deadline=DEADLINE) as index:
        index.wait_ready(DEADLINE)
        pid = next(a["pid"] for a in index.status()["actors"] if a["shard"] == 0)
        other_shard = Index(64)
        for n, part in enumerate(np.split(codes, SEGMENTS)):
            if n % 2:
                other_shard.add(part, np.arange(n * len(part), (n + 1) * len(part)))
        index.deadline = 0.5
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(Unreachable, match=r"^shards 0 of 2"):
                index.search(weights, 5)
            with pytest.raises(Unreachable, match=r"^shards 0"):
                index.codes([0])
            index.partial, index.deadline = True, 3.0  # the other shard replies in milliseconds
            hits = index.search(weights, 5)
            assert isinstance(hits, PartialHits) and hits.missing == 0.5
            assert hits.ids.tobytes() == other_shard.search(weights, 5).ids.tobytes()
            assert all(isinstance(h, PartialHits) and h.missing == 0.5 for h in index.range_search(weights[:2], 3.0))
            index.deadline = 0.5
            assert index.remove([0, 1, 2]) == 3  # the shard reloads when it is back
            with pytest.raises(Unreachable):
                index.add(codes[:5])  # to the smaller shard, which is this one
            assert len(index) == ROWS - 3
        finally:
            os.kill(pid, signal.SIGCONT)
        index.partial, index.deadline = False, DEADLINE
        reference.remove([0, 1, 2])
        assert index.search(weights, 500).ids.tobytes() == reference.search(weights, 500).ids.tobytes()
        index.add(codes[:5], [0, 1, 2, 90_000, 90_001])
        reference.add(codes[:5], [0, 1, 2, 90_000, 90_001])
        assert index.search(weights, 500).ids.tobytes() == reference.search(weights, 500).ids.tobytes()


def test_a_closed_index_leaves_no_files_and_no_processes(cluster: LocalCluster, tmp_path: Path) -> None:
    index = ClusterIndex(64, 2, storage=tmp_path)
    index.add(random_codes(np.random.default_rng(0), 10, 64))
    index.wait_ready(DEADLINE)
    pids = [actor["pid"] for actor in index.status()["actors"]]
    index.close()
    index.close()
    wait_until(lambda: not any(is_running(pid) for pid in pids), "end of the actors")
    assert not list(tmp_path.iterdir())
