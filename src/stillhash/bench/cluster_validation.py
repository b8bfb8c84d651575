"""Compare the model of a cluster with real processes on this machine: latencies and throughput of the same load."""

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product

import numpy as np

from stillhash.bench.cluster_harness import HarnessFront, random_codes, shard_processes
from stillhash.bench.cluster_model import simulate
from stillhash.bench.cluster_probe import make_weights, other_threads
from stillhash.bench.cluster_scenario import Scenario
from stillhash.bench.timing import CODE_BITS, TOP_K, Figures
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


class RealCluster:
    """Sets of shard processes with a front each, by their number of shards."""

    def __init__(self, fronts: dict[int, HarnessFront], codes: int, seconds: float) -> None:
        self.fronts, self.codes, self.seconds = fronts, codes, seconds
        self.weights = make_weights(QUERIES)

    def different_answers(self, queries: int) -> int:
        """Count queries whose hits are not those of one index over the same codes."""
        wrong = 0
        for shards, front in self.fronts.items():
            part, index = self.codes // shards, Index(CODE_BITS, threads=1)
            for number in range(shards):
                index.add(random_codes(part, number), np.arange(number * part, (number + 1) * part))
            expected = index.search(self.weights[:queries], TOP_K)
            for row in range(queries):
                hits = front.search(self.weights[row])
                same_ids = np.array_equal(hits.ids[0], expected.ids[row])
                wrong += not (same_ids and np.array_equal(hits.scores[0], expected.scores[row]))
        return wrong

    def measure(self, shards: int, clients: int) -> Doubles:
        """Return the seconds of each query while so many threads search, one query after another."""
        front, latencies = self.fronts[shards], list[float]()
        for row in range(WARM_UP_QUERIES):
            front.search(self.weights[row])
        end = time.perf_counter() + self.seconds
        threads = [
            threading.Thread(target=self._search_until, args=(front, end, first, latencies)) for first in range(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return np.array(latencies)

    def _search_until(self, front: HarnessFront, end: float, first: int, latencies: list[float]) -> None:
        turn, start = first, time.perf_counter()
        while start < end:
            front.search(self.weights[turn % QUERIES])
            now = time.perf_counter()
            latencies.append(now - start)
            start, turn = now, turn + 1


@contextmanager
def real_cluster(shards: Sequence[int], codes: int, seconds: float) -> Iterator[RealCluster]:
    """Start the processes of each number of shards; those that are not measured wait without work."""
    with ExitStack() as stack:
        fronts = {}
        for count in shards:
            front = HarnessFront(stack.enter_context(shard_processes(count, codes)))
            stack.callback(front.close)
            fronts[count] = front
        yield RealCluster(fronts, codes, seconds)
