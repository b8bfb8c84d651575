"""A collection that is served from a cluster: what its server shows and changes of it."""

from typing import Any

from stillhash.cluster.index import ClusterIndex
from stillhash.cluster.publisher import Publisher


class ServedCluster:
    """The index on a cluster and the publisher of one collection, closed together; the server's ClusterControl."""

    def __init__(self, index: ClusterIndex, publisher: Publisher) -> None:
        self.index, self.publisher = index, publisher

    def status(self) -> dict[str, Any]:
        """Return nodes, shards, actors, moves and problems, and which commit of the collection is published."""
        status, published = self.index.status(), self.publisher.status()
        failure = published.get("failure")
        problems = [*status.get("problems", ()), *([f"publishing failed: {failure}"] if failure else ())]
        return {**status, "problems": problems, "published": published}

    def readiness(self) -> dict[str, Any]:
        """Return the shards of which no replica answers, and those that lack some of their replicas."""
        state, manifest = self.index.readiness(), self.index.manifest
        counts = {shard: state["replicas"].get(shard, 0) for shard in manifest.shards}
        missing = sorted(shard for shard, count in counts.items() if not count)
        few = sorted(shard for shard, count in counts.items() if 0 < count < self.index.replicas)
        return {**state, "ready": not missing, "missing": missing, "degraded": few}

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

    def stop_moves(self) -> None:
        """Let a move of segments end after the step under way, before the server ends."""
        self.index.stop_moves()

    def compact(self) -> dict[str, Any]:
        """Join small segments and drop deleted rows; how many files are fewer."""
        return {"files": self.index.compact()}

    def close(self) -> None:
        """Stop publishing, and give up the lease. The shards go on if they are detached."""
        try:
            self.publisher.close()
        finally:
            self.index.close()
