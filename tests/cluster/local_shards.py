"""Shards of a cluster as threads of this process, with their real messages, in place of what Ray starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from stillhash import Collection
from stillhash.cluster.front import FrontCollection
from stillhash.cluster.index import ClusterIndex
from stillhash.cluster.publisher import Publisher
from stillhash.cluster.shard_server import ShardServer


class LocalShards:
    """Starts one server for each replica of a shard."""

    def __init__(self, storage: Path) -> None:
        self.storage, self.servers = storage, dict[str, ShardServer]()

    def ensure(self, shards: Sequence[int], replicas: int) -> None:
        names = {f"shard-{shard}-{replica}": shard for shard in shards for replica in range(replicas)}
        for name in self.servers.keys() - names:
            self.servers.pop(name).stop()
        for name, shard in names.items():
            if name not in self.servers:
                self.servers[name] = ShardServer(str(self.storage), shard, name, {"host": "127.0.0.1", "threads": 1})

    def status(self) -> dict[str, Any]:
        return {"actors": [server.status() for server in self.servers.values()]}

    def rebalance(self) -> int:
        return 0

    def drain(self, node: str) -> int:
        return 0

    def undrain(self, node: str) -> int:
        return 0

    def close(self) -> None:
        for server in self.servers.values():
            server.stop()
        self.servers.clear()


@contextmanager
def local_index(storage: Path, bits: int, shards: int = 3, replicas: int = 1, **options: Any) -> Iterator[ClusterIndex]:
    """Yield an index whose shards are threads."""
    processes = LocalShards(storage)
    options = {"lease_seconds": 0.5, **options}
    with closing(ClusterIndex(bits, shards, replicas, storage=storage, processes=processes, **options)) as index:
        yield index


@contextmanager
def published(collection: Collection, storage: Path, **options: Any) -> Iterator[tuple[Publisher, FrontCollection]]:
    """Yield a publisher that has published a collection, and a front of it."""
    with local_index(storage, collection.bits, **options) as index, Publisher(collection, index) as publisher:
        publisher.publish()
        with FrontCollection(storage) as front:
            front.wait_ready()
            yield publisher, front
