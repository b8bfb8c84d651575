"""An index for collections: sealed codes on a cluster, and the latest ones in this process.

It takes the place of `Index` in a collection: `stillhash.open(path, searcher=HybridIndexFactory(...))`. Rows go to the
shards in large segments only; later ones are searched here, and the hits are merged. While rows move over they are in
both; the collection's read view, which follows commit by commit, lets no search run then.
"""

from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from stillhash.cluster.index import ClusterIndex, PartialHits
from stillhash.cluster.local import connect
from stillhash.collection.storage.segments import SEGMENT_ROWS
from stillhash.errors import NotFound
from stillhash.numeric.codes import Tiles, width
from stillhash.numeric.validation import Codes, Floats
from stillhash.search import Hits, Index
from stillhash.search.merge import Floors, drop_below, merge_all, merge_top


class HybridIndex:
    """Searches a ClusterIndex and a local Index as one."""

    def __init__(self, bits: int, cluster: ClusterIndex) -> None:
        self.bits, self.cluster, self.local = bits, cluster, Index(bits)

    def __len__(self) -> int:
        return len(self.cluster) + len(self.local)

    @property
    def nbytes(self) -> int:
        return self.cluster.nbytes + self.local.nbytes

    @property
    def plan(self) -> str:
        return f"{self.cluster.plan} on {len(self.cluster.status()['shards'])} shards"

    def add_tiles(self, tiles: Tiles, rows: int, ids: ArrayLike | None = None) -> None:
        """Add a sealed segment: shards map the file that these tiles are mapped from."""
        file = getattr(tiles, "filename", None)
        if file is None:
            raise TypeError("tiles: expected an array mapped from a file")
        self.cluster.add_segments([Path(file)])

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None) -> None:
        self.local.add(codes, ids)
        if len(self.local) >= SEGMENT_ROWS:
            local_ids = self.local.ids()
            self.cluster.add(self.local.codes(local_ids), local_ids)
            self.local = Index(self.bits)

    def remove(self, ids: ArrayLike) -> int:
        return self.local.remove(ids) + self.cluster.remove(ids)

    def search(self, weights: ArrayLike, k: int, *, allowed: Any = None) -> Hits:
        remote, local = (index.search(weights, k, allowed=allowed) for index in (self.cluster, self.local))
        return PartialHits(*merge_top([remote, local], k), remote.missing)

    def search_checked(self, weights: Floats, k: int, floors: Floors, allowed: Any = None) -> Hits:
        both = (self.cluster, self.local)
        remote, local = (index.search_checked(weights, k, floors, allowed) for index in both)
        hits = drop_below(merge_top([remote, local], k), floors)  # the best of both is higher than that of one
        return PartialHits(*hits, remote.missing)

    def range_search(self, weights: ArrayLike, threshold: ArrayLike, *, allowed: Any = None) -> list[Hits]:
        both = (index.range_search(weights, threshold, allowed=allowed) for index in (self.cluster, self.local))
        return [PartialHits(*merge_all(pair), pair[0].missing) for pair in zip(*both, strict=True)]

    def codes(self, ids: ArrayLike) -> Codes:
        names = np.asarray(ids)
        is_local = np.isin(names, self.local.ids())
        codes = np.zeros((len(names), width(self.bits)), np.uint8)
        codes[is_local], codes[~is_local] = self.local.codes(names[is_local]), self.cluster.codes(names[~is_local])
        return codes

    def frozen(self) -> Self:
        """Return this index itself, since shards change in place: nobody may change it while it is read."""
        return self

    def close(self) -> None:
        self.cluster.close()


class HybridIndexFactory:
    """Make the indexes of one collection on a cluster, a new one after each compaction; `latest` is the last one.

    storage : a folder that all nodes see, or a URL, for rows that are not in segments of the collection yet.
    address : of a Ray cluster, which this process then stays part of; see ClusterIndex.
    options : as for ClusterIndex.
    """

    def __init__(
        self, storage: str | Path, shards: int = 4, replicas: int = 1, address: str | None = None, **options: Any
    ) -> None:
        connect(address)
        self.storage, self.shards, self.replicas, self.options = storage, shards, replicas, options
        self.latest: HybridIndex | None = None

    def __call__(self, bits: int) -> HybridIndex:
        cluster = ClusterIndex(bits, self.shards, self.replicas, storage=self.storage, **self.options)
        self.latest = HybridIndex(bits, cluster)
        return self.latest

    @property
    def cluster(self) -> ClusterIndex:
        if self.latest is None:
            raise NotFound("there is no index on the cluster yet")
        return self.latest.cluster

    def status(self) -> dict[str, Any]:
        """Return nodes, shards and their actors."""
        return self.cluster.status()

    def add_shard(self) -> int:
        """Add a shard, with its share of the rows; its number."""
        number = self.cluster.add_shard()
        self.cluster.rebalance()
        return number

    def drain(self, node: str) -> int:
        """Move every replica off a node; how many moved."""
        return self.cluster.drain(node)
