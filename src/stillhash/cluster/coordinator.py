"""Send requests to one replica of every shard, retry on others, and merge the replies."""

import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import ray
from ray.exceptions import RayError

from stillhash.cluster.batching import PendingQuery, group_queries
from stillhash.cluster.id_map import IdMap, ShardState
from stillhash.cluster.replicas import Replica, ReplicaSet
from stillhash.cluster.shard import ShardChange
from stillhash.errors import InvalidInput, StillhashError, Unreachable
from stillhash.numeric.codes import width
from stillhash.numeric.validation import Codes
from stillhash.search.blocks import IdArray

HEDGE_SECONDS = 1.0  # without a reply, before another replica is called too
RETRY_SECONDS, MAX_RETRY_SECONDS = 0.02, 0.25  # before a failed call is repeated: at first, and at most
SHARED_BITMAP_BYTES = 50_000  # larger bitmaps go to the shards through the object store

ShardCalls = Mapping[ShardState, Sequence[Any]]  # the arguments for each shard


class FanoutTiming(NamedTuple):
    """What one fan-out to all shards took."""

    queries: int
    seconds: float  # from the first call to the merged hits
    slowest: float  # of which the slowest shard worked


class StaleVersion(Exception):
    """A shard has moved on from the requested version."""


class PendingReply:
    """The reply of one shard, and the calls under way for it."""

    def __init__(self, state: ShardState, args: Sequence[Any]) -> None:
        self.state, self.args = state, args
        self.calls: dict[Any, tuple[Replica, bool]] = {}  # by reference; True while the replica is loading its spec
        self.sent_at = self.retry_at = 0.0
        self.retry_seconds = RETRY_SECONDS
        self.value: Any = None
        self.error: Exception | None = None  # of the last call that failed


class Coordinator:
    """Fan requests out to the shards. `timings` has those of the latest searches."""

    def __init__(self, id_map: IdMap, replicas: ReplicaSet) -> None:
        self.timings: deque[FanoutTiming] = deque(maxlen=10_000)
        self._id_map, self._replicas = id_map, replicas
        self._turn = itertools.count()

    def search(self, batch: list[PendingQuery]) -> None:
        """Answer a batch of queries. If a shard is missing, those whose time is not up stay open."""
        until = min(query.until for query in batch)
        while True:
            states = [state for state in self._id_map.published if state.rows]
            groups, bitmaps = group_queries(batch, sum(state.rows for state in states))
            requests = [group.request for group in groups]
            sent = [ray.put(bitmap) if bitmap.nbytes > SHARED_BITMAP_BYTES else bitmap for bitmap in bitmaps]
            began = time.perf_counter()
            try:
                replies = self.fan_out("search", {s: (s.version, requests, *sent) for s in states}, until)
                break
            except StaleVersion:
                _pause(until)
        values = [reply.value for reply in replies if reply.value is not None]
        for number, group in enumerate(groups):
            group.deliver([value.hits[number] for value in values])
        slowest = max((value.seconds for value in values), default=0.0)
        self.timings.append(FanoutTiming(len(batch), time.perf_counter() - began, slowest))
        missing, error = _missing(replies)
        for query in batch:
            if error is None or query.until <= time.monotonic():
                query.missing, query.error, query.done = missing, error, True

    def codes(self, ids: IdArray, bits: int, until: float) -> Codes:
        """Return the codes of these ids, in their order."""
        while True:
            located = self._id_map.locate(ids)
            unknown = len(ids) - sum(state.rows for state in located)
            if unknown:
                raise InvalidInput(f"ids: {unknown} of {len(ids)} are not in the index")
            try:
                calls = {state: (state.version, held) for state, held in located.items()}
                replies = self.fan_out("codes", calls, until, required=True)
                break
            except StaleVersion:
                _pause(until)
        order = np.argsort(ids)
        codes = np.zeros((len(ids), width(bits)), np.uint8)
        for reply in replies:
            codes[order[np.searchsorted(ids, located[reply.state], sorter=order)]] = reply.value
        return codes

    def change(self, changes: Mapping[int, ShardChange], until: float, *, required: bool) -> None:
        """Send changes to all replicas, and wait for one of each shard; `required` raises if one does not reply."""
        for shard, change in changes.items():
            replicas = self._replicas.by_shard[shard]
            for replica in replicas if len(replicas) > 1 else ():
                replica.actor.change.remote(*change)
        calls = {ShardState(shard, change.version, 0): change for shard, change in changes.items()}
        self.fan_out("change", calls, until, strict=True, required=required)

    def fan_out(
        self, method: str, calls: ShardCalls, until: float, *, strict: bool = False, required: bool = False
    ) -> list[PendingReply]:
        """Call a method on one replica of each shard, and on others where one fails, until this time.

        strict: raise what a replica refuses, instead of asking another. required: raise if a shard does not reply.
        """
        replies, turn = [PendingReply(state, args) for state, args in calls.items()], next(self._turn)
        for reply in replies:
            self._send(reply, method, turn)
        if _collect(replies, until):
            return replies
        sent = {ref: reply for reply in replies for ref in reply.calls}
        for ref in ray.wait(list(sent), num_returns=len(sent), timeout=0)[0]:
            self._receive(sent[ref], ref, method)
        while (waiting := [reply for reply in replies if reply.value is None]) and time.monotonic() < until:
            self._retry(waiting, method, until)
            for reply in waiting:
                if strict and isinstance(reply.error, StillhashError):
                    raise getattr(reply.error, "cause", reply.error)
        if required and (error := _missing(replies)[1]) is not None:
            raise error
        return replies

    def _retry(self, waiting: list[PendingReply], method: str, until: float) -> None:
        """Ask more replicas where it is time to, and take what comes back next."""
        now = time.monotonic()
        for reply in waiting:
            replicas = self._replicas.by_shard[reply.state.shard]
            slow = now - reply.sent_at > HEDGE_SECONDS and len(reply.calls) < len(replicas)
            if slow or (not reply.calls and now >= reply.retry_at):
                self._send(reply, method, next(self._turn))
        sent = {ref: reply for reply in waiting for ref in reply.calls}
        if not sent:
            time.sleep(max(0.0, min(min(reply.retry_at for reply in waiting), until) - now))
            return
        ready, _ = ray.wait(list(sent), num_returns=1, timeout=max(0.0, min(MAX_RETRY_SECONDS, until - now)))
        for ref in ready:
            self._receive(sent[ref], ref, method)

    def _send(self, reply: PendingReply, method: str, turn: int) -> None:
        """Call the next replica in turn that is not being called."""
        replicas = self._replicas.by_shard[reply.state.shard]
        called = [replica for replica, _ in reply.calls.values()]
        for n in range(len(replicas)):
            replica = replicas[(turn + n) % len(replicas)]
            if replica not in called:
                _call(reply, replica, method)
                reply.sent_at = time.monotonic()
                return

    def _receive(self, reply: PendingReply, ref: Any, method: str) -> None:
        """Take a value or a failure. A replica without the version loads its spec, and is then called again."""
        replica, loading = reply.calls.pop(ref)
        try:
            value = ray.get(ref)
        except (RayError, StillhashError) as error:
            reply.error = error
            reply.retry_at = time.monotonic() + reply.retry_seconds
            reply.retry_seconds = min(2 * reply.retry_seconds, MAX_RETRY_SECONDS)
            return
        if loading:
            replica.update(value)
            _call(reply, replica, method)
        elif value is None:
            spec = self._id_map.spec(reply.state.shard)
            if spec.version != reply.state.version:
                raise StaleVersion
            reply.calls[replica.actor.load.remote(*spec)] = replica, True
        else:
            reply.value = value


def _call(reply: PendingReply, replica: Replica, method: str) -> None:
    reply.calls[getattr(replica.actor, method).remote(*reply.args)] = replica, False


def _collect(replies: list[PendingReply], until: float) -> bool:
    """Take all values with one call, as it nearly always works; False if one failed, is late or is None."""
    refs = [ref for reply in replies for ref in reply.calls]
    try:
        values = ray.get(refs, timeout=max(0.0, min(HEDGE_SECONDS, until - time.monotonic())))
    except (RayError, StillhashError):
        return False
    if any(value is None for value in values):
        return False
    for reply, value in zip(replies, values, strict=True):
        reply.value = value
    return True


def _pause(until: float) -> None:
    """Wait before asking for the current version, since the last one has passed."""
    if time.monotonic() > until:
        raise Unreachable("the shards did not reach one version before the deadline")
    time.sleep(RETRY_SECONDS)


def _missing(replies: Sequence[PendingReply]) -> tuple[float, Unreachable | None]:
    """Return the share of rows that did not reply, and the error that says so."""
    gaps = [reply for reply in replies if reply.value is None]
    if not gaps:
        return 0.0, None
    share = sum(reply.state.rows for reply in gaps) / max(1, sum(reply.state.rows for reply in replies))
    shards = ", ".join(str(reply.state.shard) for reply in gaps)
    errors = [str(reply.error).strip().splitlines()[-1] for reply in gaps if str(reply.error or "").strip()]
    message = f"shards {shards} of {len(replies)} did not reply before the deadline"
    return share, Unreachable(": ".join([message, *errors[:1]]))
