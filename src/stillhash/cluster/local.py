"""Connect to a Ray cluster, or run a whole one on this machine for trials: a head and nodes, all on loopback."""

import contextlib
import logging
import os
import socket
import time
import uuid
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

from stillhash.cluster.local_node import NODE_START_SECONDS, LocalNode, free_port
from stillhash.errors import InvalidInput, MissingExtra, Unreachable
from stillhash.numeric.validation import check_integer
from stillhash.platform import SYSTEM

# Ray reads some of these when it is imported. It prints on stdout when a process or node died, and has no other setting
# to keep these lines out of a program's output.
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # By default every process of Ray, and so this one, ends itself when the head was away for a minute.
    "RAY_gcs_rpc_server_reconnect_timeout_s": str(7 * 24 * 3600),
    "RAY_DEDUP_LOGS_SKIP_REGEX": r"A worker died or was killed|Task .* failed\. There are|has been marked dead",
}
for setting, value in RAY_SETTINGS.items():
    os.environ.setdefault(setting, value)

try:
    import ray
except ImportError as error:
    raise MissingExtra("a cluster needs Ray: pip install 'stillhash[cluster]'") from error

NAMESPACE = "stillhash"  # of the names of actors
AUTHENTICATION = "RAY_AUTH_MODE"  # "token", or "disabled"
CONNECT_SECONDS = 2.0  # for the head to accept a connection
LOOPBACK = "127.0.0.2"  # Ray takes 127.0.0.1 for a mistake and looks for another address
# How soon a node that was cut off is given up. Ray's own values wait for about 15 seconds.
FAST_HEALTH_CHECK = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
}


@contextlib.contextmanager
def quiet_ray() -> Iterator[None]:
    """Silence warnings that are about Ray itself."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"ray\.")
        warnings.filterwarnings("ignore", category=ResourceWarning)  # of the files that its processes log to
        yield


def connect(address: str | None, **options: Any) -> bool:
    """Connect this process to a cluster, or to a new one here, unless it is connected; whether it was not."""
    SYSTEM.require_linux("a cluster")
    if ray.is_initialized():
        return False
    if address is None:
        address, options = "local", {"include_dashboard": False}
    try:
        with quiet_ray():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, namespace=NAMESPACE, **options)
    except ConnectionError as error:
        hint = f"If it asks for a token, set {AUTHENTICATION}=token"
        raise Unreachable(f"no Ray cluster answers at {address}: {error}. {hint}") from error
    return True


class Node(NamedTuple):
    """A node of the cluster that is alive."""

    id: str
    address: str
    resources: dict[str, float]


def alive_nodes() -> list[Node]:
    """Return the nodes that Ray takes for alive, in the order of their ids."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    alive = (Node(str(n["NodeID"]), str(n["NodeManagerAddress"]), n.get("Resources", {})) for n in nodes if n["Alive"])
    return sorted(alive)


def check_head() -> None:
    """Raise Unreachable if Ray's head does not listen: calls to it would wait until it is back."""
    host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise Unreachable(f"Ray's head at {host}:{port} does not answer: {error}") from error


@contextlib.contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """Stay connected to the cluster at this address, or to one on this machine, inside the `with` block."""
    opened = connect(address)
    try:
        yield
    finally:
        if opened:
            ray.shutdown()


class LocalCluster(contextlib.AbstractContextManager["LocalCluster"]):
    """A head and `nodes` more nodes, each with processes and an address of its own, and this process at the head.

    cpus : that Ray counts for each node; all nodes share the cores of this machine.
    object_store_bytes : of each node.
    fast_health_check : give up lost nodes after 2 seconds, not 15.
    port : of the head; 0 picks a free one.
    redis : address of a Redis server ("127.0.0.1:6379") that stores the state of the head, so that `restart_head`
        finds nodes and actors again.
    """

    def __init__(
        self,
        nodes: int = 4,
        *,
        cpus: int = 1,
        object_store_bytes: int = 100 * 2**20,
        fast_health_check: bool = False,
        port: int = 0,
        redis: str | None = None,
    ) -> None:
        SYSTEM.require_linux("a cluster")
        check_integer(nodes, "nodes", 0)
        check_integer(object_store_bytes, "object_store_bytes", 80 * 2**20)
        self._size = ["--num-cpus", str(check_integer(cpus, "cpus", 1))]
        self._size += ["--object-store-memory", str(object_store_bytes)]
        # Without this, nodes ask for a token where there is a file of one, which this process would not send.
        self._settings = {AUTHENTICATION: os.environ.get(AUTHENTICATION, "disabled")}
        self._settings |= FAST_HEALTH_CHECK if fast_health_check else {}
        if redis is not None:  # the head's name in Redis must be the same after a restart, and no other cluster's
            self._settings |= {"RAY_REDIS_ADDRESS": redis, "RAY_external_storage_namespace": uuid.uuid4().hex}
        self._nodes: dict[str, LocalNode] = {}  # by their id
        self._started = 0  # nodes so far, each at the next address
        if ray.is_initialized():
            raise InvalidInput("this process is already connected to a Ray cluster. Call ray.shutdown() first.")
        self._port = check_integer(port, "port", 0, 65535) or free_port(LOOPBACK)
        self.address = f"{LOOPBACK}:{self._port}"
        self._head: LocalNode | None = self._start_head()
        try:
            self._head.wait_listening(self._port)
            self._add_nodes(nodes)
        except BaseException:
            self.down()
            raise

    @property
    def head(self) -> str:
        """The id of the head, to which this process is connected."""
        return self._id_at(LOOPBACK)

    @property
    def nodes(self) -> list[str]:
        """The ids of the nodes besides the head."""
        return list(self._nodes)

    def processes(self, node: str) -> list[int]:
        """Return the ids of the processes of a node, or of the head."""
        which = self._nodes.get(node, self._head)
        return [] if which is None else which.processes

    def add_node(self) -> str:
        """Add a node and wait until it is part of the cluster; its id."""
        return self._add_nodes(1)[0]

    def remove_node(self, node: str | None = None, *, graceful: bool = False) -> str:
        """Remove this node, or the last one; its id.

        Unless `graceful`, it goes as a machine that loses power: all its processes at once, without notice.
        """
        name = next(reversed(self._nodes), None) if node is None else node
        if name is None or name not in self._nodes:
            names = ", ".join(self._nodes) or "none, all are removed"
            raise InvalidInput(f"node: expected one of {names}, got {node!r}")
        self._nodes.pop(name).stop(graceful=graceful)
        return name

    def restart_head(self) -> None:
        """Start the head again at its address, after its processes were killed; it needs `redis` to know the nodes."""
        if self._head is not None:
            self._head.stop(graceful=False)
        self._head = self._start_head()
        self._head.wait_listening(self._port)

    def down(self) -> None:
        """Stop every process of the cluster."""
        with quiet_ray():
            ray.shutdown()
        nodes = [node for node in (*self._nodes.values(), self._head) if node is not None]
        self._nodes, self._head = {}, None
        for node in nodes:
            node.kill()
        for node in nodes:
            node.stop(graceful=False)

    def __exit__(self, *_: object) -> None:
        self.down()

    def _start_head(self) -> LocalNode:
        ports = ["--port", str(self._port), "--ray-client-server-port", str(free_port(LOOPBACK))]
        return LocalNode(LOOPBACK, ["--head", *ports, "--include-dashboard", "false", *self._size], self._settings)

    def _add_nodes(self, count: int) -> list[str]:
        """Start nodes side by side, connect this process if it is not, and wait until Ray lists them all."""
        added = []
        for _ in range(count):
            self._started += 1
            # --include-log-monitor: that of the head is enough
            arguments = ["--address", self.address, "--include-log-monitor", "false", *self._size]
            added.append(
                LocalNode(f"127.0.{self._started // 250}.{3 + self._started % 250}", arguments, self._settings)
            )
        try:
            connect(self.address)
            names = [self._wait_for(node) for node in added]
        except BaseException:
            for node in added:
                node.stop(graceful=False)
            raise
        self._nodes |= dict(zip(names, added, strict=True))
        return names

    def _wait_for(self, node: LocalNode) -> str:
        end = time.monotonic() + NODE_START_SECONDS
        while not (name := self._id_at(node.address)):
            node.check_running()
            if time.monotonic() > end:
                raise Unreachable(f"the node at {node.address} did not join within {NODE_START_SECONDS:g} seconds")
            time.sleep(0.02)
        return name

    def _id_at(self, address: str) -> str:
        return next((node.id for node in alive_nodes() if node.address == address), "")
