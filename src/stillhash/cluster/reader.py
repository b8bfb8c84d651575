"""Search an index on a cluster from any process: the answers of one machine, ties included, whichever replicas fail.

A reader keeps nothing but connections and the latest manifest, so any number of them can serve, and one that dies loses
nothing. It needs the storage and the shards' addresses on it, and no Ray.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stillhash.cluster.calls import Call
from stillhash.cluster.coordinator import Coordinator
from stillhash.cluster.manifest import ClusterManifest, latest_number, read_latest, read_manifest
from stillhash.cluster.messages import Message
from stillhash.cluster.requests import SearchRequest
from stillhash.cluster.shard import StaleNumber
from stillhash.cluster.storage import Storage
from stillhash.collection.filters.language import Condition, compile_filter
from stillhash.errors import InvalidInput, StillhashError, Unreachable
from stillhash.numeric import validation
from stillhash.numeric.codes import width
from stillhash.numeric.validation import Codes, Floats
from stillhash.search import Hits
from stillhash.search.blocks import IdArray, bitmap_by_id
from stillhash.search.merge import Floors, drop_below, merge_all, merge_top, no_floors

Read = TypeVar("Read")
PARTIAL_SHARE = 0.7  # of the time until the deadline, that a search which may be partial waits for all shards
POLL_SECONDS = 0.5  # between two reads of the number of the latest manifest


class PartialHits(Hits):
    """Hits, and the share of the rows that were not searched."""

    missing: float = 0.0

    def __new__(cls, scores: NDArray[np.float32], ids: IdArray, missing: float = 0.0) -> Self:
        hits = super().__new__(cls, scores, ids)
        hits.missing = missing
        return hits


class FanoutTiming(NamedTuple):
    """What one search of all shards took."""

    queries: int
    seconds: float  # from the call to the merged hits
    slowest: float  # of which the slowest shard worked


class ClusterSnapshot:
    """The index at one commit. Its searches share a deadline: the time at which all of them end."""

    def __init__(self, reader: "ClusterReader", manifest: ClusterManifest, until: float) -> None:
        self.manifest, self.bits, self._until = manifest, manifest.bits, until
        self._coordinator, self.partial, self._timings = reader.coordinator, reader.partial, reader.timings
        self._reader = reader

    def __len__(self) -> int:
        return self.manifest.rows

    def search_checked(self, weights: Floats, k: int, floors: Floors, allowed: Any = None) -> PartialHits:
        """Return the k best hits of each query from the floors up; the arguments are validated already.

        allowed: a bitmap by id or, where shards have items, a filter, also one that is compiled.
        """
        began = time.perf_counter()
        request = SearchRequest(weights, min(k, max(1, len(self))), floors, None, *_split_allowed(allowed))
        call = self._search(request)
        merged = merge_top([reply.hits[0] for reply in call.replies], k, len(weights))
        hits = PartialHits(*drop_below(merged, floors), call.missing)
        slowest = max((reply.header["seconds"] for reply in call.replies), default=0.0)
        self._timings.append(FanoutTiming(len(weights), time.perf_counter() - began, slowest))
        return hits

    def range_search_checked(self, weights: Floats, thresholds: NDArray[np.float64], allowed: Any) -> list[Hits]:
        """Return all hits of each query whose score is at least its threshold; the arguments are validated already."""
        call = self._search(SearchRequest(weights, 0, None, thresholds, *_split_allowed(allowed)))
        parts = [merge_all([reply.hits[q] for reply in call.replies]) for q in range(len(weights))]
        return [PartialHits(*hits, missing=call.missing) for hits in parts]

    def range_search(self, weights: ArrayLike, threshold: ArrayLike, *, allowed: Any = None) -> list[Hits]:
        """Return all hits whose score is at least the threshold (one number, or one per query), for each query."""
        weights = validation.check_weights(weights, self.bits)
        return self.range_search_checked(weights, validation.check_threshold(threshold, len(weights)), allowed)

    def codes(self, ids: ArrayLike) -> Codes:
        """Return the codes (n, ceil(bits / 8)) of these ids, which must all exist; an id may come more than once."""
        names, numbers = validation.check_repeated_ids(ids)
        codes = np.zeros((len(names), width(self.bits)), np.uint8)
        known = np.zeros(len(names), bool)
        for reply in self.ask("codes", {}, [names], partial=self.partial).replies if len(names) else ():
            places = np.searchsorted(names, reply.arrays[0])
            codes[places], known[places] = reply.arrays[1], True
        if not known.all():
            raise InvalidInput(f"ids: expected ids of the index, got {np.count_nonzero(~known)} that are not in it")
        return codes[numbers]

    def ask(self, kind: str, header: dict[str, Any], arrays: list[NDArray[Any]], *, partial: bool = False) -> Call:
        """Send a message to all shards with rows, and wait for their replies; none may be missing unless `partial`."""
        return self.finish(self.begin(kind, header, arrays, partial=partial))

    def begin(self, kind: str, header: dict[str, Any], arrays: list[NDArray[Any]], *, partial: bool = False) -> Call:
        """Send a message to all shards with rows, and return at once; `finish` waits for their replies."""
        rows = {shard: n for shard, n in self.manifest.shard_rows().items() if n}
        until, message = self._end(partial), Message(header, arrays)
        return self._coordinator.ask(kind, message, self.manifest.number, rows, until, partial=partial)

    def finish(self, call: Call) -> Call:
        """Wait for the replies to a message."""
        call.wait()
        return self._check(call)

    def _search(self, request: SearchRequest) -> Call:
        rows = self.manifest.shard_rows()
        number, until = self.manifest.number, self._end(self.partial)
        return self._check(self._coordinator.search(request, number, rows, until, partial=self.partial))

    def _end(self, partial: bool) -> float:
        """Return when a call ends: if it may be partial, early enough for more calls to the shards that did reply."""
        now = time.monotonic()
        return now + PARTIAL_SHARE * (self._until - now) if partial else self._until

    def _check(self, call: Call) -> Call:
        if call.stale:
            raise StaleNumber
        call.raise_error()
        latest = max((reply.header.get("latest", 0) for reply in call.replies), default=0)
        if latest > self.manifest.number:
            self._reader.look_soon()
        return call


def _split_allowed(allowed: Any) -> tuple[Any, Any]:
    """Return the bitmap of the argument `allowed`, and the filter as it travels."""
    if isinstance(allowed, Mapping):
        allowed = compile_filter(allowed)
    if isinstance(allowed, Condition):
        return None, allowed.to_json()
    return (None if allowed is None else bitmap_by_id(allowed)), None


class ClusterReader:
    """An exact index whose shards are on a cluster, to read from: any number of processes may have one.

    storage : the folder that all nodes see, or URL, at which the index is stored.
    deadline : seconds after which a search gives up on shards that do not reply, whatever it waits for: it raises
        Unreachable or, with `partial`, returns the hits of the others, and the share of rows not searched as
        `hits.missing`.
    """

    def __init__(self, storage: str | Path | Storage, *, deadline: float = 10.0, partial: bool = False) -> None:
        self.deadline, self.partial = validation.check_number(deadline, "deadline", above=0), bool(partial)
        self.storage = storage if isinstance(storage, Storage) else Storage(storage, create=False)
        self.timings: deque[FanoutTiming] = deque(maxlen=10_000)  # of the latest searches
        self._manifest = read_latest(self.storage)
        self._look, self._stopped = threading.Event(), threading.Event()
        self.coordinator = Coordinator(self.storage)
        self._thread = threading.Thread(target=self._follow, name="stillhash-manifest", daemon=True)
        self._thread.start()

    @property
    def bits(self) -> int:
        return self._manifest.bits

    @property
    def manifest(self) -> ClusterManifest:
        """The latest commit that is known here."""
        return self._manifest

    def __len__(self) -> int:
        return self._manifest.rows

    def search(self, weights: ArrayLike, k: int, *, allowed: Any = None) -> Hits:
        """Return the k best hits of each query: exactly what one index of all rows would return, ties included.

        weights: (m, bits), or (bits,) for one query. allowed: only ids i with allowed[i] true are hits; a boolean
        array, or a uint8 bitmap in little-endian bit order. Ids past its end are not allowed. Where shards have items,
        it may be a filter (collection/filters.py), which they evaluate.
        """
        weights = validation.check_weights(weights, self.bits)
        return self.search_checked(weights, validation.check_k(k, len(weights)), no_floors(len(weights)), allowed)

    def search_checked(self, weights: Floats, k: int, floors: Floors, allowed: Any = None) -> PartialHits:
        """Search as `search` does, for arguments that are validated already, hits of at least the floors."""
        return self._retry(lambda snapshot: snapshot.search_checked(weights, k, floors, allowed))

    def range_search(self, weights: ArrayLike, threshold: ArrayLike, *, allowed: Any = None) -> list[Hits]:
        """Return all hits whose score is at least the threshold (one number, or one per query), for each query."""
        return self._retry(lambda snapshot: snapshot.range_search(weights, threshold, allowed=allowed))

    def codes(self, ids: ArrayLike) -> Codes:
        """Return the codes (n, ceil(bits / 8)) of these ids, which must all exist; an id may come more than once."""
        return self._retry(lambda snapshot: snapshot.codes(ids))

    def snapshot(self, until: float | None = None) -> ClusterSnapshot:
        """Return the index at its latest commit. Searches raise StaleNumber once the shards have dropped it."""
        return ClusterSnapshot(self, self._manifest, time.monotonic() + self.deadline if until is None else until)

    def _retry(self, read: Callable[[ClusterSnapshot], Read]) -> Read:
        """Read from the latest commit; again from a later one if the shards have dropped it meanwhile."""
        until = time.monotonic() + self.deadline
        while True:
            try:
                return read(self.snapshot(until))
            except StaleNumber:
                self.refresh()
                if time.monotonic() > until:
                    raise Unreachable("commits: the shards dropped each one before the deadline") from None

    def refresh(self) -> ClusterManifest:
        """Read the latest manifest from the storage."""
        number = latest_number(self.storage)
        if number > self._manifest.number:
            self._use(read_manifest(self.storage, number))
        return self._manifest

    def look_soon(self) -> None:
        """Let the thread that follows the manifest look at once."""
        self._look.set()

    def readiness(self) -> dict[str, Any]:
        """Return whether every shard with rows has a replica that is connected, and which have none.

        Shards of which some replicas are connected and some are not are `degraded`.
        """
        ready = self.coordinator.ready_shards()
        lost = {endpoint.shard for endpoint, connected in self.coordinator.endpoints() if not connected}
        missing = sorted(shard for shard, rows in self._manifest.shard_rows().items() if rows and shard not in ready)
        state = {"ready": not missing, "number": self._manifest.number, "missing": missing, "replicas": ready}
        return {**state, "degraded": sorted(shard for shard in ready if shard in lost)}

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Wait until every shard with rows has a replica that is connected."""
        end = time.monotonic() + seconds
        while not (state := self.readiness())["ready"]:
            if time.monotonic() > end:
                raise Unreachable(f"shards {state['missing']} have no replica that answers after {seconds:g} seconds")
            self._stopped.wait(0.01)

    def close(self) -> None:
        """Close the connections. The shards go on."""
        self._stopped.set()
        self._look.set()
        self._thread.join()
        self.coordinator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _use(self, manifest: ClusterManifest) -> None:
        if manifest.number > self._manifest.number:
            self._manifest = manifest

    def _follow(self) -> None:
        while not self._stopped.is_set():
            self._look.wait(POLL_SECONDS)
            self._look.clear()
            if not self._stopped.is_set():
                with suppress(StillhashError):  # the storage is away; the latest known commit is served
                    self.refresh()
