"""An index over a Ray cluster, with the answers of one machine, ties included, whichever replicas fail.

The process that has a ClusterIndex knows which rows exist and which shard holds them; codes are only in segments, on
storage, and in the shards that map them. A lost actor or node therefore loses nothing: Ray restarts the actor, it
loads its segments again, and open requests are sent again. An answer that lacks rows always says so.
"""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import numpy as np
import ray
from numpy.typing import ArrayLike, NDArray

from stillhash.cluster.batching import BatchQueue, PendingQuery
from stillhash.cluster.coordinator import Coordinator
from stillhash.cluster.id_map import IdMap
from stillhash.cluster.local import connect
from stillhash.cluster.reconciler import Reconciler
from stillhash.cluster.replicas import ReplicaSet
from stillhash.cluster.segment_cache import CACHE_BYTES, SegmentCache
from stillhash.cluster.segment_refs import SegmentRef, delete_ref, open_segment, write_ref
from stillhash.cluster.storage import Storage
from stillhash.numeric import validation
from stillhash.numeric.validation import Codes, Floats
from stillhash.search import Hits
from stillhash.search.blocks import IdArray, bitmap_by_id
from stillhash.search.merge import Floors, drop_below


class PartialHits(Hits):
    """Hits, and the share of the rows that were not searched."""

    missing: float = 0.0

    def __new__(cls, scores: NDArray[np.float32], ids: IdArray, missing: float = 0.0) -> Self:
        hits = super().__new__(cls, scores, ids)
        hits.missing = missing
        return hits


class ClusterIndex(AbstractContextManager["ClusterIndex"]):
    """An exact index of codes of `bits` bits over `shards` shards, each of them in `replicas` copies.

    address : of a Ray cluster; without one, the cluster that this process is connected to, or a new one on this
        machine.
    storage : a folder that all nodes see, or a URL for fsspec, where the codes that are added stay until `close`.
    deadline : seconds after which a search gives up on shards that do not reply: it raises Unreachable or, with
        `partial`, returns the hits of the others, with the share of rows not searched as `hits.missing`.
    threads, cpus : the most that a search in a shard uses, and what a shard claims from Ray.
    cache, cache_bytes : folder and size of each node's copies of segments, if they come from a URL.
    """

    def __init__(
        self,
        bits: int,
        shards: int = 4,
        replicas: int = 1,
        address: str | None = None,
        *,
        storage: str | Path,
        deadline: float = 10.0,
        partial: bool = False,
        threads: int | None = None,
        cpus: float = 0.25,
        cache: str | Path | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.bits = validation.check_bits(bits)
        self.replicas = validation.check_integer(replicas, "replicas", 1)
        self.deadline, self.partial = validation.check_number(deadline, "deadline", above=0), bool(partial)
        validation.check_integer(shards, "shards", 1)
        validation.check_number(cpus, "cpus", above=0)
        self.storage = Storage(storage)
        self._cache = SegmentCache(None, cache, validation.check_integer(cache_bytes, "cache_bytes", 0))
        self._connected = connect(address)
        # Ray itself retries calls to a lone replica; with others beside it, its failure should be known at once.
        retries = -1 if self.replicas == 1 else 0
        self._replicas = ReplicaSet(cpus, (None if cache is None else str(cache), cache_bytes, threads), retries)
        self._id_map = IdMap(self.bits)
        self._coordinator = Coordinator(self._id_map, self._replicas)
        self.timings = self._coordinator.timings  # what the latest fan-outs took
        self._queue = BatchQueue(leaders=self.replicas)
        self._reconciler = Reconciler(self._id_map, self._replicas, self.replicas, self.deadline)
        try:
            self._reconciler.add_shards(shards)
        except BaseException:
            self.close()
            raise
        self._reconciler.start()

    def __len__(self) -> int:
        return len(self._id_map)

    def __repr__(self) -> str:
        shards = len(self._id_map.published)
        return f"ClusterIndex(bits={self.bits}, rows={len(self)}, shards={shards}, replicas={self.replicas})"

    @property
    def nbytes(self) -> int:
        """Bytes that the shards hold in memory or mapped, replicas included."""
        return sum(actor["nbytes"] for actor in self.status()["actors"])

    @property
    def plan(self) -> str:
        """How queries begin on most shards: on "tables", or as a "scan" of all codes."""
        plans = [actor["plan"] for actor in self.status()["actors"]]
        return max(("scan", "tables"), key=plans.count)

    def ids(self) -> IdArray:
        """Return all ids, ascending."""
        return self._id_map.ids()

    def search(self, weights: ArrayLike, k: int, *, allowed: Any = None) -> Hits:
        """Return the k best hits of each query: exactly what one index of all rows would return, ties included.

        weights: (m, bits), or (bits,) for one query. allowed: only ids i with allowed[i] true are hits; a boolean
        array, or a uint8 bitmap in little-endian bit order. Ids past its end are not allowed.
        """
        weights = validation.check_weights(weights, self.bits)
        return self._answer(weights, validation.check_k(k, len(weights)), None, allowed)[0]

    def search_checked(self, weights: Floats, k: int, floors: Floors, allowed: Any = None) -> Hits:
        """Search as `search` does, for arguments that are validated already, hits of at least the floors."""
        hits = self._answer(weights, k, None, allowed)[0]
        return PartialHits(*drop_below(hits, floors), hits.missing)

    def range_search(self, weights: ArrayLike, threshold: ArrayLike, *, allowed: Any = None) -> list[Hits]:
        """Return all hits whose score is at least the threshold (one number, or one per query), for each query."""
        weights = validation.check_weights(weights, self.bits)
        return self._answer(weights, 0, validation.check_threshold(threshold, len(weights)), allowed)

    def codes(self, ids: ArrayLike) -> Codes:
        """Return the codes (n, ceil(bits / 8)) of these ids, which must all exist; an id may come more than once."""
        names, numbers = validation.check_repeated_ids(ids)
        return self._coordinator.codes(names, self.bits, self._until())[numbers]

    def _answer(self, weights: Floats, k: int, thresholds: NDArray[np.float64] | None, allowed: Any) -> list[Hits]:
        """Wait for the answer, and send the queries of other callers too while this one leads."""
        query = PendingQuery(weights, k, thresholds, None if allowed is None else bitmap_by_id(allowed), self._until())
        with self._queue.entered(query):
            while not query.done:
                with self._queue.turn(query) as batch:
                    if batch:
                        self._coordinator.search(batch)
        if query.error is not None and not (self.partial and query.missing):
            raise query.error
        return [PartialHits(*hits, missing=query.missing) for hits in query.hits] if self.partial else query.hits

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None) -> None:
        """Add codes (n, ceil(bits / 8)) under their ids, or under the next free numbers, to the smallest shard."""
        codes = validation.check_codes(codes, self.bits)
        with self._id_map.write_lock:
            ids = self._id_map.new_ids(ids, len(codes))
            if not len(codes):
                return
            order = np.argsort(ids)
            ref = write_ref(self.storage, codes[order], ids[order], self.bits)
            try:
                self._place([(ref, ids[order])], owned=True)
            except BaseException:
                delete_ref(self.storage, ref)
                raise

    def add_segments(self, paths: Iterable[str | Path]) -> None:
        """Add sealed segments by their paths, which all nodes see, or URLs. The files must stay there."""
        with self._id_map.write_lock:
            opened = [open_segment(path, self.bits, self._cache) for path in paths]
            self._place([(ref, segment.row_numbers()) for ref, segment in opened], owned=False)

    def remove(self, ids: ArrayLike) -> int:
        """Remove these ids and return how many existed; unknown ids are ignored."""
        with self._id_map.write_lock:
            changes = self._id_map.remove(validation.check_ids(ids))
            try:  # a shard that does not reply has an old version, so it reloads before it answers again
                self._coordinator.change(changes, self._until(), required=False)
            finally:
                self._id_map.publish()
        return sum(len(change.deleted) for change in changes.values())

    def clear(self) -> None:
        """Remove all rows; ids begin at 0 again."""
        with self._id_map.write_lock:
            self._delete_all()

    def _place(self, segments: list[tuple[SegmentRef, IdArray]], *, owned: bool) -> None:
        """Assign segments to shards and wait until these hold them: all of the segments, or none."""
        before, changes = self._id_map.segments, {}
        try:
            changes = self._id_map.place(segments, owned=owned)
            self._coordinator.change(changes, self._until(), required=True)
        except BaseException:
            self._id_map.undo(before, changes)
            raise
        self._id_map.publish()

    def _until(self) -> float:
        return time.monotonic() + self.deadline

    def status(self) -> dict[str, Any]:
        """Return nodes, shards and their actors, and whether all of them are up to date."""
        return self._reconciler.status()

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Wait until every replica is up to date."""
        self._reconciler.wait_ready(seconds)

    def rebalance(self) -> int:
        """Move replicas, then segments, until nodes and shards hold alike; how many moved. Searches go on meanwhile."""
        return self._reconciler.rebalance()

    def add_shard(self) -> int:
        """Add a shard, which `rebalance` and later `add`s fill; its number."""
        return self._reconciler.add_shards(1)[0]

    def drain(self, node: str) -> int:
        """Move every replica off this node, and use it no more; how many moved."""
        return self._reconciler.drain(node)

    def close(self) -> None:
        """Stop the actors, and delete what `add` wrote."""
        self._reconciler.stop()
        if ray.is_initialized():
            for shard in list(self._replicas.by_shard):
                self._replicas.stop_shard(shard)
        self._replicas.by_shard.clear()
        self._delete_all()
        if self._connected:
            self._connected = False
            ray.shutdown()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _delete_all(self) -> None:
        for ref in self._id_map.clear():
            delete_ref(self.storage, ref)
