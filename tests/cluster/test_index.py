"""A ClusterIndex is a Searcher like the others: the same suite, then what only a cluster does."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from stillhash import Index
from stillhash.cluster import LocalCluster
from tests.cluster.pool import Pool
from tests.contracts.searchers import *  # noqa: F403
from tests.contracts.searchers import Make, random_codes


@pytest.fixture(scope="module")
def pool(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    pool = Pool(tmp_path_factory.mktemp("segments"), shards=3)
    yield pool
    pool.close()
    assert not list(pool.folder.iterdir())


@pytest.fixture
def make(pool: Pool) -> Make:
    return pool.make


def same(index: object, other: object, weights: np.ndarray, k: int, allowed: np.ndarray | None = None) -> None:
    got, wanted = (i.search(weights, k, allowed=allowed) for i in (index, other))  # type: ignore[attr-defined]
    assert got.ids.tobytes() == wanted.ids.tobytes() and got.scores.tobytes() == wanted.scores.tobytes()


def test_queries_of_many_threads_go_together_and_each_gets_its_own(make: Make) -> None:
    rng = np.random.default_rng(0)
    codes = random_codes(rng, 6000, 64, 40)
    index, one = make(64), Index(64)
    for start in range(0, 6000, 1000):
        index.add(codes[start : start + 1000])
        one.add(codes[start : start + 1000])
    weights = rng.integers(-1, 2, (48, 64)).astype(np.float32)
    allowed = [None, rng.random(6000) < 0.3, rng.random(3000) < 0.01]
    index.trips.clear()  # type: ignore[attr-defined]
    start, wrong = threading.Barrier(24), list[int]()

    def look(number: int) -> None:
        start.wait()
        for turn in range(6):
            q = (number + 7 * turn) % 48
            try:
                if turn % 3 == 2:
                    got = index.range_search(weights[q], float(number))
                    wanted = one.range_search(weights[q], float(number))
                    assert got[0].ids.tobytes() == wanted[0].ids.tobytes()
                same(index, one, weights[q : q + 1 + number % 3], (1, 10, 17, 7000)[q % 4], allowed[number % 3])
            except BaseException:
                wrong.append(number)
                raise

    threads = [threading.Thread(target=look, args=(n,)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    trips = index.trips  # type: ignore[attr-defined]
    assert sum(t.queries for t in trips) == 24 * 8 and len(trips) < 24 * 8


def test_a_query_that_is_refused_does_not_hold_up_others(make: Make) -> None:
    index = make(64)
    index.add(random_codes(np.random.default_rng(0), 100, 64))
    for _ in range(3):
        with pytest.raises(InvalidInput):  # noqa: F405
            index.search(np.ones((1, 63)), 3)
    assert len(index.search(np.ones((1, 64)), 3).ids[0]) == 3
