"""Serve shards from threads of this process, over real sockets: for tests that need neither Ray nor lost processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stillhash import Collection
from stillhash.cluster.aggregator import AggregatorServer
from stillhash.cluster.front import FrontCollection
from stillhash.cluster.index import ClusterIndex
from stillhash.cluster.publisher import Publisher
from stillhash.cluster.shard_server import ShardServer
from stillhash.cluster.storage import Storage


class WithoutNodes:
    """What `ShardProcesses` says of nodes, where there is only this machine."""

    def rebalance(self) -> int:
        return 0

    def drain(self, node: str) -> int:
        return 0

    def undrain(self, node: str) -> int:
        return 0


class ShardThreads(WithoutNodes):
    """Starts and stops servers as `ShardProcesses` asks."""

    def __init__(self, storage: str | Path, aggregators: int = 0) -> None:
        self.storage = Storage(storage).url
        self.servers: dict[tuple[int, int], ShardServer] = {}
        self.aggregators = [AggregatorServer(self.storage, f"aggregator-{n}") for n in range(aggregators)]

    def start(self, shard: int, replica: int = 0) -> None:
        self.servers[shard, replica] = ShardServer(self.storage, shard, f"{shard}-{replica}", {"threads": 1})

    def stop(self, shard: int, replica: int = 0) -> None:
        self.servers.pop((shard, replica)).stop()

    def ensure(self, shards: Sequence[int], replicas: int) -> None:
        expected = {(shard, replica) for shard in shards for replica in range(replicas)}
        for shard, replica in self.servers.keys() - expected:
            self.stop(shard, replica)
        for shard, replica in expected - self.servers.keys():
            self.start(shard, replica)

    def status(self) -> dict[str, Any]:
        return {"actors": [server.status() for server in self.servers.values()]}

    def close(self) -> None:
        for server in [*self.servers.values(), *self.aggregators]:
            server.stop()
        self.servers, self.aggregators = {}, []


def thread_index(
    storage: str | Path, bits: int, shards: int = 3, replicas: int = 1, aggregators: int = 0, **options: Any
) -> ClusterIndex:
    """Return an index whose shards are served from threads."""
    processes, options = ShardThreads(storage, aggregators), {"lease_seconds": 0.5, **options}
    return ClusterIndex(bits, shards, replicas, storage=storage, processes=processes, **options)


@contextmanager
def published(collection: Collection, storage: Path, **options: Any) -> Iterator[tuple[Publisher, FrontCollection]]:
    """Yield a publisher that has published a collection, and a front of it."""
    with thread_index(storage, collection.bits, **options) as index, Publisher(collection, index) as publisher:
        publisher.publish()
        with FrontCollection(storage) as front:
            front.wait_ready()
            yield publisher, front
