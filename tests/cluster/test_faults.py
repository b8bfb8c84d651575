"""Actors are killed, nodes go and come, all under load: no answer is wrong, none is short without saying so."""

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
from stillhash.cluster.local import runs
from stillhash.errors import Conflict, InvalidInput, Unreachable
from tests.contracts.searchers import random_codes

ROWS, PARTS = 12_000, 12


def truth() -> tuple[Index, np.ndarray, np.ndarray]:
    """One index of rows with many ties, its codes, and queries."""
    rng = np.random.default_rng(5)
    codes = random_codes(rng, ROWS, 64, 50)
    one = Index(64, threads=1)
    one.add(codes)
    return one, codes, rng.integers(-2, 3, (32, 64)).astype(np.float32)


@contextmanager
def spread(folder: Path, codes: np.ndarray, **about: Any) -> Iterator[ClusterIndex]:
    with ClusterIndex(64, storage=folder, threads=1, **about) as index:
        for part in np.split(codes, PARTS):
            index.add(part)
        yield index


@contextmanager
def load(index: ClusterIndex, one: Index, weights: np.ndarray, threads: int = 3) -> Iterator[Counter[str]]:
    """Threads that search all the time; what became of it."""
    stop, told = threading.Event(), Counter[str]()

    def look(turn: int) -> None:
        while not stop.is_set():
            q, k = turn % len(weights), (1, 10, 300)[turn % 3]
            turn += 1
            try:
                got, wanted = index.search(weights[q], k), one.search(weights[q], k)
            except BaseException as error:
                told[f"raised {error!r}"] += 1
                continue
            right = got.ids.tobytes() == wanted.ids.tobytes() and got.scores.tobytes() == wanted.scores.tobytes()
            told["right" if right else "wrong"] += 1

    lookers = [threading.Thread(target=look, args=(n,)) for n in range(threads)]
    for looker in lookers:
        looker.start()
    try:
        more(told)
        yield told
        more(told)
    finally:
        stop.set()
        for looker in lookers:
            looker.join()


def more(told: Counter[str], count: int = 10) -> None:
    """Waits until there are so many more answers."""
    wanted = told["right"] + count
    until(lambda: told["right"] >= wanted or set(told) != {"right"}, "answers")


def until(true: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, f"no {what} in a minute"
        time.sleep(0.05)


def kill_one(index: ClusterIndex, shard: int = 0, replica: int = 0) -> int:
    pid = next(a["pid"] for a in index.status()["actors"] if (a["shard"], a["replica"]) == (shard, replica))
    os.kill(pid, signal.SIGKILL)
    return int(pid)


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_actor_is_killed_under_load(cluster: LocalCluster, tmp_path: Path, replicas: int) -> None:
    one, codes, weights = truth()
    with spread(tmp_path, codes, shards=2, replicas=replicas, deadline=60.0) as index:
        twins = [{a["node"] for a in index.status()["actors"] if a["shard"] == shard} for shard in range(2)]
        assert all(len(nodes) == replicas for nodes in twins)
        gone = np.arange(100)
        assert index.remove(gone) == one.remove(gone) == 100
        with load(index, one, weights) as told:
            pid = kill_one(index, replica=replicas - 1)
            more(told)
            index.wait_ready()
        assert set(told) == {"right"}, told
        status = index.status()
        assert status["ready"] and pid not in [a["pid"] for a in status["actors"]]
        rows = {shard["shard"]: shard["rows"] for shard in status["shards"]}
        assert all(actor["rows"] == rows[actor["shard"]] for actor in status["actors"])
        index.add(codes[:100], gone)  # whoever was started again takes part in writing
        one.add(codes[:100], gone)
        assert index.search(weights, 50).ids.tobytes() == one.search(weights, 50).ids.tobytes()


def test_nodes_go_and_come_under_load(cluster: LocalCluster, tmp_path: Path) -> None:
    one, codes, weights = truth()
    with spread(tmp_path, codes, shards=4, deadline=60.0) as index:
        with load(index, one, weights) as told:
            lost = cluster.nodes[-1]
            pids = {a["pid"] for a in index.status()["actors"] if a["node"] == lost}
            assert pids and cluster.remove_node() == lost
            assert not any(runs(pid) for pid in pids)  # none answers on from the dead node
            until(lambda: lost not in index.status()["nodes"], "word of the lost node")
            index.wait_ready()
            more(told)
            assert not pids & {a["pid"] for a in index.status()["actors"]}
            assert lost not in {a["node"] for a in index.status()["actors"]}
            new = cluster.add_node()
            until(lambda: new in {a["node"] for a in index.status()["actors"]}, "actor on the new node")
            more(told)
            assert index.drain(new) == 1 and new not in {a["node"] for a in index.status()["actors"]}
        assert set(told) == {"right"}, told
        with pytest.raises(InvalidInput, match="node is 'x'"):
            index.drain("x")
        last = index.status()["actors"][0]["node"]
        for node in set(index.status()["nodes"]) - {last, new}:
            index.drain(node)
        assert {a["node"] for a in index.status()["actors"]} == {last}
        with pytest.raises(Conflict, match="the last that is not drained"):
            index.drain(last)
        assert index.search(weights, 9).ids.tobytes() == one.search(weights, 9).ids.tobytes()


def test_a_new_shard_is_filled_under_load(cluster: LocalCluster, tmp_path: Path) -> None:
    one, codes, weights = truth()
    with spread(tmp_path, codes, shards=1) as index:
        gone = np.arange(0, ROWS, 7)
        assert index.remove(gone) == one.remove(gone)
        with load(index, one, weights) as told:
            assert index.add_shard() == 1 and index.rebalance() > 0
        assert set(told) == {"right"}, told
        rows = [shard["rows"] for shard in index.status()["shards"]]
        assert sum(rows) == len(one) == len(index) and abs(rows[0] - rows[1]) <= ROWS // PARTS
        assert index.codes(np.arange(1, 7)).tobytes() == codes[1:7].tobytes()


def test_what_does_not_answer_is_told(cluster: LocalCluster, tmp_path: Path) -> None:
    """An actor that is stopped, not dead: nobody but the deadline notices."""
    one, codes, weights = truth()
    with spread(tmp_path, codes, shards=2, deadline=0.5) as index:
        index.wait_ready()
        pid = next(a["pid"] for a in index.status()["actors"] if a["shard"] == 0)
        left = Index(64)
        for n, part in enumerate(np.split(codes, PARTS)):
            if n % 2:
                left.add(part, np.arange(n * len(part), (n + 1) * len(part)))
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(Unreachable, match="shards 0 of 2 did not answer"):
                index.search(weights, 5)
            with pytest.raises(Unreachable, match="shards 0"):
                index.codes([0])
            index.partial = True
            hits = index.search(weights, 5)
            assert isinstance(hits, PartialHits) and hits.missing == 0.5
            assert hits.ids.tobytes() == left.search(weights, 5).ids.tobytes()
            assert all(isinstance(h, PartialHits) and h.missing == 0.5 for h in index.range_search(weights[:2], 3.0))
            assert index.remove([0, 1, 2]) == 3  # it will hear of it
            with pytest.raises(Unreachable):
                index.add(codes[:5])  # to the smaller shard, which is the one
            assert len(index) == ROWS - 3
        finally:
            os.kill(pid, signal.SIGCONT)
        index.partial, index.deadline = False, 30.0
        one.remove([0, 1, 2])
        assert index.search(weights, 500).ids.tobytes() == one.search(weights, 500).ids.tobytes()
        index.add(codes[:5], [0, 1, 2, 90_000, 90_001])
        one.add(codes[:5], [0, 1, 2, 90_000, 90_001])
        assert index.search(weights, 500).ids.tobytes() == one.search(weights, 500).ids.tobytes()


def test_an_index_that_is_closed_leaves_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    index = ClusterIndex(64, 2, storage=tmp_path)
    index.add(random_codes(np.random.default_rng(0), 10, 64))
    pids = [actor["pid"] for actor in index.status()["actors"]]
    index.close()
    index.close()
    until(lambda: not any(runs(pid) for pid in pids), "end of the actors")
    assert not list(tmp_path.iterdir())
