"""A ClusterIndex is a Searcher like the others: the same contract, then what only a cluster does."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

import stillhash.cluster.index
from stillhash import Index
from stillhash.cluster import ClusterIndex, LocalCluster
from tests.cluster.replica_pool import ReplicaPool
from tests.contracts.searchers import *  # noqa: F403
from tests.contracts.searchers import Make, random_codes

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def pool(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaPool]:
    pool = ReplicaPool(tmp_path_factory.mktemp("segments"), shards=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stillhash.cluster.index, "ReplicaSet", pool.replica_set)
        yield pool
        pool.close()
    assert not list(pool.folder.iterdir())


@pytest.fixture
def make(pool: ReplicaPool) -> Make:
    return pool.make


def assert_same_hits(
    index: ClusterIndex, reference: Index, weights: np.ndarray, k: int, allowed: np.ndarray | None = None
) -> None:
    hits, expected = (searcher.search(weights, k, allowed=allowed) for searcher in (index, reference))
    assert hits.ids.tobytes() == expected.ids.tobytes() and hits.scores.tobytes() == expected.scores.tobytes()


def test_queries_of_many_threads_are_batched_and_each_gets_its_own_hits(pool: ReplicaPool) -> None:
    rng = np.random.default_rng(0)
    codes = random_codes(rng, 6000, 64, 40)
    index, reference = pool.make(64), Index(64)
    for start in range(0, 6000, 1000):
        index.add(codes[start : start + 1000])
        reference.add(codes[start : start + 1000])
    weights = rng.integers(-1, 2, (48, 64)).astype(np.float32)
    allowed = [None, rng.random(6000) < 0.3, rng.random(3000) < 0.01]
    index.timings.clear()
    barrier, failed = threading.Barrier(24), list[int]()

    def search(number: int) -> None:
        barrier.wait()
        for turn in range(6):
            q = (number + 7 * turn) % 48
            try:
                if turn % 3 == 2:
                    hits, expected = (s.range_search(weights[q], float(number)) for s in (index, reference))
                    assert hits[0].ids.tobytes() == expected[0].ids.tobytes()
                rows = weights[q : q + 1 + number % 3]
                assert_same_hits(index, reference, rows, (1, 10, 17, 7000)[q % 4], allowed[number % 3])
            except BaseException:
                failed.append(number)
                raise

    threads = [threading.Thread(target=search, args=(n,)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sum(timing.queries for timing in index.timings) == 24 * 8 and len(index.timings) < 24 * 8


def test_an_invalid_query_does_not_block_others(make: Make) -> None:
    index = make(64)
    index.add(random_codes(np.random.default_rng(0), 100, 64))
    for _ in range(3):
        with pytest.raises(InvalidInput, match=r"^weights"):  # noqa: F405
            index.search(np.ones((1, 63)), 3)
    assert len(index.search(np.ones((1, 64)), 3).ids[0]) == 3
