"""A collection whose codes are on a cluster answers as one that has them itself; also over HTTP."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stillhash
from stillhash.cluster import LocalCluster, Spreading
from stillhash.cluster import hybrid_index as room
from stillhash.errors import NotFound
from tests.server.process import served
from tests.support.toys import toy

X, Y = toy(1500)
ASKED = X[1400:]


def grown(path: Path) -> None:
    """Two segments, a tail, and some that are gone."""
    with stillhash.open(path, 48, 32, init=(X[:300], Y[:300])) as collection:
        collection.add(range(600), X[:600], Y[:600], [{"n": n} for n in range(600)])
        collection.seal()
        collection.add(range(600, 1200), X[600:1200], Y[600:1200])
        collection.seal()
        collection.add(range(1200, 1300), X[1200:1300], Y[1200:1300])
        collection.delete(range(0, 1300, 7))
        collection.flush()


def test_a_spread_collection_answers_the_same(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "PIECE", 150)
    for name in ("one", "many"):
        grown(tmp_path / name)
    spreading = Spreading(tmp_path / "pieces", 2)
    with (
        stillhash.open(tmp_path / "one") as one,
        stillhash.open(tmp_path / "many", searcher=spreading) as many,
    ):

        def alike() -> None:
            for where in (None, {"n": {"$gte": 300}}):
                assert many.search(ASKED, 25, where=where) == one.search(ASKED, 25, where=where)
            assert many.search(ASKED[:3], 2000, version=0) == one.search(ASKED[:3], 2000, version=0)
            assert many.range_search(ASKED[:3], 0.5) == one.range_search(ASKED[:3], 0.5)
            assert many.search(ASKED[0], 5, explain=0) == one.search(ASKED[0], 5, explain=0)
            assert np.array_equal(many.reconstruct([1, 1250, 1]), one.reconstruct([1, 1250, 1]))

        alike()
        assert len(spreading.cluster) > 900 and "on 2 shards" in many.stats()["plan"]
        for collection in (one, many):
            collection.upsert(range(1290, 1490), X[1290:1490], Y[1290:1490])  # more than a piece
            collection.delete([601, 1291])
        alike()
        for collection in (one, many):
            collection.compact()
        alike()
        assert many.search(ASKED[0], 5).missing == 0.0


def test_the_server_tells_and_changes_where_codes_are(cluster: LocalCluster, tmp_path: Path) -> None:
    grown(tmp_path / "c")
    spreading = Spreading(tmp_path / "pieces", 1)
    with stillhash.open(tmp_path / "c", read_only=True) as plain:
        wanted = plain.search(ASKED[:5], 10)
    collection = stillhash.open(tmp_path / "c", searcher=spreading)
    with served({"c": collection}, crews={"c": spreading}) as server, stillhash.Client(server.url) as client:
        assert client.search(ASKED[:5], 10) == wanted
        assert len(client.cluster()["shards"]) == 1
        assert client.add_shard() == 1 and len(client.cluster()["shards"]) == 2
        assert client.search(ASKED[:5], 10) == wanted
    with (
        served({"c": stillhash.open(tmp_path / "c")}) as server,
        stillhash.Client(server.url) as client,
        pytest.raises(NotFound, match="not on a cluster"),
    ):
        client.cluster()
