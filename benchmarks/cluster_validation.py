"""Compare the model of a cluster with real processes on this machine: latencies and throughput of the same load."""

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product

import numpy as np

from benchmarks.cluster_codes import add_codes, make_weights
from benchmarks.cluster_model import simulate
from benchmarks.cluster_probe import other_threads
from benchmarks.cluster_processes import RealCluster, real_cluster
from benchmarks.cluster_scenario import Scenario
from benchmarks.timing import CODE_BITS, TOP_K, Figures, hit_bytes, temporary_folder
from stillhash.experiments.tables import ReportProgress
from stillhash.numeric.validation import Doubles
from stillhash.search import Index

MeasureReal = Callable[[int, int], Doubles]  # shards, clients -> seconds of each query of a closed loop
QUERIES = 256  # different ones
WARM_UP_QUERIES = 5


def validate(
    measure_real: MeasureReal,
    scenario: Scenario,
    shards: Sequence[int],
    clients: Sequence[int],
    rounds: int,
    progress: ReportProgress,
) -> list[Figures]:
    """Measure and simulate each number of shards and clients; rounds take turns, and medians are compared.

    `scenario` has everything but the shards, the clients and the threads of other programs, which are sampled before
    and after each measurement: the model of each round competes with as many.
    """
    pairs = [*product(shards, clients)]
    rows: dict[tuple[int, int], list[Figures]] = {pair: [] for pair in pairs}
    for turn, (count, load) in product(range(rounds), pairs):
        progress(f"round {turn + 1}: {count} shards, {load} clients")
        before = other_threads()
        latencies = measure_real(count, load)
        background = (before + other_threads()) / 2
        model = simulate(replace(scenario, shards=count, clients=load, background=background, seed=turn))
        rows[count, load].append(
            {
                "background": background,
                "queries": len(latencies),
                "real_p50": float(np.median(latencies)),
                "real_rate": load / float(latencies.mean()),  # Little's law: clients do not pause
                "model_p50": model.quantile(0.5),
                "model_rate": load / float(model.latencies().mean()),
            }
        )
    return [summarise_rounds(*pair, rows[pair]) for pair in pairs]


def summarise_rounds(shards: int, clients: int, rounds: list[Figures]) -> Figures:
    """Return medians over the rounds, and the relative errors of the model."""
    row = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    errors = {
        f"error_{name}": statistics.median(each[f"model_{name}"] / each[f"real_{name}"] - 1 for each in rounds)
        for name in ("p50", "rate")
    }
    return {"shards": shards, "clients": clients, **row, **errors, "rounds": rounds}


class ClosedLoop:
    """Clients that search real clusters, by their number of shards, one query after another."""

    def __init__(self, clusters: dict[int, RealCluster], seconds: float) -> None:
        self.clusters, self.seconds = clusters, seconds
        self.weights = make_weights(QUERIES, ties=False)

    def different_answers(self, codes: int, queries: int) -> int:
        """Count queries whose hits are not those of one index over the same codes."""
        wrong = 0
        for shards, cluster in self.clusters.items():
            index = Index(CODE_BITS, threads=1)
            add_codes(index, codes, max(1, codes // shards))
            expected = hit_bytes(index.search(self.weights[:queries], TOP_K))
            alone = [hit_bytes(cluster.search(query))[0] for query in self.weights[:queries]]
            wrong += sum(a != b for a, b in zip(alone, expected, strict=True))
        return wrong

    def measure(self, shards: int, clients: int) -> Doubles:
        """Return the seconds of each query while so many threads search."""
        cluster, latencies = self.clusters[shards], list[float]()
        for query in self.weights[:WARM_UP_QUERIES]:
            cluster.search(query)
        end = time.perf_counter() + self.seconds

        def search(turn: int) -> None:
            start = time.perf_counter()
            while start < end:
                cluster.search(self.weights[turn % QUERIES])
                now = time.perf_counter()
                latencies.append(now - start)
                start, turn = now, turn + 1

        threads = [threading.Thread(target=search, args=(first,)) for first in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return np.array(latencies)


@contextmanager
def closed_loop(shards: Sequence[int], codes: int, seconds: float) -> Iterator[ClosedLoop]:
    """Start a cluster of each number of shards; those that are not measured wait without work."""
    with temporary_folder(None) as folder, ExitStack() as stack:
        clusters = {count: stack.enter_context(real_cluster(folder / str(count), count, codes)) for count in shards}
        yield ClosedLoop(clusters, seconds)
