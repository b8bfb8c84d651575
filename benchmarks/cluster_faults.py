"""Kill parts of a cluster while clients search: a shard's actor, a node, Ray's head, a front and the writer.

Clients send queries over TCP to two fronts, processes of their own. The rate of right answers before and after each
fault, wrong answers, errors and lost rows are counted, with one replica of each shard and with two. All nodes are on
this machine and share its cores, so two replicas are not faster than one: what is measured is what a fault costs.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.child import Child
from benchmarks.cluster_codes import add_codes, make_weights
from benchmarks.cluster_load import FrontProcess, LoadClients, fault_figures
from benchmarks.cluster_plot import check_plot, draw_faults
from benchmarks.cluster_writer import marked_code, weigh_first_bit
from benchmarks.timing import CODE_BITS, TOP_K, Figures, Sections, hit_bytes, temporary_folder
from stillhash.cluster import ClusterIndex, ClusterReader, LocalCluster
from stillhash.errors import Unreachable, Unsupported
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.numeric.validation import Floats, check_integer
from stillhash.search import Index

SHARDS, NODES, FRONTS, CLIENTS, LOAD_QUERIES = 3, 3, 2, 6, 64
DEADLINE = 60.0  # of a search: those for a shard that is being replaced wait for it
LEASE_SECONDS = 2.0
BEFORE_SECONDS, AFTER_SECONDS = 5.0, 15.0
QUICK_SECONDS = (1.5, 6.0)
READY_SECONDS = 120.0  # for the cluster to be whole again between two faults
REPLICAS = (1, 2)
FAULTS = {
    "front": "a front is killed",
    "actor": "a shard's actor is killed",
    "writer": "the writer is killed",
    "node": "a node is lost",
    "head": "Ray's head (GCS) is killed",
}


def run(quick: bool, progress: ReportProgress, codes: int, plot: Path | None = None) -> Figures:
    """Cause each fault with one and with two replicas; `plot` is where a picture of all rates goes."""
    check_integer(codes, "codes", 1000)
    check_plot(plot)
    codes = 20_000 if quick else codes
    seconds = QUICK_SECONDS if quick else (BEFORE_SECONDS, AFTER_SECONDS)
    weights = weigh_first_bit(make_weights(LOAD_QUERIES))
    reference = Index(CODE_BITS)
    add_codes(reference, codes)
    expected = hit_bytes(reference.search(weights, TOP_K))
    del reference
    faults = []
    for replicas in REPLICAS:
        progress(f"a cluster with {replicas} replicas of each shard")
        with temporary_folder(None) as folder, FaultCluster(folder, codes, replicas, weights, expected) as cluster:
            for name, title in FAULTS.items():
                progress(f"{title}, {replicas} replicas")
                faults.append({"fault": name, "replicas": replicas, **cluster.suffer(name, *seconds)})
    if plot is not None:
        draw_faults(faults, FAULTS, plot)
    both = [fault for fault in faults if fault["replicas"] == REPLICAS[-1]]
    lossless = [fault for fault in faults if fault["fault"] in ("front", "writer", "head")]
    goals = [
        ("wrong answers", "<= 0", sum(fault["wrong"] for fault in faults)),
        ("errors", "<= 0", sum(fault["errors"] for fault in faults)),
        ("acknowledged rows that were lost", "<= 0", sum(fault.get("lost_rows", 0) for fault in faults)),
        ("rows that were stored twice", "<= 0", sum(fault.get("doubled_rows", 0) for fault in faults)),
        ("least share of the rate, seconds 2 to 5, two replicas", ">= 0.7", min(fault["share"] for fault in both)),
        ("the same without front, writer or head", ">= 0.7", min(fault["share"] for fault in lossless)),
        ("longest time to recover, two replicas, s", "<= 5", max(fault["recovered_s"] for fault in both)),
    ]
    about = {"codes": codes, "bits": CODE_BITS, "shards": SHARDS, "nodes": NODES, "fronts": FRONTS, "clients": CLIENTS}
    return {**about, "plot": None if plot is None else str(plot), "faults": faults, "goals": goals}


class FaultCluster(ExitStack):
    """Nodes, the writer, fronts and clients; each fault is caused once, and what is left goes on with the next."""

    def __init__(self, folder: Path, codes: int, replicas: int, weights: Floats, expected: list[bytes]) -> None:
        super().__init__()
        self.folder, self.replicas, self.weights, self.expected = folder, replicas, weights, expected
        self.first = codes + 1_000_000  # of the ids of rows that the writer adds
        self.acknowledged: list[int] = []
        try:
            self.cluster = self.enter_context(LocalCluster(NODES, cpus=1, fast_health_check=True))
            with ClusterIndex(CODE_BITS, SHARDS, storage=folder, threads=1) as index:
                add_codes(index, codes)
            self.writer = self.start_writer()
            self.writer.wait_for("ready")
            self.writer.send(f"drain {self.cluster.head}")  # all processes at the head end with it
            self.writer.wait_for("drained")
            self.reader = self.enter_context(ClusterReader(folder, deadline=DEADLINE))
            self.fronts = [self.start_front() for _ in range(FRONTS)]
            self.wait_ready()
        except BaseException:
            self.close()
            raise

    def start_writer(self) -> Child:
        writer = Child(
            "benchmarks.cluster_writer", self.folder, self.cluster.address, SHARDS, self.replicas, LEASE_SECONDS
        )
        self.callback(writer.kill)
        return writer

    def start_front(self) -> FrontProcess:
        front = FrontProcess(self.folder, DEADLINE)
        self.callback(front.process.kill)
        return front

    def wait_ready(self) -> None:
        """Wait until all fronts run, and all replicas."""
        for front in self.fronts:
            front.wait_ready()
        end = time.monotonic() + READY_SECONDS
        complete = dict.fromkeys(range(SHARDS), self.replicas)
        while (replicas := self.reader.readiness()["replicas"]) != complete:
            if time.monotonic() > end:
                raise Unreachable(f"expected the replicas {complete} of each shard, got {replicas}")
            time.sleep(0.1)

    def suffer(self, name: str, before: float, after: float) -> Figures:
        """Cause a fault while clients search; what it did to their answers."""
        cause: Callable[[], Any] = getattr(self, f"lose_{name}")
        if name == "writer":
            self.writer.send(f"write {self.first}")
            self.writer.wait_for("acknowledged")
        load = LoadClients(self.fronts, self.weights, self.expected, CLIENTS)
        with load.running():
            time.sleep(0.5)  # until all clients are connected
            began = time.monotonic()
            time.sleep(before)
            fault = time.monotonic()
            cause()
            time.sleep(max(0.0, after - (time.monotonic() - fault)))
            ended = time.monotonic()
        figures = fault_figures(load, began, fault, ended)
        if name == "writer":
            figures |= self.check_rows()
        if name != "head":  # without it, nothing is replaced
            self.wait_ready()
        return figures

    def lose_front(self) -> None:
        self.fronts[0].process.kill()
        self.fronts[0] = self.start_front()
        self.fronts[0].port = 1  # refuses connections until the front is ready

    def lose_actor(self) -> None:
        send_kill(self.endpoints()[0].pid)

    def lose_node(self) -> None:
        nodes = [endpoint.node for endpoint in self.endpoints()]
        self.cluster.remove_node(next(node for node in self.cluster.nodes if node in nodes))

    def lose_head(self) -> None:
        for pid in self.cluster.processes(self.cluster.head):
            if "gcs_server" in command_line(pid):
                send_kill(pid)

    def lose_writer(self) -> None:
        self.writer.kill()
        self.acknowledged = self.writer.values("acknowledged")
        self.writer = self.start_writer()

    def endpoints(self) -> list[Any]:
        return [endpoint for endpoint, connected in self.reader.coordinator.endpoints() if connected]

    def check_rows(self) -> Figures:
        """Compare the rows that the next writer finds with those acknowledged, also by their codes in the shards."""
        self.writer.wait_for("ready")
        self.writer.send(f"ids {self.first}")
        ids = self.writer.wait_for("ids")
        self.reader.refresh()
        stored = self.reader.codes(ids).tobytes() == b"".join(marked_code(number).tobytes() for number in ids)
        lost = set(self.acknowledged) - set(ids) if stored else set(self.acknowledged)
        rows = {
            "acknowledged": len(self.acknowledged),
            "lost_rows": len(lost),
            "doubled_rows": len(ids) - len(set(ids)),
        }
        return {**rows, "unacknowledged": len(set(ids) - set(self.acknowledged))}


def send_kill(pid: int) -> None:
    if sys.platform == "win32":
        raise Unsupported("a cluster: expected Linux, got Windows")
    os.kill(pid, signal.SIGKILL)


def command_line(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def tables(result: Figures) -> Sections:
    columns = """: {title} | replicas: {replicas} | healthy answers/s: {healthy:,.0f} | seconds 2 to 5: {share:.0%} |
        90 % back after s: {recovered_s:.1f} | longest silence s: {longest_s:.2f} | wrong: {wrong} | errors: {errors} |
        sent again: {sent_again} | rows acknowledged: {acknowledged} | lost: {lost_rows}"""
    none = {"acknowledged": "", "lost_rows": ""}
    rows = [{**none, **fault, "title": FAULTS[fault["fault"]]} for fault in result["faults"]]
    size = "{codes:,} codes of {bits} bits, {shards} shards, {nodes} nodes, {fronts} fronts, {clients} clients"
    return [
        format_table(size.format_map(result), columns, rows),
        *([f"Rates: {result['plot']}"] if result["plot"] else []),
    ]
