"""A ClusterIndex is a Searcher like the others: the same contract, then what only a cluster does. No Ray is needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stillhash import Index
from stillhash.cluster import ClusterIndex, ClusterReader
from stillhash.cluster.manifest import latest_number
from stillhash.errors import BadState, Closed, StillhashError
from stillhash.search.merge import no_floors
from tests.cluster.shard_threads import thread_index
from tests.contracts.searchers import *  # noqa: F403
from tests.contracts.searchers import Make, random_codes

pytestmark = [pytest.mark.slow, pytest.mark.smoke]


class IndexPool:
    """Makes small indexes, of which only the last few stay open."""

    def __init__(self, folder: Path, max_open: int = 2) -> None:
        self.folder, self.max_open, self.made = folder, max_open, 0
        self.indexes: list[ClusterIndex] = []

    def make(self, bits: int) -> ClusterIndex:
        while len(self.indexes) >= self.max_open:
            self.indexes.pop(0).close()
        self.made += 1
        self.indexes.append(thread_index(self.folder / str(self.made), bits))
        return self.indexes[-1]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IndexPool]:
    pool = IndexPool(tmp_path_factory.mktemp("indexes"))
    yield pool
    for index in pool.indexes:
        index.close()


@pytest.fixture
def make(pool: IndexPool) -> Make:
    return pool.make


def assert_same_hits(
    index: ClusterReader, reference: Index, weights: np.ndarray, k: int, allowed: np.ndarray | None = None
) -> None:
    hits, expected = index.search(weights, k, allowed=allowed), reference.search(weights, k, allowed=allowed)
    assert hits.ids.tobytes() == expected.ids.tobytes() and hits.scores.tobytes() == expected.scores.tobytes()


def test_queries_of_many_threads_each_get_their_own_hits(make: Make) -> None:
    rng = np.random.default_rng(0)
    codes = random_codes(rng, 6000, 64, 40)
    index, reference = make(64), Index(64)
    for start in range(0, 6000, 1000):
        index.add(codes[start : start + 1000])
        reference.add(codes[start : start + 1000])
    weights = rng.integers(-1, 2, (48, 64)).astype(np.float32)
    allowed = [None, rng.random(6000) < 0.3, rng.random(3000) < 0.01]
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


@pytest.mark.parametrize("aggregators", [0, 2])
def test_many_shards_answer_like_one_index_through_aggregators_and_without(tmp_path: Path, aggregators: int) -> None:
    rng = np.random.default_rng(1)
    codes = random_codes(rng, 40_000, 64, 300)
    reference = Index(64, threads=1)
    reference.add(codes)
    weights = rng.integers(-2, 3, (7, 64)).astype(np.float32)
    with thread_index(tmp_path, 64, 20, aggregators=aggregators) as index:
        for part in np.split(codes, 20):
            index.add(part)
        for k in (1, 10, 3000):
            assert_same_hits(index, reference, weights, k)
        allowed = rng.random(40_000) < 0.05
        assert_same_hits(index, reference, weights, 50, allowed)
        hits, expected = index.range_search(weights, 60), reference.range_search(weights, 60)
        assert [h.ids.tobytes() for h in hits] == [h.ids.tobytes() for h in expected]


def test_an_index_is_there_again_after_it_was_closed(tmp_path: Path) -> None:
    codes = random_codes(np.random.default_rng(2), 500, 32)
    weights = np.random.default_rng(3).standard_normal((3, 32)).astype(np.float32)
    reference = Index(32)
    reference.add(codes)
    reference.remove(range(0, 500, 3))
    with thread_index(tmp_path, 32) as index:
        index.add(codes)
        index.remove(range(0, 500, 3))
    with pytest.raises(Closed):
        index.search(weights, 5)
    with thread_index(tmp_path, 32, shards=7) as index:  # it has the shards that it was made with
        assert len(index.manifest.shards) == 3 and index.ids().tolist() == reference.ids().tolist()
        assert_same_hits(index, reference, weights, 400)
        index.add(codes[:2])
        assert index.ids().max() == 501


def test_readers_follow_the_writer_and_need_only_the_storage(tmp_path: Path) -> None:
    codes = random_codes(np.random.default_rng(4), 900, 64)
    weights = np.random.default_rng(5).standard_normal((4, 64)).astype(np.float32)
    reference = Index(64)
    with thread_index(tmp_path, 64) as index:
        readers = [ClusterReader(tmp_path) for _ in range(3)]
        for part in np.split(codes, 3):
            index.add(part)
            reference.add(part)
            for reader in readers:
                reader.refresh()
                assert_same_hits(reader, reference, weights, 30)
        snapshot = readers[0].snapshot()
        index.remove(range(100))
        before = reference.search(weights, 30)
        reference.remove(range(100))
        for reader in readers:
            reader.refresh()
            assert_same_hits(reader, reference, weights, 30)
        hits = snapshot.search_checked(weights, 30, no_floors(4))  # one commit, while others go on
        assert hits.ids.tobytes() == before.ids.tobytes()
        for reader in readers:
            reader.close()


def test_rows_are_spread_over_the_shards(tmp_path: Path) -> None:
    codes = random_codes(np.random.default_rng(6), 100_000, 16)
    with thread_index(tmp_path, 16, 4) as index:
        index.add(codes)
        assert set(index.manifest.shard_rows().values()) == {25_000}
        shard = index.add_shard()
        rows = index.manifest.shard_rows()
        assert shard == 4 and len(index.search(np.ones((1, 16)), 20).ids[0]) == 20
        index.remove_shard(0)
        rows = index.manifest.shard_rows()
        assert 0 not in rows and sum(rows.values()) == 100_000


def test_a_failed_removal_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = random_codes(np.random.default_rng(7), 300, 16)
    with thread_index(tmp_path, 16) as index:
        index.add(codes)
        number, weights = latest_number(index.storage), np.ones((1, 16), np.float32)
        before = index.search(weights, 300)
        moved = tmp_path.rename(tmp_path.with_name("away"))
        with pytest.raises(StillhashError):
            index.remove(range(100))
        with pytest.raises(StillhashError):
            index.add(codes)
        assert len(index.search(weights, 300).ids[0]) == 300  # the shards go on without the storage
        moved.rename(tmp_path)
        assert latest_number(index.storage) == number and len(index) == 300
        assert index.search(weights, 300).ids.tobytes() == before.ids.tobytes()
        assert index.remove(range(100)) == 100 and len(index) == 200


def test_a_damaged_segment_is_named(tmp_path: Path) -> None:
    with thread_index(tmp_path / "a", 64) as index:
        bad = tmp_path / "bad.seg"
        bad.write_bytes(b"STILLSEG" + bytes(5000))
        with pytest.raises(BadState, match="bad"):
            index.add_segments([bad])
        assert len(index) == 0


def test_compaction_goes_on_beside_searches_and_removals(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    codes = random_codes(rng, 6000, 64, 60)
    reference, weights = Index(64), rng.integers(-2, 3, (5, 64)).astype(np.float32)
    with thread_index(tmp_path, 64) as index:
        for part in np.split(codes, 40):
            index.add(part)
            reference.add(part)
        removed = rng.choice(6000, 2500, replace=False)
        assert index.remove(removed) == reference.remove(removed) == 2500
        snapshot, seen = index.snapshot(), list[tuple[int, int]]()
        before, rows = snapshot.search_checked(weights, 40, no_floors(5)), index.manifest.shard_rows()
        assert index.compact(lambda done, rows: seen.append((done, rows))) == 40 - 3
        assert len(index.manifest.segments) == 3 and index.manifest.shard_rows() == rows
        assert seen[-1] == (3500, 3500) and not any(entry.deleted for entry in index.manifest.segments)
        assert_same_hits(index, reference, weights, 6000)
        assert snapshot.search_checked(weights, 40, no_floors(5)).ids.tobytes() == before.ids.tobytes()
        index.add(codes[: len(removed)], removed)  # ids that were removed
        reference.add(codes[: len(removed)], removed)
        assert_same_hits(index, reference, weights, 6000)
    with thread_index(tmp_path, 64) as index:
        assert_same_hits(index, reference, weights, 6000)


def test_an_unknown_device_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^device"):  # noqa: F405
        thread_index(tmp_path / "a", 64, device="gpu")
    with thread_index(tmp_path / "a", 64, device="cpu") as index:
        assert len(index) == 0
