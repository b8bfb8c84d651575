"""Clients of fronts that search all the time, and what their answers tell about a fault: rate, errors and recovery."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import Child
from benchmarks.cluster_front import ANSWER_BYTES
from benchmarks.timing import Figures
from stillhash.numeric.validation import Floats

BUCKET_SECONDS = 0.1
WINDOW_SECONDS, HEALTHY_SHARE = 1.0, 0.9  # service is back when so much of the healthy rate lasts for so long
LOSS_SECONDS = (2.0, 5.0)  # after the fault, in which the share of the healthy rate is reported


class FrontProcess:
    """A process that answers queries over TCP."""

    def __init__(self, storage: Path, deadline: float) -> None:
        self.process = Child("benchmarks.cluster_front", storage, deadline)
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
