"""A collection with its codes on a cluster returns the same answers as local without; over HTTP too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stillhash
from stillhash.cluster import HybridIndexFactory, LocalCluster, hybrid_index
from stillhash.errors import NotFound
from tests.server.live_server import live_server
from tests.support.toys import toy

pytestmark = pytest.mark.cluster
X, Y = toy(1500)
QUERIES = X[1400:]


def build_collection(path: Path) -> None:
    """Make a collection of two segments, unsealed rows, and deleted ones."""
    with stillhash.open(path, 48, 32, init=(X[:300], Y[:300])) as collection:
        collection.add(range(600), X[:600], Y[:600], [{"n": n} for n in range(600)])
        collection.seal()
        collection.add(range(600, 1200), X[600:1200], Y[600:1200])
        collection.seal()
        collection.add(range(1200, 1300), X[1200:1300], Y[1200:1300])
        collection.delete(range(0, 1300, 7))
        collection.flush()


def test_a_collection_on_a_cluster_returns_the_same_answers(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hybrid_index, "HYBRID_SEGMENT_ROWS", 150)
    for name in ("local", "hybrid"):
        build_collection(tmp_path / name)
    factory = HybridIndexFactory(tmp_path / "segments", 2)
    with (
        stillhash.open(tmp_path / "local") as local,
        stillhash.open(tmp_path / "hybrid", searcher=factory) as hybrid,
    ):

        def assert_same_answers() -> None:
            for where in (None, {"n": {"$gte": 300}}):
                assert hybrid.search(QUERIES, 25, where=where) == local.search(QUERIES, 25, where=where)
            assert hybrid.search(QUERIES[:3], 2000, version=0) == local.search(QUERIES[:3], 2000, version=0)
            assert hybrid.range_search(QUERIES[:3], 0.5) == local.range_search(QUERIES[:3], 0.5)
            assert hybrid.search(QUERIES[0], 5, explain=0) == local.search(QUERIES[0], 5, explain=0)
            assert np.array_equal(hybrid.reconstruct([1, 1250, 1]), local.reconstruct([1, 1250, 1]))

        assert_same_answers()
        assert len(factory.cluster) > 900 and "on 2 shards" in hybrid.stats()["plan"]
        for collection in (local, hybrid):
            collection.upsert(range(1290, 1490), X[1290:1490], Y[1290:1490])  # more than a segment
            collection.delete([601, 1291])
        assert_same_answers()
        for collection in (local, hybrid):
            collection.compact()
        assert_same_answers()
        assert hybrid.search(QUERIES[0], 5).missing == 0.0


def test_the_server_reports_and_changes_shards(cluster: LocalCluster, tmp_path: Path) -> None:
    build_collection(tmp_path / "c")
    factory = HybridIndexFactory(tmp_path / "segments", 1)
    with stillhash.open(tmp_path / "c", read_only=True) as local:
        expected = local.search(QUERIES[:5], 10)
    collection = stillhash.open(tmp_path / "c", searcher=factory)
    with live_server({"c": collection}, clusters={"c": factory}) as server, stillhash.Client(server.url) as client:
        assert client.search(QUERIES[:5], 10) == expected
        assert len(client.cluster()["shards"]) == 1
        assert client.add_shard() == 1 and len(client.cluster()["shards"]) == 2
        assert client.search(QUERIES[:5], 10) == expected
    with (
        live_server({"c": stillhash.open(tmp_path / "c")}) as server,
        stillhash.Client(server.url) as client,
        pytest.raises(NotFound, match="not on a cluster"),
    ):
        client.cluster()
