"""Kill parts of a cluster while clients search: a shard's actor, a node, Ray's head, a front and the writer.

Clients send queries over TCP to two fronts, processes of their own. The rate of right answers before and after each
fault, wrong answers, errors and lost rows are counted, with one replica of each shard and with two. All nodes are on
this machine and share its cores, so two replicas are not faster than one: what is measured is what a fault costs.
"""

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster import add_codes, make_weights
from benchmarks.cluster_processes import ANSWER_BYTES, Child, marked_code, weigh_first_bit
from benchmarks.timing import CODE_BITS, TOP_K, Figures, Sections, check_plot, hit_bytes, temporary_folder
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


def run(quick: bool, progress: ReportProgress, codes: int = 600_000, plot: Path | None = None) -> Figures:
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
        writer = Child("writer", self.folder, self.cluster.address, SHARDS, self.replicas, LEASE_SECONDS)
        self.callback(writer.kill)
        return writer

    def start_front(self) -> "FrontProcess":
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


# ---- clients ----


BUCKET_SECONDS = 0.1
WINDOW_SECONDS, HEALTHY_SHARE = 1.0, 0.9  # service is back when so much of the healthy rate lasts for so long
LOSS_SECONDS = (2.0, 5.0)  # after the fault, in which the share of the healthy rate is reported


class FrontProcess:
    """A process that answers queries over TCP."""

    def __init__(self, storage: Path, deadline: float) -> None:
        self.process = Child("front", storage, deadline)
        self.port = 0

    def wait_ready(self) -> None:
        self.port = int(self.process.wait_for("port"))

    def connect(self) -> Any:  # a Connection, or what takes its place on Windows
        return Client(("127.0.0.1", self.port))


class LoadClients:
    """Threads that send one query after another; one whose front is gone sends it again to the next front."""

    def __init__(self, fronts: list[FrontProcess], weights: Floats, expected: list[bytes], clients: int) -> None:
        self.fronts, self.expected = fronts, expected
        self.queries = [row.tobytes() for row in weights]
        self.times: list[float] = []  # of right answers
        self.latencies: list[float] = []
        self.outcomes: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._search, args=(n,), daemon=True) for n in range(clients)]

    def _search(self, number: int) -> None:
        turn, front, connection = number, number, None
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                if connection is None:
                    connection = self.fronts[front % len(self.fronts)].connect()
                connection.send_bytes(self.queries[turn % len(self.queries)])
                answer = connection.recv_bytes()
            except (EOFError, OSError):
                self.outcomes["sent again"] += connection is not None
                front, connection = front + 1, None
                time.sleep(0.005)
                continue
            self._count(turn % len(self.queries), answer, began)
            turn += len(self._threads)

    def _count(self, query: int, answer: bytes, began: float) -> None:
        now = time.monotonic()
        if answer == self.expected[query]:
            self.outcomes["right"] += 1
            self.times.append(now)
            self.latencies.append(now - began)
        elif len(answer) == ANSWER_BYTES:
            self.outcomes["wrong"] += 1
        else:
            self.outcomes["errors"] += 1
            self.errors[answer.decode(errors="replace")[:200]] += 1

    @contextmanager
    def running(self) -> Iterator["LoadClients"]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            for thread in self._threads:
                thread.join()


def fault_figures(load: LoadClients, began: float, fault: float, ended: float) -> Figures:
    """Return what a fault at this time did to the rate of answers, by buckets, and how many answers were not right."""
    edges = np.arange(began - fault, ended - fault + BUCKET_SECONDS / 2, BUCKET_SECONDS)
    counts, _ = np.histogram(np.array(load.times) - fault, edges)
    rates = counts / BUCKET_SECONDS
    middles = edges[:-1] + BUCKET_SECONDS / 2
    healthy = float(rates[middles < 0].mean())
    after = (middles > LOSS_SECONDS[0]) & (middles < LOSS_SECONDS[1])
    return {
        "seconds": np.round(edges[:-1], 2).tolist(),
        "rates": rates.tolist(),
        "healthy": healthy,
        "share": float(rates[after].mean()) / healthy,
        "longest_s": longest_silence(np.array(load.times) - fault, ended - fault),
        "recovered_s": recovery_seconds(edges[:-1], rates, healthy),  # of the time that was watched, if never
        **{name.replace(" ", "_"): load.outcomes[name] for name in ("right", "wrong", "errors", "sent again")},
        "messages": dict(load.errors),
    }


def longest_silence(times: np.ndarray, ended: float) -> float:
    """Return the longest time without an answer after the fault."""
    after = np.sort(times[times > 0])
    return float(np.diff(np.concatenate([[0.0], after, [ended]])).max())


def recovery_seconds(starts: np.ndarray, rates: np.ndarray, healthy: float) -> float:
    """Return when the healthy rate was back, by a mean over a window; the end of all buckets if it was not."""
    buckets = round(WINDOW_SECONDS / BUCKET_SECONDS)
    means = np.convolve(rates, np.ones(buckets) / buckets, "valid")  # of the window that begins at each bucket
    back = (starts[: len(means)] >= -BUCKET_SECONDS / 2) & (means >= HEALTHY_SHARE * healthy - 1e-9)
    return max(0.0, float(starts[: len(means)][back][0])) if back.any() else float(starts[-1])


# ---- the picture ----


SMOOTHED_BUCKETS = 5  # of the line; the buckets themselves are dots
REPLICA_COLOURS = {1: "#b45309", 2: "#0f766e"}  # by replicas


def draw_faults(faults: list[Figures], titles: Mapping[str, str], plot: Path) -> None:
    """Draw the share of the healthy rate over the seconds since each fault, with one and two replicas."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.6), dpi=100, layout="constrained")
    panels = figure.subplots(2, 3, sharex=True, sharey=True).ravel()
    for panel, (name, title) in zip(panels, titles.items(), strict=False):
        panel.axvline(0, color="#374151", linewidth=1)
        panel.axhline(1, color="#9ca3af", linewidth=0.8, linestyle="--")
        for fault in (fault for fault in faults if fault["fault"] == name):
            draw_rate(panel, fault)
        panel.set_title(title, loc="left", fontsize=11)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#e5e7eb", linewidth=0.8)
        panel.set_ylim(0, 1.75)
        panel.set_yticks([0, 0.5, 1, 1.5], ["0", "50 %", "100 %", "150 %"])
    for panel in panels[2 : len(titles)]:  # those at the bottom, and the one above the key
        panel.set_xlabel("seconds since the fault")
        panel.xaxis.set_tick_params(labelbottom=True)
    draw_key(panels[len(titles)])
    figure.suptitle("Right answers per second, as a share of the mean before the fault", x=0.01, ha="left")
    figure.savefig(plot)


def draw_rate(panel: Any, fault: Figures) -> None:
    colour, window = REPLICA_COLOURS[fault["replicas"]], np.ones(SMOOTHED_BUCKETS)
    shares = np.array(fault["rates"]) / fault["healthy"]
    smooth = np.convolve(shares, window, "same") / np.convolve(np.ones(len(shares)), window, "same")
    middles = np.array(fault["seconds"]) + (fault["seconds"][1] - fault["seconds"][0]) / 2
    panel.plot(middles, shares, ".", color=colour, markersize=2, alpha=0.35)
    panel.plot(middles, smooth, color=colour, linewidth=1.6)


def draw_key(panel: Any) -> None:
    """Use the last panel to say what the colours are."""
    panel.set_axis_off()
    for place, (replicas, colour) in enumerate(REPLICA_COLOURS.items()):
        words = "1 replica of each shard" if replicas == 1 else f"{replicas} replicas of each shard"
        panel.text(0.08, 0.75 - 0.14 * place, words, color=colour, weight="bold", transform=panel.transAxes)
    about = "dots: 100 ms, lines: mean of 500 ms\nall nodes share the cores of one machine"
    panel.text(0.08, 0.35, about, color="#4b5563", fontsize=9, transform=panel.transAxes)
