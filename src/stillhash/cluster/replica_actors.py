"""Replicas as Ray actors: start them by name, find them again, request their status, and stop them."""

import sys
import time
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

import ray
from ray.exceptions import ActorDiedError, RayError
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from stillhash.cluster.local import NAMESPACE
from stillhash.errors import StillhashError

STATUS_SECONDS = 3.0  # how long a status counts
OVERDUE_SECONDS = 10.0  # without a reply until the actor is looked up again
AGGREGATOR = "aggregator"
CALLS = 4  # methods of an actor that may run at a time, so that one that loads still reports


class ActorName(NamedTuple):
    """The parts of an actor's name: the storage, the group and a random word."""

    key: str
    group: str  # "shard-3", or "aggregator"
    word: str

    def __str__(self) -> str:
        return ".".join(self)

    @property
    def shard(self) -> int | None:
        """The number of its shard; None for an aggregator."""
        return None if self.group == AGGREGATOR else int(self.group.removeprefix("shard-"))


def parse_name(name: str) -> ActorName | None:
    """Return the parts of a name; None if it is not one of ours."""
    parts = name.split(".")
    if len(parts) != 3 or not (parts[1] == AGGREGATOR or parts[1].removeprefix("shard-").isdecimal()):
        return None
    return ActorName(*parts)


class Replica:
    """One actor, its node, and the status that it reported last."""

    def __init__(self, name: ActorName, actor: Any, node: str = "") -> None:
        self.name, self.actor, self.node = name, actor, node
        self.status: dict[str, Any] | None = None
        self.failure = ""  # of the last request for its status
        self.ended = False  # and Ray will not restart it
        self.is_direct = False  # whether its status comes by a message, since Ray does not reach it
        self.started_at = self.replied_at = time.monotonic()
        self.request: Any = None  # the reference of a request under way
        self._pinged_at = 0.0

    def ping(self) -> None:
        """Take the reply to the last request for the status, if there is one, and send another; never wait."""
        if self.is_direct:
            return
        if self.request is not None and not self._receive():
            return
        self._pinged_at = time.monotonic()
        try:
            self.request = self.actor.status.remote()
        except RayError as error:
            self._fail(error)

    def _receive(self) -> bool:
        if not ray.wait([self.request], timeout=0)[0]:
            return False
        try:
            self.status = dict(ray.get(self.request))
            self.node = str(self.status.get("node") or self.node)
            self.failure, self.replied_at = "", self._pinged_at
        except (RayError, StillhashError) as error:
            self._fail(error)
        self.request = None
        return True

    def _fail(self, error: BaseException) -> None:
        reason = str(error).strip().rpartition("\n")[2]  # after the traceback, if there is one
        self.status, self.failure = None, f"{type(error).__name__}: {reason[:500]}"
        self.ended = self.ended or isinstance(error, ActorDiedError)

    @property
    def is_overdue(self) -> bool:
        """Whether a request was not replied to for long, as where Ray's head was away when the process ended."""
        return self.request is not None and time.monotonic() > self._pinged_at + OVERDUE_SECONDS

    def renew(self, actor: Any) -> None:
        """Send requests through another handle from now on."""
        self.actor, self.request, self.status = actor, None, None

    def accept(self, status: dict[str, Any] | None) -> None:
        """Take a status that did not come through Ray; without one, it is requested through Ray again."""
        if status is not None:
            self.is_direct, self.status, self.failure, self.request = True, status, "", None
            self.node, self.replied_at = str(status.get("node") or self.node), time.monotonic()
        elif self.is_direct:
            self.is_direct, self.status = False, None

    def answers(self, since: float | None = None) -> bool:
        """Whether it has replied since this time of `time.monotonic`, by default recently."""
        since = time.monotonic() - STATUS_SECONDS if since is None else since
        return self.status is not None and self.replied_at >= since

    @property
    def number(self) -> int:
        """The commit that it has loaded; -1 if that is unknown. An aggregator, which loads nothing, has them all."""
        if self.status is not None and self.name.shard is None:
            return sys.maxsize
        return -1 if self.status is None else int(self.status.get("number", -1))

    @property
    def rows(self) -> int:
        return 0 if self.status is None else int(self.status.get("rows", 0))


class ReplicaActors:
    """Start, find and stop the actors of one storage, whose names begin with `key`.

    cpus : that each actor claims. classes : of the group "aggregator", and of "shard". options : passed to them.
    detached : they outlive this process.
    """

    def __init__(
        self, key: str, url: str, cpus: float, classes: Mapping[str, type], options: dict[str, Any], detached: bool
    ) -> None:
        self.key, self._url, self._options = key, url, options
        settings = {"num_cpus": cpus, "max_restarts": -1, "max_concurrency": CALLS, "namespace": NAMESPACE}
        settings["lifetime"] = "detached" if detached else None
        self._classes: dict[str, Any] = {kind: ray.remote(each) for kind, each in classes.items()}
        self._settings = settings

    def start(self, group: str, node: str) -> Replica:
        """Start a replica on this node, which Ray restarts there or, once the node is lost, on any other."""
        name = ActorName(self.key, group, uuid.uuid4().hex[:8])
        strategy = NodeAffinitySchedulingStrategy(node, soft=True)
        kind = AGGREGATOR if name.shard is None else "shard"
        arguments = (self._url, str(name)) if name.shard is None else (self._url, name.shard, str(name))
        settings = {**self._settings, "name": str(name), "scheduling_strategy": strategy}
        return Replica(name, self._classes[kind].options(**settings).remote(*arguments, self._options), node)

    def names(self) -> list[ActorName]:
        """Return the names of the actors that exist: running, starting or being restarted."""
        listed: list[dict[str, str]] = list_named_actors(all_namespaces=True)
        names = (parse_name(each["name"]) for each in listed if each["namespace"] == NAMESPACE)
        return sorted(name for name in names if name is not None and name.key == self.key)

    def find(self, name: ActorName) -> Replica | None:
        """Return a replica that another process has started; None if it is gone."""
        try:
            return Replica(name, ray.get_actor(str(name), namespace=NAMESPACE))
        except ValueError:
            return None

    def stop(self, replica: Replica, seconds: float) -> None:
        """Let a replica withdraw its endpoint and stop, within this time, and end its process."""
        try:
            ray.wait([replica.actor.stop.remote()], timeout=seconds)
            ray.kill(replica.actor, no_restart=True)
        except (RayError, ValueError):
            replica.ended = True  # it is gone already


def server_classes() -> dict[str, type]:
    """Return the classes of the actors."""
    from stillhash.cluster.aggregator import AggregatorServer
    from stillhash.cluster.shard_server import ShardServer

    return {"shard": ShardServer, AGGREGATOR: AggregatorServer}
