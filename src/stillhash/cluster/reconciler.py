"""Keep a cluster as it should be: reload replicas that are behind, replace lost ones, and balance nodes and shards."""

import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from stillhash.cluster.id_map import IdMap
from stillhash.cluster.replicas import Replica, ReplicaSet
from stillhash.errors import Conflict, InvalidInput, StillhashError, Unreachable

RECONCILE_SECONDS = 1.0  # between two rounds
UNKNOWN_STATUS = {"rows": 0, "nbytes": 0, "plan": "scan", "merging": False}


class Reconciler:
    """Check nodes and replicas once a second in a thread, and move replicas and segments on demand.

    count : replicas of each shard. deadline : seconds that a replica which moves has for its last requests.
    """

    def __init__(self, id_map: IdMap, replicas: ReplicaSet, count: int, deadline: float) -> None:
        self._id_map, self._replicas, self._count, self._deadline = id_map, replicas, count, deadline
        self._move_lock, self._ping_lock = threading.RLock(), threading.Lock()
        self._drained, self._alive, self._unbalanced = set[str](), set[str](), False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=_run, args=(weakref.ref(self), self._stopped), daemon=True)

    def start(self) -> None:
        self._alive = set(self._replicas.nodes())
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def reconcile(self) -> None:
        """Check nodes and replicas once; rebalance when nodes came or went and all replicas are ready."""
        alive = set(self._replicas.nodes())
        self._unbalanced = self._unbalanced or alive != self._alive
        self._alive = alive
        self._ping()
        if self._unbalanced and self._all_ready(alive):
            self._unbalanced = False
            self.rebalance()

    def wait_ready(self, seconds: float) -> None:
        """Wait until every replica has reported the current version."""
        began = time.monotonic()
        self._refresh(0.25)
        while not self._all_ready(set(self._replicas.nodes()), began):
            if time.monotonic() > began + seconds:
                raise Unreachable(f"not all replicas were up to date within {seconds:g} seconds")
            self._refresh(0.25)

    def status(self) -> dict[str, Any]:
        """Return nodes, shards and their actors, and whether all of them are up to date."""
        began = time.monotonic()
        self._refresh(1.0)
        alive = set(self._replicas.nodes())
        actors = []
        for shard, replicas in list(self._replicas.by_shard.items()):
            for number, replica in enumerate(replicas):
                known = replica.status._asdict() if replica.status else UNKNOWN_STATUS
                ready = self._ready(shard, replica, alive, began)
                actors.append({"shard": shard, "replica": number, **known, "node": replica.node, "ready": ready})
        return {
            "rows": len(self._id_map),
            "bits": self._id_map.bits,
            "shards": [{"shard": s.shard, "rows": s.rows, "version": s.version} for s in self._id_map.published],
            "nodes": sorted(alive),
            "drained": sorted(self._drained),
            "actors": actors,
            "ready": all(actor["ready"] for actor in actors),
        }

    def _ping(self) -> None:
        """Receive what replicas replied since the last ping, and ping them again, with the spec if they are behind."""
        with self._ping_lock:
            for shard, replica in self._replicas.all():
                if replica.receive_ping():
                    behind = replica.is_behind(self._id_map.version(shard))
                    replica.send_ping(self._id_map.spec(shard) if behind else None)

    def _refresh(self, seconds: float) -> None:
        """Ping every replica, and give them so long to reply."""
        for _ in range(2):  # a ping under way may be an earlier one
            self._ping()
            pings = [replica.ping for _, replica in self._replicas.all() if replica.ping is not None]  # one may be new
            ray.wait(pings, num_returns=len(pings), timeout=seconds)
        self._ping()

    def _ready(self, shard: int, replica: Replica, alive: set[str], since: float) -> bool:
        """Whether the replica has replied since this time, runs on a live node and is up to date."""
        replied = replica.status is not None and replica.replied_at >= since
        return replied and replica.node in alive and not replica.is_behind(self._id_map.version(shard))

    def _all_ready(self, alive: set[str], since: float = 0.0) -> bool:
        return all(self._ready(shard, replica, alive, since) for shard, replica in self._replicas.all())

    def add_shards(self, count: int) -> list[int]:
        """Start so many new, empty shards; their numbers."""
        with self._move_lock, self._id_map.write_lock:
            shards = self._id_map.add_shards(count)
            nodes = self._replicas.nodes(self._drained)
            try:
                for shard in shards:
                    self._replicas.start_shard(shard, self._count, nodes)
                self._load(shards)
            except BaseException:
                for shard in shards:
                    self._replicas.stop_shard(shard)
                self._id_map.drop_shards(shards)
                raise
            self._id_map.publish()
        return shards

    def drain(self, node: str) -> int:
        """Move every replica off a node, and use it no more; how many moved."""
        alive = self._replicas.nodes()
        if node not in alive:
            raise InvalidInput(f"node: expected one of {', '.join(alive)}, got {node!r}")
        if not self._replicas.nodes({*self._drained, node}):
            raise Conflict(f"node: {node!r} is the last that is not drained. Add another first.")
        self._drained.add(node)
        moved = self.rebalance()
        if any(replica.node == node for _, replica in self._replicas.all()):
            raise Conflict(f"node: the other nodes have no capacity for all replicas of {node!r}. Add another first.")
        return moved

    def rebalance(self) -> int:
        """Move replicas between nodes, then segments between shards; how many moved."""
        with self._move_lock:
            self._refresh(1.0)  # to know where the replicas are
            moved = 0
            while (move := self._replicas.next_move(self._replicas.nodes(self._drained))) and self._move(*move):
                moved += 1
            return moved + self._balance_shards()

    def _move(self, shard: int, old: Replica, node: str) -> bool:
        """Start a replica on another node and stop the old one once it is ready; False if the node has no capacity."""
        new = self._replicas.start(node)
        try:
            new.load(self._id_map.spec(shard))  # most of the work, without holding up writes
            if new.node != node:
                self._replicas.stop(new)
                return False
            with self._id_map.write_lock:
                new.load(self._id_map.spec(shard))
                self._replicas.replace(shard, old, new)
        except BaseException:
            self._replicas.stop(new)
            raise
        # Requests that it received before are answered first; callers that are cut off ask the new replica.
        ray.wait([old.actor.status.remote()], timeout=self._deadline)
        self._replicas.stop(old)
        return True

    def _balance_shards(self) -> int:
        """Move segments from the largest shard to the smallest for as long as that brings them closer."""
        moved = 0
        while True:
            with self._id_map.write_lock:
                changed = self._id_map.move_segment()
                if changed is None:
                    return moved
                try:
                    self._load(changed)  # both have the new version before searches ask for it
                finally:
                    self._id_map.publish()  # a replica that failed reloads on the next request
            moved += 1

    def _load(self, shards: Iterable[int]) -> None:
        for shard in shards:
            for replica in self._replicas.by_shard[shard]:
                replica.load(self._id_map.spec(shard))


def _run(reference: weakref.ref[Reconciler], stopped: threading.Event) -> None:
    while not stopped.wait(RECONCILE_SECONDS):
        reconciler = reference()
        if reconciler is None or not ray.is_initialized():  # else a call would start another cluster
            return
        with suppress(RayError, StillhashError, ConnectionError, RuntimeError):  # the next round may succeed
            reconciler.reconcile()
        del reconciler
