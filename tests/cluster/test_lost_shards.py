"""Kill and stop the processes of shards under load: no answer is wrong, and none lacks rows without saying so."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash.cluster import ClusterIndex, ClusterReader
from stillhash.cluster.reader import PartialHits
from stillhash.errors import Unreachable
from tests.cluster.search_load import DEADLINE, SEGMENTS, reference_index, search_load, wait_until
from tests.cluster.shard_children import ShardChildren

pytestmark = pytest.mark.slow


@contextmanager
def child_index(
    folder: Path, codes: np.ndarray, shards: int, replicas: int, **options: Any
) -> Iterator[tuple[ClusterIndex, ShardChildren]]:
    children = ShardChildren(folder)
    with ClusterIndex(64, shards, replicas, storage=folder, processes=children, **options) as index:
        for part in np.split(codes, SEGMENTS):
            index.add(part)
        index.wait_ready(DEADLINE)
        wait_until(lambda: set(index.readiness()["replicas"].values()) == {replicas}, "replicas")
        yield index, children


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_replica_costs_no_answer_and_little_throughput(tmp_path: Path, how: int) -> None:
    """Within two seconds of the loss, at least 70 % of the healthy throughput, by the best of three losses."""
    reference, codes, weights = reference_index()
    shares = []
    with child_index(tmp_path, codes, 2, 2, deadline=DEADLINE) as (index, children):
        for _ in range(3):
            with search_load(index, reference, weights, threads=4) as load:
                healthy = load.rate(2.0)
                children.signal(how, 0, 1)
                time.sleep(2.0)
                shares.append(load.rate(2.0) / healthy)
            assert set(load.outcomes) == {"right"}, load.outcomes
            children.signal(signal.SIGKILL, 0, 1)
            children.start(0, 1)
            wait_until(lambda: index.readiness()["replicas"] == {0: 2, 1: 2}, "the new replica")
            if shares[-1] >= 0.7:
                break
    assert max(shares) >= 0.7, shares


def test_a_shard_that_comes_back_is_used_again(tmp_path: Path) -> None:
    reference, codes, weights = reference_index()
    with child_index(tmp_path, codes, 3, 1, deadline=DEADLINE) as (index, children):
        with search_load(index, reference, weights) as load:
            children.signal(signal.SIGKILL, 1)
            assert not index.readiness()["ready"] or index.readiness()["replicas"].get(1)
            wait_until(lambda: index.readiness()["missing"] == [1], "loss of a shard")
            children.start(1)
            load.wait_for_answers()
        assert set(load.outcomes) == {"right"}, load.outcomes


def test_a_stuck_shard_delays_nobody_past_the_deadline(tmp_path: Path) -> None:
    """All callers get the hits of the healthy shards, however many wait, and the share that is missing."""
    reference, codes, weights = reference_index()
    with child_index(tmp_path, codes, 3, 1) as (index, children):
        stuck = index.manifest.of_shard(1)
        rows = np.concatenate([np.arange(entry.first, entry.last + 1) for entry in stuck])
        reference.remove(rows)
        expected = reference.search(weights, 50)
        partial = ClusterReader(tmp_path, deadline=3.0, partial=True)
        strict = ClusterReader(tmp_path, deadline=3.0)
        for reader in (partial, strict):
            reader.wait_ready(DEADLINE)
        children.signal(signal.SIGSTOP, 1)
        answers: dict[int, PartialHits] = {}

        def search(q: int) -> None:
            answers[q] = partial.search(weights[q], 50)

        threads = [threading.Thread(target=search, args=(q,)) for q in range(len(weights))]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        with pytest.raises(Unreachable, match="shards 1 of 3"):
            strict.search(weights[0], 50)
        for thread in threads:
            thread.join()
        assert time.monotonic() - began < 60  # all together, not one deadline after another
        for q, hits in answers.items():
            assert hits.ids[0].tobytes() == expected.ids[q].tobytes()
            assert hits.missing == len(rows) / len(codes)
        wait_until(lambda: partial.readiness()["missing"] == [1], "loss of the stuck shard")
        partial.deadline = DEADLINE  # for which partial answers do not wait, once a shard is known to be away
        hits = partial.search(weights[0], 50)
        assert hits.missing > 0 and hits.ids[0].tobytes() == expected.ids[0].tobytes()
        children.signal(signal.SIGCONT, 1)
        wait_until(lambda: strict.readiness()["ready"], "return of the shard")
        assert strict.search(weights, 50).missing == 0.0
        partial.close()
        strict.close()


def test_writes_are_acknowledged_while_shards_are_away(tmp_path: Path) -> None:
    reference, codes, weights = reference_index()
    with child_index(tmp_path, codes, 2, 1) as (index, children):
        for shard in range(2):
            children.signal(signal.SIGKILL, shard)
        index.add(codes[:100])
        reference.add(codes[:100])
        assert index.remove([1, 2, 3]) == reference.remove([1, 2, 3]) == 3
        for shard in range(2):
            children.start(shard)
        index.deadline = DEADLINE
        assert index.search(weights, 300).ids.tobytes() == reference.search(weights, 300).ids.tobytes()
