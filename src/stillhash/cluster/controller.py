"""Keep the replicas of every shard running: start, replace, move and stop them through Ray.

Ray starts processes, restarts those that end, and restarts those of a lost node on another one. What is left to do is
here: choose nodes so that replicas of a shard are apart, move replicas when nodes come, go or are drained, and remove
the endpoints of replicas that are gone. Searches do not pass through here and go on while Ray's head is away.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from stillhash.cluster.control_files import ask_status, delete_endpoint, delete_endpoints, read_drained, write_drained
from stillhash.cluster.local import alive_nodes, check_head, connect
from stillhash.cluster.node_choice import best_node, check_capacity, next_move, usable_nodes
from stillhash.cluster.replica_actors import Replica, ReplicaActors, server_classes
from stillhash.cluster.replica_table import ReplicaTable, replica_targets
from stillhash.cluster.storage import Storage
from stillhash.errors import Conflict, InvalidInput, StillhashError, Unreachable
from stillhash.numeric.validation import check_number

ROUND_SECONDS = 0.5  # between two rounds
SETTLE_SECONDS = 3.0  # until Ray has counted CPUs that were just freed
ACTOR_STOP_SECONDS = 5.0  # for an actor to stop by itself
REPLY_SECONDS = 1.0  # for actors to report their status
TRANSIENT_ERRORS = (RayError, StillhashError, ConnectionError, RuntimeError, ValueError)  # the next round may succeed
HEAD_SECONDS = 5.0  # after which a head that does not answer is reported
ENDPOINT_ROUNDS = 20  # rounds between two looks for endpoints that were left behind


class Controller:
    """Start and watch the actors of one storage. Those that another process started are found by their names.

    options : passed to every server. address : of a Ray cluster, unless this process is connected to one.
    cpus : that each actor claims from Ray. detached : actors outlive this process, and the next controller takes them
    over. grace : seconds from the withdrawal of an endpoint, which readers notice within 2, to the stop.
    classes : of the servers, "shard" and "aggregator"; by default ShardServer and AggregatorServer.
    replaced : says whether another process has taken over; from then on, its actors are left alone.
    """

    def __init__(
        self,
        storage: Storage,
        options: dict[str, Any] | None = None,
        *,
        address: str | None = None,
        cpus: float = 0.25,
        detached: bool = True,
        grace: float = 3.0,
        classes: Mapping[str, type] | None = None,
        replaced: Callable[[], bool] = lambda: False,
    ) -> None:
        self.storage, self._cpus, self._replaced = storage, check_number(cpus, "cpus", above=0), replaced
        self._connected = connect(address)
        self._actors = ReplicaActors(
            storage.id[:12], storage.url, cpus, classes or server_classes(), options or {}, detached
        )
        self._detached, self._here = detached, str(ray.get_runtime_context().get_node_id())
        self._lock, self._round_lock = threading.RLock(), threading.Lock()
        self._nodes, self._checked_at, self._rounds = alive_nodes(), time.monotonic(), 0
        self._drained = read_drained(storage) & {node.id for node in self._nodes}
        self._table = ReplicaTable(self._actors.start, grace)
        self._table.adopt(self._actors.names(), self._actors.find)
        self._stopped, self._started = threading.Event(), False

    def _start_threads(self) -> None:
        """Check replicas and nodes from now on, in two threads."""
        if self._started:
            return
        self._started = True
        for target in (Controller.ping, Controller.reconcile):  # a head that does not answer holds up the second only
            options: Any = {"name": f"stillhash-{target.__name__}", "daemon": True}
            threading.Thread(target=_run, args=(weakref.ref(self), target, self._stopped), **options).start()

    def ensure(
        self, shards: Iterable[int], replicas: int, aggregators: int | None = None, seconds: float = 60.0
    ) -> None:
        """Have so many replicas of each of these shards, and no other shards; wait until the new ones run.

        aggregators : by default, none where a front asks all shards itself, else one for each group of them.
        Unreachable, and no change, if there is no capacity for them, or if one does not start.
        """
        targets = replica_targets(shards, replicas, aggregators)
        self._check()
        with self._round_lock:
            before = self._table.targets
            missing = [group for group, count in targets.items() for _ in range(count - self._table.count(group))]
            self._check_capacity(len(missing))
            started = self._start_all(missing)
            try:
                self._wait_started(started, seconds)
            except BaseException:
                for replica in started:
                    self._stop(replica)
                with self._lock:
                    self._table.targets = before
                raise
            with self._lock:
                self._table.targets = targets
        self.reconcile()
        self._start_threads()

    def wait_ready(self, number: int = 0, seconds: float = 60.0) -> None:
        """Wait until every replica has reported that it has loaded this commit or a later one."""
        began = time.monotonic()
        self._wait(lambda: self._table.ready(number, began), seconds, "not all replicas were up to date")

    def drain(self, node: str, seconds: float = 600.0) -> int:
        """Move every replica off a node, and use it no more until `undrain`; how many moved."""
        self._check()
        self._nodes = alive_nodes()
        if node not in (names := [each.id for each in self._nodes]):
            raise InvalidInput(f"node: expected one of {', '.join(names)}, got {node!r}")
        with self._lock:
            capacity = usable_nodes(self._nodes, self._cpus, {*self._drained, node}, self._here)
            if not capacity:
                raise Conflict(f"node: {node!r} is the last that is not drained. Add another first.")
            if sum(capacity.values()) < len(self._table.placed()):
                raise Conflict(f"node: the others have no capacity for the replicas of {node!r}. Add another first.")
            moving = self._table.count_on(node)
            write_drained(self.storage, self._drained | {node})
            self._drained |= {node}
        self._wait(lambda: not self._table.on(node), seconds, f"not all replicas had left {node!r}")
        return moving

    def undrain(self, node: str, seconds: float = 600.0) -> int:
        """Use a drained node again, and move replicas to it as to a new one; how many moved."""
        with self._lock:
            if node not in self._drained:
                raise InvalidInput(f"node: expected one of {', '.join(sorted(self._drained)) or 'none'}, got {node!r}")
            write_drained(self.storage, self._drained - {node})
            self._drained -= {node}
        return self.rebalance(seconds)

    def rebalance(self, seconds: float = 600.0) -> int:
        """Move replicas until the nodes hold alike and lost ones are replaced; how many moved since the call.

        All replicas have answered since then, and none moves or stops. Unreachable, and why, if that takes longer.
        """
        before, began = self._table.moved, time.monotonic()
        self._wait(lambda: self._is_settled(began), seconds, "not all replicas had been replaced and moved")
        return self._table.moved - before

    def status(self) -> dict[str, Any]:
        """Return nodes, moves and problems as of the last round, and what the actors reply within a second."""
        self._refresh()
        with self._lock:
            self._table.ping()
            away = time.monotonic() - self._checked_at
            problems = list(self._table.problems())
            if away > HEAD_SECONDS:
                problems.append(f"Ray's head has not answered for {away:.0f} seconds: nothing is replaced or moved")
            return {
                "nodes": [node.id for node in self._nodes],
                "addresses": {node.id: node.address for node in self._nodes},
                "drained": sorted(self._drained),
                **self._table.status(),
                "problems": problems,
            }

    def ping(self) -> None:
        """Ask every replica for its status; replies count in the next round."""
        with self._lock:
            self._table.ping()

    def reconcile(self) -> None:
        """Compare what runs with what should, and take the next step towards it."""
        self._check()
        with self._round_lock:
            listed_at = time.monotonic()
            nodes, names = alive_nodes(), self._actors.names()
            with self._lock:
                self._nodes, self._checked_at = nodes, time.monotonic()
                self._table.forget(names, listed_at)
                self._table.adopt(names, self._actors.find)
                self._table.ping()
                slots = usable_nodes(nodes, self._cpus, self._drained, self._here)
                withdrawn, stopping = self._table.advance(slots)
                unreached = self._table.unreached()
            for replica in unreached:  # restarted after Ray's head had ended, which Ray does not report
                status = ask_status(self.storage, str(replica.name))
                with self._lock:
                    replica.accept(status)
            for replica in withdrawn:
                delete_endpoint(self.storage, str(replica.name))
            for replica in stopping:
                self._stop(replica)
            if self._rounds % ENDPOINT_ROUNDS == 0:
                existing = {str(name) for name in names}
                delete_endpoints(self.storage, self._actors.key, lambda n: n in existing or self._table.has(n))
            self._rounds += 1

    def stop_all(self) -> None:
        """Stop every actor of this storage, also those that another process started."""
        with self._round_lock:
            with self._lock:
                self._table.targets = None
                self._table.adopt(self._actors.names(), self._actors.find)
                replicas = self._table.clear()
            for replica in replicas:
                self._stop(replica)

    def close(self, *, stop: bool | None = None) -> None:
        """End the threads; stop the actors too unless they are detached, or as `stop` says."""
        self._stopped.set()
        if (not self._detached if stop is None else stop) and ray.is_initialized() and not self._replaced():
            with suppress(Unreachable):  # without a head, actors that are not detached end with this process
                check_head()
                self.stop_all()
        if self._connected:
            self._connected = False
            ray.shutdown()

    def _refresh(self) -> None:
        for _ in range(2):  # a request under way may be an earlier one
            with self._lock:
                requests = self._table.requests()
            if requests:
                ray.wait(requests, num_returns=len(requests), timeout=REPLY_SECONDS)

    def _check(self) -> None:
        """Raise Conflict if another process has taken over, and Unreachable if Ray's head does not answer."""
        if self._replaced():
            raise Conflict("replicas: another writer has taken over, and controls them now")
        check_head()

    def _start_all(self, groups: Iterable[str]) -> list[Replica]:
        started = []
        with self._lock:
            slots = usable_nodes(self._nodes, self._cpus, self._drained, self._here)
            for group in groups:
                node = best_node(group, self._table.placed(), slots) or self._here
                started.append(self._table.add(self._actors.start(group, node)))
        return started

    def _wait_started(self, started: list[Replica], seconds: float) -> None:
        end = time.monotonic() + seconds
        while waiting := [replica for replica in started if replica.status is None]:
            ended = next((replica for replica in waiting if replica.ended), None)
            if ended is not None:
                raise Unreachable(f"a replica of {ended.name.group} did not start: {ended.failure}")
            if time.monotonic() > end:
                groups = ", ".join(sorted({replica.name.group for replica in waiting}))
                raise Unreachable(f"{len(waiting)} replicas did not start within {seconds:g} seconds: {groups}")
            self.ping()
            time.sleep(0.02)

    def _check_capacity(self, count: int) -> None:
        """Raise Unreachable unless so many more replicas fit, within moments."""
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            self._nodes = alive_nodes()
            slots = usable_nodes(self._nodes, self._cpus, self._drained, self._here)
            held = {name: sum(placed.node == name for placed in self._table.placed()) for name in slots}
            capacity = {name: max(0, slots[name] - held[name]) for name in slots}
            free = float(ray.available_resources().get("CPU", 0.0))  # type: ignore[no-untyped-call]
            try:
                return check_capacity(count, self._cpus, capacity, free)
            except Unreachable:
                if sum(capacity.values()) < count or time.monotonic() > end:
                    raise
            time.sleep(0.1)

    def _wait(self, condition: Callable[[], bool], seconds: float, failure: str) -> None:
        began = time.monotonic()
        while True:
            self.reconcile()
            with self._lock:
                if condition():
                    return
                problems = "; ".join([*self._table.problems(), *self._table.silent(began)])
            if time.monotonic() > began + seconds:
                raise Unreachable(f"{failure} within {seconds:g} seconds" + (f": {problems}" if problems else ""))
            time.sleep(0.1)

    def _is_settled(self, since: float) -> bool:
        slots = usable_nodes(self._nodes, self._cpus, self._drained, self._here)
        complete = not self._table.is_changing and self._table.ready(0, since)
        return complete and next_move(self._table.placed(), slots) is None

    def _stop(self, replica: Replica) -> None:
        with self._lock:
            self._table.drop(replica)
        self._actors.stop(replica, ACTOR_STOP_SECONDS)
        delete_endpoint(self.storage, str(replica.name))


def _run(reference: weakref.ref[Controller], target: Callable[[Controller], None], stopped: threading.Event) -> None:
    while not stopped.wait(ROUND_SECONDS):
        controller = reference()
        if controller is None or not ray.is_initialized():  # else a call would start another cluster
            return
        with suppress(*TRANSIENT_ERRORS):
            target(controller)
        del controller
