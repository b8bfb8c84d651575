"""Connect to a Ray cluster, or run a whole one on this machine for trials: a head and nodes, all on loopback."""

import contextlib
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stillhash.errors import InvalidInput, MissingExtra, Unsupported
from stillhash.numeric.validation import check_integer
from stillhash.platform import SYSTEM

# Ray reads some of these when it is imported. It prints on stdout when a process or node died, and has no other setting
# to keep these lines out of a program's output.
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": r"A worker died or was killed|Task .* failed\. There are|has been marked dead",
}
for setting, value in RAY_SETTINGS.items():
    os.environ.setdefault(setting, value)

try:
    import ray
except ImportError as error:
    raise MissingExtra("a cluster needs Ray: pip install 'stillhash[cluster]'") from error

LOOPBACK = "127.0.0.2"  # Ray takes 127.0.0.1 for a mistake and looks for another address
STOP_SECONDS = 30.0  # for killed processes to disappear
# How soon a node that was cut off is given up. Ray's own values wait for about 15 seconds.
HEALTH_CHECK_MS = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500}
FAST_HEALTH_CHECK = {**HEALTH_CHECK_MS, "health_check_failure_threshold": 4}


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
    with quiet_ray():
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, namespace="stillhash", **options)
    return True


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
    """A head and `nodes` more nodes, each with processes of its own, and this process connected to the head.

    cpus : that each node claims to have; they are all the same cores.
    object_store_bytes : of each node.
    fast_health_check : give up lost nodes after 2 seconds, not 15.
    """

    def __init__(
        self, nodes: int = 4, *, cpus: int = 1, object_store_bytes: int = 100 * 2**20, fast_health_check: bool = False
    ) -> None:
        SYSTEM.require_linux("a cluster")
        check_integer(nodes, "nodes", 0)
        self._node_options = {
            "num_cpus": check_integer(cpus, "cpus", 1),
            "object_store_memory": check_integer(object_store_bytes, "object_store_bytes", 80 * 2**20),
            "node_ip_address": LOOPBACK,
        }
        self._nodes: dict[str, Any] = {}  # by their id
        if ray.is_initialized():
            raise InvalidInput("this process is already connected to a Ray cluster. Call ray.shutdown() first.")
        with quiet_ray():
            from ray.cluster_utils import Cluster

            config = FAST_HEALTH_CHECK if fast_health_check else {}
            head = {**self._node_options, "include_dashboard": False, "_system_config": config}
            self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self.address = str(self._cluster.address)
        try:
            connect(self.address, _node_ip_address=LOOPBACK)
            self._add_nodes(nodes)
        except BaseException:
            self.down()
            raise

    @property
    def head(self) -> str:
        """The id of the head, to which this process is connected."""
        return str(self._cluster.head_node.node_id)

    @property
    def nodes(self) -> list[str]:
        """The ids of the nodes besides the head."""
        return list(self._nodes)

    def add_node(self) -> str:
        """Add a node and wait until it is part of the cluster; its id."""
        return self._add_nodes(1)[0]

    def remove_node(self, node: str | None = None, *, graceful: bool = False) -> str:
        """Remove this node, or the last one; its id.

        Unless `graceful`, it goes as a machine that loses power: all its processes at once, without notice. Ray's own
        way ends the node's daemon only, and for a while the actors there would still answer.
        """
        if sys.platform == "win32":  # as the constructor ensures
            raise Unsupported("a cluster: expected Linux, got Windows")
        name = next(reversed(self._nodes), None) if node is None else node
        if name not in self._nodes:
            names = ", ".join(self._nodes) or "none, all are removed"
            raise InvalidInput(f"node: expected one of {names}, got {node!r}")
        with quiet_ray():
            removed = self._nodes.pop(name)
            pids = [] if graceful else node_processes(removed)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._cluster.remove_node(removed, allow_graceful=graceful)
            end = time.monotonic() + STOP_SECONDS
            while any(is_running(pid) for pid in pids) and time.monotonic() < end:
                time.sleep(0.01)
        return str(name)

    def down(self) -> None:
        """Stop every process of the cluster."""
        cluster, self._cluster = self._cluster, None
        self._nodes = {}
        if cluster is not None:
            with quiet_ray():
                ray.shutdown()
                cluster.shutdown()

    def __exit__(self, *_: object) -> None:
        self.down()

    def _add_nodes(self, count: int) -> list[str]:
        with quiet_ray():
            added = [self._cluster.add_node(**self._node_options, wait=False) for _ in range(count)]
            self._nodes |= {str(node.node_id): node for node in added}
            self._cluster.wait_for_nodes()
        return [str(node.node_id) for node in added]


def node_processes(node: Any) -> list[int]:
    """Return the ids of a node's processes: its own, and all that these started."""
    pids = {info.process.pid for infos in node.all_processes.values() for info in infos}
    parents = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(folder.name)] = int((folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    children = pids
    while children:
        children = {pid for pid, parent in parents.items() if parent in children} - pids
        pids |= children
    return sorted(pids)


def is_running(pid: int) -> bool:
    """Whether a process runs: one that ended and was not waited for yet does not."""
    return Path(f"/proc/{pid}/exe").exists()
