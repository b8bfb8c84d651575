"""The replicas of every shard: actors that hold the same segments, and the nodes they run on."""

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from stillhash.cluster.shard import Shard, ShardSpec, ShardStatus
from stillhash.errors import StillhashError, Unreachable

ACTOR_START_SECONDS = 60.0


class Replica:
    """One actor, and the status that it reported last."""

    def __init__(self, actor: Any, node: str) -> None:
        self.actor, self.node = actor, node
        self.status: ShardStatus | None = None
        self.ping: Any = None  # the reference of a status call under way
        self.pinged_at = self.replied_at = 0.0  # when the last ping was sent, and the last that was answered

    def update(self, status: ShardStatus) -> None:
        self.status, self.node = status, status.node

    def receive_ping(self) -> bool:
        """Take the reply to the last ping; False while there is none."""
        if self.ping is None:
            return True
        if not ray.wait([self.ping], timeout=0)[0]:
            return False
        try:
            self.update(ray.get(self.ping))
            self.replied_at = self.pinged_at
        except (RayError, StillhashError):
            self.status = None
        return True

    def send_ping(self, spec: ShardSpec | None) -> None:
        """Ask for the status, after loading the spec if there is one."""
        self.pinged_at = time.monotonic()
        self.ping = self.actor.status.remote() if spec is None else self.actor.load.remote(*spec)

    def load(self, spec: ShardSpec) -> None:
        """Load a spec and wait for it; Unreachable if the actor does not start."""
        try:
            self.update(ray.get(self.actor.load.remote(*spec), timeout=ACTOR_START_SECONDS))
        except RayError as error:
            if isinstance(error, StillhashError):
                raise getattr(error, "cause", error) from error
            raise Unreachable(f"a replica did not start: {error}") from error

    def is_behind(self, version: int | None) -> bool:
        """Whether it reported another version than this."""
        return self.status is not None and self.status.version != version


class ReplicaSet:
    """The replicas of each shard; all of them claim `cpus` and get `shard_args`."""

    def __init__(self, cpus: float, shard_args: tuple[Any, ...], task_retries: int) -> None:
        self.by_shard: dict[int, tuple[Replica, ...]] = {}
        self._cpus, self._shard_args = cpus, shard_args
        self._actor_class: Any = ray.remote(num_cpus=cpus, max_restarts=-1, max_task_retries=task_retries)(Shard)

    def all(self) -> list[tuple[int, Replica]]:
        """Return every replica, with its shard."""
        return [(shard, replica) for shard, replicas in list(self.by_shard.items()) for replica in replicas]

    def start(self, node: str | None) -> Replica:
        """Start a replica on this node if it has capacity, else on any."""
        strategy = "SPREAD" if node is None else NodeAffinitySchedulingStrategy(node, soft=True)
        return Replica(self._actor_class.options(scheduling_strategy=strategy).remote(*self._shard_args), node or "")

    def start_shard(self, shard: int, count: int, nodes: list[str]) -> None:
        """Start the replicas of a new shard, on different nodes where there are enough."""
        self.by_shard[shard] = ()
        for _ in range(count):
            self.by_shard[shard] += (self.start(self._best_node(shard, None, nodes)),)

    def replace(self, shard: int, old: Replica, new: Replica) -> None:
        self.by_shard[shard] = tuple(new if replica is old else replica for replica in self.by_shard[shard])

    def stop(self, replica: Replica) -> None:
        ray.kill(replica.actor, no_restart=True)

    def stop_shard(self, shard: int) -> None:
        for replica in self.by_shard.pop(shard, ()):
            self.stop(replica)

    def nodes(self, excluded: Iterable[str] = ()) -> list[str]:
        """Return the nodes that can hold shards; the one where this process runs comes last."""
        here = str(ray.get_runtime_context().get_node_id())
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        alive = [n for n in nodes if n["Alive"] and n.get("Resources", {}).get("CPU", 0) >= self._cpus]
        return sorted({str(n["NodeID"]) for n in alive} - set(excluded), key=lambda name: (name == here, name))

    def next_move(self, nodes: list[str]) -> tuple[int, Replica, str] | None:
        """Return a replica to move and its new node: off other nodes, off its twin's node, or off the fullest."""
        load = self._load()
        for shard, replica in self.all():
            best = self._best_node(shard, replica, nodes)
            if best is None or best == replica.node:
                continue
            twins = self._twin_nodes(shard, replica)
            crowded = replica.node in twins and best not in twins
            if replica.node not in nodes or crowded or load[replica.node] - load[best] > 1:
                return shard, replica, best
        return None

    def _best_node(self, shard: int, moving: Replica | None, nodes: list[str]) -> str | None:
        """Return the node with fewest replicas of this shard besides the moving one, then fewest replicas of all."""
        twins, load = self._twin_nodes(shard, moving), self._load()
        return min(nodes, key=lambda node: (twins.count(node), load[node]), default=None)

    def _twin_nodes(self, shard: int, replica: Replica | None) -> list[str]:
        return [other.node for other in self.by_shard.get(shard, ()) if other is not replica]

    def _load(self) -> Counter[str]:
        return Counter(replica.node for _, replica in self.all())
