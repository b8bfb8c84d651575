"""A collection's index with its sealed codes on a cluster, and the latest ones here.

It stands in the place of `Index` in a collection: `stillhash.open(path, searcher=Spreading(...))`. Commits reach the
shards in large pieces only; what came since the last one is searched in this process, and the hits are merged. While
rows move over they are in both; the view of the collection, which follows commit by commit, lets no answer out then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from stillhash.cluster.connection import connect
from stillhash.cluster.index import ClusterIndex, PartialHits
from stillhash.errors import NotFound
from stillhash.numeric.codes import Tiles
from stillhash.numeric.validation import Codes, check_ids
from stillhash.search import Hits, Index

PIECE = 131_072  # rows that go to the shards together


class Spread:
    def __init__(self, bits: int, cluster: ClusterIndex) -> None:
        self.bits, self.cluster, self.here = bits, cluster, Index(bits)

    def __len__(self) -> int:
        return len(self.cluster) + len(self.here)

    @property
    def nbytes(self) -> int:
        return self.cluster.nbytes + self.here.nbytes

    @property
    def plan(self) -> str:
        return f"{self.cluster.plan} on {len(self.cluster.status()['shards'])} shards"

    def add_tiles(self, tiles: Tiles, rows: int, ids: Any) -> None:
        """A sealed segment: shards map the file that these tiles are mapped from."""
        file = getattr(tiles, "filename", None)
        if file is None:
            raise TypeError("tiles are not mapped from a file")
        self.cluster.add_segments([Path(file)])

    def add(self, codes: Any, ids: Any = None) -> None:
        self.here.add(codes, ids)
        if len(self.here) >= PIECE:
            late = self.here.ids()
            self.cluster.add(self.here.codes(late), late)
            self.here = Index(self.bits)

    def remove(self, ids: Any) -> int:
        return self.here.remove(ids) + self.cluster.remove(ids)

    def search(self, weights: Any, k: int, *, allowed: Any = None) -> Hits:
        far, near = (part.search(weights, k, allowed=allowed) for part in (self.cluster, self.here))
        scores = np.concatenate([far.scores, near.scores], axis=1)
        ids = np.concatenate([far.ids, near.ids], axis=1)
        order = np.lexsort((np.where(ids < 0, np.iinfo(np.int64).max, ids), -scores), axis=1)[:, :k]
        scores, ids = np.take_along_axis(scores, order, axis=1), np.take_along_axis(ids, order, axis=1)
        return PartialHits(scores, ids, far.missing)

    def range_search(self, weights: Any, threshold: Any, *, allowed: Any = None) -> list[Hits]:
        both = (part.range_search(weights, threshold, allowed=allowed) for part in (self.cluster, self.here))
        return [_joined(far, near) for far, near in zip(*both, strict=True)]

    def codes(self, ids: Any) -> Codes:
        wanted = check_ids(ids)
        near = np.isin(wanted, self.here.ids())
        found = np.zeros((len(wanted), -(-self.bits // 8)), np.uint8)
        found[near], found[~near] = self.here.codes(wanted[near]), self.cluster.codes(wanted[~near])
        return found

    def close(self) -> None:
        self.cluster.close()


class Spreading:
    """Makes the indexes of one collection on a cluster, a new one after each compaction, and knows the latest.

    storage : a folder that all nodes see, or a URL, for pieces that are not in segments of the collection yet.
    address : of a Ray cluster, which this process then stays part of; see ClusterIndex.
    more : as for ClusterIndex.
    """

    def __init__(
        self, storage: str | Path, shards: int = 4, replicas: int = 1, address: str | None = None, **more: Any
    ) -> None:
        connect(address)
        self.storage, self.shards, self.replicas, self.more = storage, shards, replicas, more
        self.latest: Spread | None = None

    def __call__(self, bits: int) -> Spread:
        made = ClusterIndex(bits, self.shards, self.replicas, storage=self.storage, **self.more)
        self.latest = Spread(bits, made)
        return self.latest

    @property
    def cluster(self) -> ClusterIndex:
        if self.latest is None:
            raise NotFound("there is no index on the cluster yet")
        return self.latest.cluster

    def status(self) -> dict[str, Any]:
        """What runs where."""
        return self.cluster.status()

    def add_shard(self) -> int:
        """One more shard, with its share of the rows; its number."""
        number = self.cluster.add_shard()
        self.cluster.rebalance()
        return number

    def drain(self, node: str) -> int:
        """Moves every actor off a node; how many moved."""
        return self.cluster.drain(node)


def _joined(far: Hits, near: Hits) -> Hits:
    scores, ids = np.concatenate([far.scores, near.scores]), np.concatenate([far.ids, near.ids])
    order = np.lexsort((ids, -scores))
    return PartialHits(scores[order], ids[order], far.missing)
