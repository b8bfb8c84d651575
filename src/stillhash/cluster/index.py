"""Write an index on a cluster: one process at a time, with a lease; what a call acknowledged is on storage.

A write creates files, then commits the next manifest, which shards and readers follow. Shards need not be there for it:
they load what they lack with the next request. Ray places and restarts the shards' processes (controller.py).
"""

import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from stillhash.cluster.deletions import existing_ids, load_deletions, without_ids
from stillhash.cluster.lease import WriterLease, fence
from stillhash.cluster.manifest import UNPLACED, ClusterManifest, SegmentEntry, commit_manifest, first_manifest
from stillhash.cluster.placement import cleared, place, plan_moves, with_leaving, with_shard
from stillhash.cluster.reader import POLL_SECONDS, ClusterReader
from stillhash.cluster.segment_cache import CACHE_BYTES, SegmentCache, url_checksum
from stillhash.cluster.segment_files import write_segments
from stillhash.cluster.segment_moves import SegmentMoveProgress, SegmentMoves
from stillhash.cluster.storage import Storage, absolute_url
from stillhash.cluster.upkeep import CompactionProgress, Upkeep, compact_index
from stillhash.errors import Conflict
from stillhash.numeric import validation
from stillhash.search.blocks import NO_IDS, IdArray, assign_ids
from stillhash.search.gpu import parse_device


class ShardProcesses(Protocol):
    """What starts, places and stops the processes of shards."""

    def ensure(self, shards: Sequence[int], replicas: int) -> None:
        """Start what is missing of so many replicas of these shards, and stop those of other shards."""

    def status(self) -> dict[str, Any]: ...
    def rebalance(self) -> int:
        """Wait until all replicas run and nodes hold alike; how many moved."""

    def drain(self, node: str) -> int: ...
    def undrain(self, node: str) -> int: ...
    def close(self) -> None: ...


class ClusterIndex(ClusterReader):
    """An exact index of codes of `bits` bits over `shards` shards, each of them in `replicas` copies; the writer of it.

    storage : a folder that all nodes see, or a URL for fsspec. The index is stored there: opened again, it has all rows
        that were acknowledged, and the shards that it had.
    address : of a Ray cluster; without one, the cluster that this process is connected to, or a new one on this
        machine.
    deadline, partial : of searches, as for ClusterReader.
    threads, cpus : the most that a search in a shard uses, and what a shard claims from Ray.
    device : where shards search: "cpu", "cuda", or "auto", on a GPU where their node has one.
    cache, cache_bytes : folder and size of each node's copies of segments, if they come from a URL.
    detached : let the shards go on when this process ends, so that readers can be served without a writer.
    lease_seconds : without a renewal of the lease, after which another process may take over as the writer.
    processes : starts the shards in place of Ray.
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
        device: str = "cpu",
        cpus: float = 0.25,
        cache: str | Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        detached: bool = False,
        lease_seconds: float = 10.0,
        processes: ShardProcesses | None = None,
    ) -> None:
        validation.check_bits(bits)
        self.replicas = validation.check_integer(replicas, "replicas", 1)
        validation.check_integer(shards, "shards", 1)
        validation.check_number(cpus, "cpus", above=0)
        validation.check_number(deadline, "deadline", above=0)
        validation.check_integer(cache_bytes, "cache_bytes", 0)
        parse_device(device)
        opened = Storage(storage)
        self._cache = SegmentCache(opened, cache, cache_bytes)
        self._writing, self._resources = threading.RLock(), ExitStack()
        self._moves = SegmentMoves(self)
        lease = WriterLease(opened, f"{socket.gethostname()}:{os.getpid()}", lease_seconds)
        self._epoch = lease.acquire()
        self._resources.callback(lease.release)
        try:
            manifest = fence(opened, self._epoch, first_manifest(bits, range(shards)))
            if manifest.bits != bits:
                raise Conflict(f"bits: expected {manifest.bits}, as the index at {opened.url} has, got {bits}")
            super().__init__(opened, deadline=deadline, partial=partial)
            self._resources.callback(super().close)
            options = {"threads": threads, "device": device, "cache_bytes": cache_bytes}
            options["cache"] = None if cache is None else str(cache)
            self._processes = processes or _start_controller(opened, options, address, cpus, detached, lease)
            self._resources.callback(self._processes.close)
            self._processes.ensure(self.manifest.shards, self.replicas)
            self._resources.callback(Upkeep(self).close)
            self._resources.callback(self._moves.close)
        except BaseException:
            self._resources.close()
            raise

    def __repr__(self) -> str:
        shards = len(self.manifest.shards)
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
        return np.sort(np.concatenate([NO_IDS, *map(self._live_ids, self.manifest.segments)]))

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None) -> None:
        """Add codes (n, ceil(bits / 8)) under their ids, or under the next free numbers; stored when this returns.

        Large additions are split, so that all shards get their share.
        """
        codes = validation.check_codes(codes, self.bits)
        with self._writing:
            names = self._new_ids(ids, len(codes))
            if len(codes):
                shards = len(self.manifest.shards)
                entries = write_segments(self.storage, codes, names, self.bits, shards=shards)
                self._commit(place(self.manifest, entries))

    def add_segments(self, paths: Iterable[str | Path]) -> None:
        """Add sealed segments by their paths, which all nodes see, or URLs: all or none. The files must stay there."""
        with self._writing:
            manifest = self.manifest
            for path in paths:
                entry = self._foreign_entry(absolute_url(path))
                self._check_new(manifest, self._cache.row_numbers(entry, self.bits))
                manifest = place(manifest, [entry])
            if manifest is not self.manifest:
                self._commit(manifest)

    def remove(self, ids: ArrayLike) -> int:
        """Remove these ids and return how many existed; unknown ids are ignored. If it raises, nothing was removed."""
        names = validation.check_ids(ids)
        with self._writing:
            manifest, removed = without_ids(self._cache, self.manifest, names)
            if removed:
                self._commit(manifest)
        return removed

    def clear(self) -> None:
        """Remove all rows; ids begin at 0 again."""
        with self._writing:
            self._commit(cleared(self.manifest))

    def status(self) -> dict[str, Any]:
        """Return nodes, shards and their processes, what moves, and whether all of them are up to date.

        `segment_moves`: segments and rows that have moved to other shards, of how many; None while none move.
        """
        manifest, leaving = self.manifest, self.manifest.leaving
        sizes = {shard: (n, len(manifest.of_shard(shard))) for shard, n in manifest.shard_rows().items()}
        shards = [{"shard": s, "rows": n, "segments": m, "leaving": s in leaving} for s, (n, m) in sizes.items()]
        about = {"rows": manifest.rows, "bits": manifest.bits, "number": manifest.number, "shards": shards}
        return {**about, "segment_moves": self._moves.status(), **self._processes.status()}

    def rebalance(self, progress: SegmentMoveProgress = lambda done, rows: None) -> int:
        """Move processes between nodes, then segments between shards, until they are even; how many moved.

        Before segments move, all replicas run, and those that were lost are replaced; Unreachable if that takes too
        long. Segments move in steps, while searches and writes go on. One that was interrupted, or a `remove_shard`,
        is finished by the next. progress: called with the rows that have moved and those in all, after each step.
        """
        moved = self._processes.rebalance() + self._moves.run(plan_moves, progress)
        self._finish_removals(progress)
        return moved

    def compact(self, progress: CompactionProgress = lambda done, rows: None) -> int:
        """Join small segments and drop deleted rows, while searches and writes go on; how many files are fewer.

        progress: called with the rows that are done and those in all. A thread compacts too where much is due.
        """
        return compact_index(self, progress)

    def add_shard(self, progress: SegmentMoveProgress = lambda done, rows: None) -> int:
        """Add a shard, and move its share of the rows to it in steps, as `rebalance` does; its number."""
        with self._writing:
            manifest = with_shard(self.manifest)
            self._processes.ensure(manifest.shards, self.replicas)
            self._commit(manifest)
        self._moves.run(plan_moves, progress)
        return manifest.shards[-1]

    def remove_shard(self, shard: int, progress: SegmentMoveProgress = lambda done, rows: None) -> None:
        """Give the rows of a shard to the others in steps, as `rebalance` does, and stop it."""
        number = validation.check_integer(shard, "shard", 0)
        self.commit_change(lambda manifest: with_leaving(manifest, number))
        self._finish_removals(progress)

    def _finish_removals(self, progress: SegmentMoveProgress) -> None:
        """Empty and stop the shards that are being removed, also those of an earlier call that was interrupted."""
        if self._moves.remove_leaving(progress):
            self.wait_ready(self.deadline)
            self._stopped.wait(2 * POLL_SECONDS)  # readers that have not seen the new manifest ask the shards meanwhile
            self._processes.ensure(self.manifest.shards, self.replicas)

    def stop_moves(self) -> None:
        """Let a move of segments end after the step under way; what is left is for the next writer."""
        self._moves.stop()

    def drain(self, node: str) -> int:
        """Move every process off this node, and use it no more; how many moved."""
        return self._processes.drain(node)

    def undrain(self, node: str) -> int:
        """Use a drained node again; how many processes moved to it."""
        return self._processes.undrain(node)

    def close(self) -> None:
        """Stop the shards unless they are detached, and give up the lease. The index stays on storage."""
        self._resources.close()

    @property
    def cache(self) -> SegmentCache:
        """The copies of segments on this node."""
        return self._cache

    @contextmanager
    def writing(self) -> Iterator[ClusterManifest]:
        """Let no other thread write in the block, which begins with the latest manifest."""
        with self._writing:
            yield self.refresh()

    def commit_change(self, change: Callable[[ClusterManifest], ClusterManifest]) -> ClusterManifest:
        """Commit the latest manifest with a change, which may raise instead; return it under its number."""
        with self.writing() as manifest:
            return self.commit(change(manifest))

    def commit(self, manifest: ClusterManifest) -> ClusterManifest:
        """Make this the next manifest, within `writing`; return it under its number."""
        self._commit(manifest)
        return self.manifest

    def _commit(self, manifest: ClusterManifest) -> None:
        """Make this the next manifest, and let the shards load it."""
        manifest = manifest.next(self._epoch)
        commit_manifest(self.storage, manifest)
        self._use(manifest)
        self.coordinator.notify(manifest.number, manifest.shards)

    def _new_ids(self, ids: ArrayLike | None, count: int) -> IdArray:
        """Return the ids of new rows: these, which must be new, or the next free numbers."""
        first, names, _ = assign_ids((), self.manifest.next_id, ids, count)
        new = np.arange(first, first + count) if names is None else names
        if ids is not None:
            self._check_new(self.manifest, new)
        return new

    def _check_new(self, manifest: ClusterManifest, ids: IdArray) -> None:
        existing = existing_ids(self._cache, manifest, ids)
        if len(existing):
            raise Conflict(f"ids: expected new ids, got {len(existing)} that exist, such as {existing[0]}")

    def _foreign_entry(self, url: str) -> SegmentEntry:
        """Return the entry of a segment that is not in the storage of the index, once its checksums are verified."""
        entry = SegmentEntry(url, 0, url_checksum(url), 0, 0, UNPLACED, owned=False)
        segment = self._cache.open(entry, self.bits)
        first, last = segment.bounds()
        return entry._replace(rows=segment.rows, first=first, last=last)

    def _live_ids(self, entry: SegmentEntry) -> IdArray:
        deleted = np.unpackbits(load_deletions(self.storage, entry), count=entry.rows, bitorder="little")
        ids: IdArray = self._cache.row_numbers(entry, self.bits)[deleted == 0]
        return ids


def _start_controller(
    storage: Storage, options: dict[str, Any], address: str | None, cpus: float, detached: bool, lease: WriterLease
) -> ShardProcesses:
    """Connect to Ray, which readers and tests of the other parts do not need."""
    from stillhash.cluster.controller import Controller

    return Controller(storage, options, address=address, cpus=cpus, detached=detached, replaced=lambda: lease.lost)
