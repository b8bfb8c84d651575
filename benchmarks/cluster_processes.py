"""Small real clusters on this machine: shards in processes of their own behind a `ClusterIndex`, without Ray.

Ray places and restarts shards, and searches do not pass through it: so these have the costs of any cluster's.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.child import Child
from benchmarks.cluster_codes import add_codes
from benchmarks.timing import CODE_BITS, TOP_K
from stillhash.cluster.index import ClusterIndex
from stillhash.cluster.storage import Storage
from stillhash.numeric.validation import Floats
from stillhash.search import Hits

FRONT_SECONDS = 60.0  # of a search, and until shards have loaded
IO_THREADS = "ZMQbg"  # how the names of ZeroMQ's threads begin


class WithoutNodes:
    """What `ShardProcesses` says of nodes, where there is only this machine."""

    def rebalance(self) -> int:
        return 0

    def drain(self, node: str) -> int:
        return 0

    def undrain(self, node: str) -> int:
        return 0


class ChildShards(WithoutNodes):
    """Starts the shards of an index as child processes, one replica of each."""

    def __init__(self, storage: Path) -> None:
        self.storage = Storage(storage).url
        self.children: dict[int, Child] = {}

    def ensure(self, shards: Sequence[int], replicas: int) -> None:
        for shard in set(shards) - self.children.keys():
            self.children[shard] = Child("benchmarks.cluster_shard", self.storage, shard)

    def status(self) -> dict[str, Any]:
        return {"actors": []}

    def close(self) -> None:
        for child in self.children.values():
            child.kill()
        self.children = {}


class RealCluster(NamedTuple):
    """The front of shard processes, and the ids of these."""

    front: ClusterIndex
    pids: list[int]

    def search(self, weights: Floats) -> Hits:
        return self.front.search(weights, TOP_K)


@contextmanager
def real_cluster(folder: Path, shards: int, codes: int) -> Iterator[RealCluster]:
    """Start shard processes that have loaded so many codes, and a front to search them."""
    processes = ChildShards(folder)
    with ClusterIndex(CODE_BITS, shards, storage=folder, deadline=FRONT_SECONDS, processes=processes) as index:
        add_codes(index, codes, max(1, codes // shards))
        index.wait_ready(FRONT_SECONDS)
        yield RealCluster(index, [child.pid for child in processes.children.values()])


class CpuSeconds(NamedTuple):
    """What the threads of a process have used of the CPU: those that run Python, one at a time, and ZeroMQ's."""

    python: float
    io: float


def cpu_seconds(pid: int | str = "self") -> CpuSeconds:
    """Return the CPU time of a process so far, by the kernel's account in nanoseconds."""
    used = {False: 0, True: 0}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (task / "comm").read_text(encoding="utf-8")
            nanoseconds = int((task / "schedstat").read_text(encoding="utf-8").split()[0])
        except OSError:  # it has ended
            continue
        used[name.startswith(IO_THREADS)] += nanoseconds
    return CpuSeconds(used[False] / 1e9, used[True] / 1e9)
