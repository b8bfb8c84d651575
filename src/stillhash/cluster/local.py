"""A whole Ray cluster on one machine, for trials: a head and nodes that come and go, all on loopback."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stillhash.errors import InvalidInput, MissingExtra
from stillhash.numeric.validation import check_integer

try:
    import ray
except ImportError as error:
    raise MissingExtra("a cluster needs Ray: pip install 'stillhash[cluster]'") from error

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
}
STORE = 100 * 2**20  # bytes of a node's object store
LOOPBACK = "127.0.0.2"  # Ray takes 127.0.0.1 for a mistake and looks for another address
# How soon a node that was cut off is given up. Ray's own values wait for about 15 seconds.
SOON = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_failure_threshold": 4}


log = logging.getLogger("stillhash.cluster")


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Ray without its reports home, and without warnings that are about Ray itself."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    # Ray prints on stdout that a worker died or a task is tried again, and has no setting for it. Here that is news
    # for a log.
    ray._private.worker.print_to_stdstream = _log
    logging.getLogger("ray").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"ray\.")
        warnings.filterwarnings("ignore", category=ResourceWarning)  # of the files that its processes log to
        yield


def _log(data: dict[str, Any], ignore_prefix: bool = False) -> None:
    log.info("%s", "\n".join(data.get("lines", ())))


class LocalCluster:
    """A head and `nodes` more nodes, each a set of processes of its own, and this process connected to them.

    cpus : that each node says it has; they are all the same cores. soon : give up lost nodes after 2 seconds, not 15.
    """

    def __init__(self, nodes: int = 4, *, cpus: int = 1, store: int = STORE, soon: bool = False) -> None:
        self.cpus, self.store = check_integer(cpus, "cpus", 1), check_integer(store, "store", 80 * 2**20)
        self._nodes: dict[str, Any] = {}  # by their id
        self._cluster: Any = None
        self.up(check_integer(nodes, "nodes", 0), soon=soon)

    def up(self, nodes: int = 4, *, soon: bool = False) -> None:
        """Starts it, unless it is up."""
        if self._cluster is not None:
            return
        if ray.is_initialized():
            raise InvalidInput("this process is connected to a Ray cluster already; leave it first: ray.shutdown()")
        with quietly():
            from ray.cluster_utils import Cluster

            head = {**self._about(), "include_dashboard": False, "_system_config": SOON if soon else {}}
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
            try:
                ray.init(
                    address=self.address,
                    _node_ip_address=LOOPBACK,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    namespace="stillhash",
                )
                for _ in range(nodes):
                    self._start()
                self._cluster.wait_for_nodes()
            except BaseException:
                self.down()
                raise

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    @property
    def head(self) -> str:
        """The id of the head, to which this process is connected."""
        return str(self._cluster.head_node.node_id)

    @property
    def nodes(self) -> list[str]:
        """The ids of the nodes besides the head."""
        return list(self._nodes)

    def add_node(self) -> str:
        """One more node; its id, once it is part of the cluster."""
        with quietly():
            node = self._start()
            self._cluster.wait_for_nodes()
        return node

    def remove_node(self, node: str | None = None, *, graceful: bool = False) -> str:
        """Ends this node, or the last one; its id.

        Unless `graceful`, it goes as a machine does that loses power: all its processes at once, and nobody is told.
        Ray's own way ends the node's daemon only, and for a while the actors there would answer on.
        """
        name = next(reversed(self._nodes), None) if node is None else node
        if name not in self._nodes:
            raise InvalidInput(
                f"node is {node!r}; one of {', '.join(self._nodes) or 'none, there are none,'} is wanted"
            )
        with quietly():
            ended = self._nodes.pop(name)
            pids = [] if graceful else started_by(ended)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._cluster.remove_node(ended, allow_graceful=graceful)
            end = time.monotonic() + 5
            while any(runs(pid) for pid in pids) and time.monotonic() < end:
                time.sleep(0.01)
        return str(name)

    def down(self) -> None:
        """Ends every process that `up` and `add_node` started."""
        cluster, self._cluster = self._cluster, None
        self._nodes = {}
        if cluster is not None:
            with quietly():
                ray.shutdown()
                cluster.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.down()

    def _start(self) -> str:
        node = self._cluster.add_node(**self._about(), wait=False)
        self._nodes[str(node.node_id)] = node
        return str(node.node_id)

    def _about(self) -> dict[str, Any]:
        return {"num_cpus": self.cpus, "object_store_memory": self.store, "node_ip_address": LOOPBACK}


def started_by(node: Any) -> list[int]:
    """The processes of a node: its own, and all that these started."""
    found = {info.process.pid for infos in node.all_processes.values() for info in infos}
    parents = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    more = found
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found
        found |= more
    return sorted(found)


def runs(pid: int) -> bool:
    """Whether there is such a process, and not only what is left of it until somebody asks how it ended."""
    return Path(f"/proc/{pid}/exe").exists()


def logs(cluster: LocalCluster) -> Path:
    """Where Ray writes what its processes say."""
    return Path(cluster._cluster.head_node.get_logs_dir_path())
