"""A publisher in a process of its own, without shards: publish a collection again and again until it is killed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

from stillhash.cluster import publish_plan
from stillhash.cluster.index import ClusterIndex
from stillhash.cluster.publisher import Publisher
from tests.cluster.shard_threads import WithoutNodes


class Folder(NamedTuple):
    path: Path


class NoProcesses(WithoutNodes):
    """Shards that the test itself has started."""

    def ensure(self, shards: Any, replicas: int) -> None: ...
    def status(self) -> dict[str, Any]:
        return {"actors": []}

    def close(self) -> None: ...


if __name__ == "__main__":
    publish_plan.TIER_SEGMENTS = 3  # so that segments are merged often
    folder, storage, bits = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    index = ClusterIndex(bits, 2, storage=storage, processes=NoProcesses(), lease_seconds=0.4)
    publisher = Publisher(Folder(folder), index)
    while True:
        print(publisher.publish().number, flush=True)
