"""An index spread over a Ray cluster: the answers of one machine, ties included, whatever happens to the others.

The process that has a ClusterIndex knows which rows there are and which shard holds them; codes are only in segments,
on storage, and in the shards that map them. A lost actor or node therefore loses nothing: Ray starts the actor again,
it is told what to hold, and questions that it left open are asked again. No answer is ever short without saying so.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import ray

from stillhash.cluster.batching import Batches
from stillhash.cluster.connection import connect
from stillhash.cluster.fanout import PartialHits, Reading, Trip
from stillhash.cluster.id_map import Entry, Ledger
from stillhash.cluster.reconciler import Keeper
from stillhash.cluster.replicas import Crew, Order, Part, Want
from stillhash.cluster.storage import CACHE, Cache, Piece, Storage, found
from stillhash.numeric.validation import check_bits, check_codes, check_ids, check_integer, check_number
from stillhash.search.blocks import Ids

__all__ = ["ClusterIndex", "PartialHits"]

VERSIONS = itertools.count(1)  # of the states of shards; none is ever used twice
NONE: Ids = np.empty(0, np.int64)


class ClusterIndex(Reading):
    """An exact index of codes of `bits` bits over so many shards, each of them `replicas` times.

    address : of a Ray cluster; without one, the cluster that this process is connected to, or a new one, just here.
    storage : a folder that all nodes see, or a URL for fsspec, where the codes that are added are kept until `close`.
    deadline : seconds after which a search gives up on shards that do not answer: it raises Unreachable or, with
        `partial`, gives the hits of the others, with the share of rows that are missing as `hits.missing`.
    threads, cpus : that a search in a shard uses at most, and that a shard claims from Ray.
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
        cache_bytes: int = CACHE,
    ) -> None:
        self.bits = check_bits(bits)
        self.replicas = check_integer(replicas, "replicas", 1)
        self.deadline, self.partial = check_number(deadline, "deadline", above=0), bool(partial)
        self.trips: deque[Trip] = deque(maxlen=10_000)
        check_integer(shards, "shards", 1)
        check_number(cpus, "cpus", above=0)
        self.storage = Storage(storage)
        self._cache = Cache(cache, check_integer(cache_bytes, "cache_bytes", 0))
        self._connected = connect(address)
        self._ledger = Ledger(self.bits)
        self._versions: dict[int, int] = {}
        self._truth = threading.Lock()  # ledger and versions belong together
        self._writing = threading.RLock()
        args = (None if cache is None else str(cache), cache_bytes, threads)
        # A lone replica is waited for by Ray itself; with others beside it, its failure is wanted at once.
        self._crew = self._made_crew(cpus, args, -1 if self.replicas == 1 else 0)
        self._batches = Batches(self._answer, self.replicas)
        self._state: tuple[Part, ...] = ()
        self._keeper = Keeper(self)
        try:
            self._keeper.add_shards(shards)
        except BaseException:
            self.close()
            raise
        self._keeper.start()

    def __len__(self) -> int:
        return sum(part.rows for part in self._state)

    def __repr__(self) -> str:
        return f"ClusterIndex(bits={self.bits}, rows={len(self)}, shards={len(self._state)}, replicas={self.replicas})"

    @property
    def nbytes(self) -> int:
        """Bytes that the shards hold in memory or mapped, replicas included."""
        return sum(about["nbytes"] for about in self.status()["actors"])

    @property
    def plan(self) -> str:
        """How queries begin on most shards: on "tables", or as a "scan" of all codes."""
        plans = [about["plan"] for about in self.status()["actors"]]
        return max(("scan", "tables"), key=plans.count)

    def ids(self) -> Ids:
        """The ids that are there, rising."""
        return self._ledger.ids()

    # ---- writing ----

    def add(self, codes: Any, ids: Any = None) -> None:
        """Adds codes (n, ceil(bits / 8)) under their ids, or under the next free numbers, to the smallest shard."""
        codes = check_codes(codes, self.bits)
        with self._writing:
            numbers = self._ledger.new_ids(ids, len(codes))
            if not len(codes):
                return
            order = np.argsort(numbers)
            numbers = numbers[order]
            piece = self.storage.write(codes[order], numbers, self.bits)
            try:
                self._hold([(piece, numbers)], ours=True)
            except BaseException:
                self.storage.drop(piece)
                raise

    def add_segments(self, paths: Iterable[str | Path]) -> None:
        """Adds sealed segments where they lie: paths that all nodes see, or URLs. They must stay there."""
        with self._writing:
            pieces = [found(path, self.bits, self._cache) for path in paths]
            self._hold([(piece, segment.row_numbers()) for piece, segment in pieces], ours=False)

    def remove(self, ids: Any) -> int:
        """Removes these ids and says how many were there; unknown ids are passed over."""
        ids = check_ids(ids)
        with self._writing:
            gone = self._ledger.where(ids)
            if gone:
                with self._truth:
                    self._ledger.strike(ids)
                    bases = self._advance(gone)
                try:  # a shard that does not answer learns of it when it is back: before, it is not up to date
                    self._tell({shard: ([], names) for shard, names in gone.items()}, bases)
                finally:
                    self._publish()
        return sum(len(names) for names in gone.values())

    def clear(self) -> None:
        """Removes all rows; ids begin at 0 again."""
        with self._writing:
            dropped = self._ledger.entries
            with self._truth:
                self._ledger = Ledger(self.bits)
                self._advance(self._versions)
            self._publish()
            self._drop(dropped)

    # ---- the crew ----

    def status(self) -> dict[str, Any]:
        """What runs where: nodes, shards and their actors, and whether all of them are up to date."""
        return self._keeper.status()

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Returns once every actor is up to date."""
        self._keeper.wait_ready(seconds)

    def rebalance(self) -> int:
        """Moves actors, then segments, until nodes and shards hold alike; how many moved. Searches go on meanwhile."""
        return self._keeper.rebalance()

    def add_shard(self) -> int:
        """One more shard, which `rebalance` and later `add`s fill; its number."""
        return self._keeper.add_shards(1)[0]

    def drain(self, node: str) -> int:
        """Moves every actor off this node, and uses it no more; how many moved."""
        return self._keeper.drain(node)

    def close(self) -> None:
        """Ends the actors, and drops what `add` wrote."""
        self._keeper.stop()
        for members in self._crew.members.values() if ray.is_initialized() else ():
            for member in members:
                self._crew.stop(member)
        self._crew.members = {}
        self._drop(self._ledger.entries)
        self._ledger, self._state = Ledger(self.bits), ()
        if self._connected:
            self._connected = False
            ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ---- inside ----

    def _made_crew(self, cpus: float, args: tuple[Any, ...], retries: int) -> Crew:
        return Crew(self._order, cpus, args, retries)

    def _order(self, shard: int) -> Order:
        with self._truth:
            return Order(self._versions[shard], self.bits, self._ledger.held(shard))

    def _advance(self, shards: Iterable[int]) -> dict[int, int]:
        """Gives these shards a new version; their old ones. Under the lock of the truth."""
        shards = list(shards)
        bases = {shard: self._versions.get(shard, -1) for shard in shards}
        self._versions.update(dict.fromkeys(shards, next(VERSIONS)))
        return bases

    def _hold(self, pieces: list[tuple[Piece, Ids]], *, ours: bool) -> None:
        """Gives each piece to the smallest shard; all are kept, or none."""
        before = self._ledger.entries
        changes: dict[int, tuple[list[Piece], Ids]] = {}
        bases: dict[int, int] = {}
        try:
            with self._truth:
                for piece, numbers in pieces:
                    if not ours:
                        self._ledger.new_ids(numbers, len(numbers))
                    shard = min(self._versions, key=lambda s: (self._ledger.rows(s), s))
                    self._ledger.hold(piece, numbers, shard, ours)
                    changes.setdefault(shard, ([], NONE))[0].append(piece)
                bases = self._advance(changes)
            self._refuse_gaps(self._tell(changes, bases))
        except BaseException:
            with self._truth:
                self._ledger.restore(before)
                self._versions.update(bases)
            raise
        self._publish()

    def _tell(self, changes: dict[int, tuple[list[Piece], Ids]], bases: dict[int, int]) -> dict[int, Want]:
        """Tells all replicas what changes; waits for one of each shard."""

        def send(actor: Any, part: Part) -> Any:
            return actor.change.remote(part.version, bases[part.shard], *changes[part.shard])

        parts = [Part(shard, self._versions[shard], 0) for shard in changes]
        if self.replicas > 1:
            for part in parts:
                for member in self._crew.members[part.shard]:
                    send(member.actor, part)
        return self._crew.gather(parts, send, time.monotonic() + self.deadline, strict=True)

    def _publish(self) -> None:
        """From here on, searches see the state that was told to the shards."""
        with self._truth:
            self._state = tuple(Part(s, version, self._ledger.rows(s)) for s, version in self._versions.items())

    def _drop(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.ours:
                self.storage.drop(entry.piece)
