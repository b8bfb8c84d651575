"""Readiness of a server whose collection is on shards, apart from its health: shards are processes that are killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash.cluster.index import ClusterIndex
from stillhash.cluster.publisher import Publisher
from stillhash.cluster.served import ServedCluster
from stillhash.errors import Busy
from stillhash.server import Keys, Settings
from tests.cluster.shard_children import ShardChildren
from tests.collection.fixtures import begin
from tests.server.live_server import LiveServer, live_server
from tests.support.waiting import until

pytestmark = pytest.mark.slow
KEY = "a-key-of-the-role-read"


class NoShards(ShardChildren):
    """Start nothing yet."""

    def ensure(self, shards: Sequence[int], replicas: int) -> None:
        return


@contextmanager
def served(folder: Path, processes: ShardChildren, replicas: int, **settings: Any) -> Iterator[LiveServer]:
    collection, _ = begin(folder / "c")
    index = ClusterIndex(collection.bits, 2, replicas, storage=folder / "shards", processes=processes)
    with closing(ServedCluster(index, Publisher(collection, index))) as cluster:
        cluster.publisher.publish()
        with live_server({"c": collection}, Settings(**settings), None, {"c": cluster}) as server:
            yield server


def test_a_server_is_alive_before_it_is_ready(tmp_path: Path) -> None:
    processes = NoShards(tmp_path / "shards")
    with served(tmp_path, processes, 1) as server:
        assert server.request("GET", "/v1/health").status == 200
        reply = server.request("GET", "/v1/ready")
        assert reply.status == 503 and "shards 0, 1" in reply.json["message"]
        with stillhash.Client(server.url, retries=0) as client, pytest.raises(Busy, match="shards 0, 1"):
            client.ready()
        processes.start(0)
        processes.start(1)
        until(lambda: server.request("GET", "/v1/ready").status == 200, "readiness")
        processes.signal(signal.SIGKILL, 1)
        until(lambda: server.request("GET", "/v1/ready").status == 503, "notice of the lost shard")
        assert "shards 1" in server.request("GET", "/v1/ready").json["message"]
        assert server.request("GET", "/v1/health").status == 200
        processes.start(1)
        until(lambda: server.request("GET", "/v1/ready").status == 200, "readiness again")


def test_a_shard_that_lacks_a_replica_is_named(tmp_path: Path) -> None:
    processes = ShardChildren(tmp_path / "shards")
    with served(tmp_path, processes, 2, keys=Keys((KEY,))) as server:
        key = {"authorization": f"Bearer {KEY}"}

        def ready() -> Any:
            reply = server.request("GET", "/v1/ready", **key)
            return reply.json if reply.status == 200 else None

        until(lambda: ready() == {"ready": True, "degraded": {}}, "all replicas")
        processes.signal(signal.SIGKILL, 0, 1)
        until(lambda: ready() == {"ready": True, "degraded": {"c": [0]}}, "notice of the lost replica")
        assert server.request("GET", "/v1/ready").json == {"ready": True, "degraded": {}}  # no names without a key
        processes.signal(signal.SIGKILL, 0, 0)
        until(lambda: ready() is None, "notice of the lost shard")
        assert "'c'" not in server.request("GET", "/v1/ready").json["message"]
        assert "'c'" in server.request("GET", "/v1/ready", **key).json["message"]
