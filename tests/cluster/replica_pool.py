"""Reuse actors between small indexes: starting processes for each of a hundred of them would take minutes."""

from __future__ import annotations

from pathlib import Path

from stillhash.cluster import ClusterIndex
from stillhash.cluster.replicas import Replica, ReplicaSet


class ReplicaPool:
    """Makes small indexes, whose ReplicaSet must be `self.replica_set`; only the last few of them stay open."""

    def __init__(self, folder: Path, shards: int, max_open: int = 2) -> None:
        self.folder, self.shards, self.max_open = folder, shards, max_open
        idle: list[Replica] = []
        self.idle, self.indexes = idle, list[ClusterIndex]()

        class PooledReplicaSet(ReplicaSet):
            def start(self, node: str | None) -> Replica:
                return idle.pop() if idle else super().start(node)

            def stop(self, replica: Replica) -> None:
                idle.append(replica)

        self.replica_set = PooledReplicaSet

    def make(self, bits: int) -> ClusterIndex:
        while len(self.indexes) >= self.max_open:
            self.indexes.pop(0).close()
        self.indexes.append(ClusterIndex(bits, self.shards, storage=self.folder, threads=1))
        return self.indexes[-1]

    def close(self) -> None:
        for index in self.indexes:
            index.close()
        stopper = ReplicaSet(1.0, (), 0)
        for replica in self.idle:
            stopper.stop(replica)
