"""A collection that is served from a cluster: what its server shows and changes of it."""

from collections.abc import Iterable
from typing import Any, Protocol

from stillhash.cluster.reader import ClusterReader


class WritableCluster(Protocol):
    """The index of the collection on the cluster, as its writer has it (ClusterIndex)."""

    def status(self) -> dict[str, Any]: ...
    def readiness(self) -> dict[str, Any]: ...
    def add_shard(self) -> int: ...
    def remove_shard(self, shard: int) -> None: ...
    def drain(self, node: str) -> int: ...
    def undrain(self, node: str) -> int: ...
    def rebalance(self) -> int: ...
    def compact(self) -> Any: ...
    def close(self) -> None: ...


class CollectionPublisher(Protocol):
    """What brings the cluster to the latest commit of the collection (Publisher)."""

    def status(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


class ServedCluster:
    """The index on a cluster and the publisher of one collection, closed together; the server's ClusterControl."""

    def __init__(self, index: WritableCluster, publisher: CollectionPublisher) -> None:
        self.index, self.publisher = index, publisher

    def status(self) -> dict[str, Any]:
        """Return nodes, shards, actors, moves and problems, and which commit of the collection is published."""
        status, published = self.index.status(), self.publisher.status()
        failure = published.get("failure")
        problems = [*status.get("problems", ()), *([f"publishing failed: {failure}"] if failure else ())]
        return {**status, "problems": problems, "published": published}

    def readiness(self) -> dict[str, Any]:
        """Return the shards of which no replica answers, and those that lack some of their replicas."""
        return with_degraded(self.index.readiness(), shards_of(self.index.status()["degraded"]))

    def add_shard(self) -> int:
        """Add a shard, with its share of the rows; its number."""
        return self.index.add_shard()

    def remove_shard(self, shard: int) -> None:
        """Give the rows of a shard to the others, and stop it."""
        self.index.remove_shard(shard)

    def drain(self, node: str) -> int:
        """Move every actor off a node; how many moved."""
        return self.index.drain(node)

    def undrain(self, node: str) -> int:
        """Use a drained node again; how many actors moved."""
        return self.index.undrain(node)

    def rebalance(self) -> int:
        """Move actors between nodes, and segments between shards; how many moved."""
        return self.index.rebalance()

    def compact(self) -> dict[str, Any]:
        """Write the segments of the shards again without deleted rows; what was saved."""
        return {"compacted": self.index.compact()}

    def close(self) -> None:
        """Stop publishing, and give up the lease. The shards go on if they are detached."""
        try:
            self.publisher.close()
        finally:
            self.index.close()


def front_readiness(reader: ClusterReader) -> dict[str, Any]:
    """Return the readiness that a front sees: shards with an endpoint that is not connected are degraded."""
    endpoints = reader.coordinator.endpoints()
    return with_degraded(reader.readiness(), [e.shard for e, connected in endpoints if not connected])


def with_degraded(state: dict[str, Any], shards: Iterable[int | None]) -> dict[str, Any]:
    """Add these shards as degraded, without those that are missing altogether."""
    few = {shard for shard in shards if shard is not None} - set(state["missing"])
    return {**state, "degraded": sorted(few)}


def shards_of(groups: Iterable[str]) -> list[int]:
    """Return the numbers of "shard-3" and the like."""
    return [int(group.removeprefix("shard-")) for group in groups if group.startswith("shard-")]
