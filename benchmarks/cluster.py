"""Time an index on a cluster beside one in this process: the same answers, and what the distribution adds.

All shards are on this machine and share its cores, so nothing here gets faster by more shards. The overhead of a
search is its time until the hits are merged, less the time that the slowest shard was at work.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from benchmarks.timing import CODE_BITS, TOP_K, Figures, Sections, hit_bytes, quantiles_ms, temporary_folder
from stillhash.cluster import ClusterIndex, LocalCluster
from stillhash.cluster.controller import Controller
from stillhash.cluster.storage import Storage
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Codes, Floats, check_integer
from stillhash.search import Hits, Index

COMPARED_SHARDS, MANY_SHARDS, AGGREGATORS = 3, 20, 2
SHARD_COUNTS = (1, 2, 4)  # of the throughput by shards
CLIENT_COUNTS = (1, 8, 64)
MIN_REPEATS = 8
SEARCH_SECONDS = 120.0
CPUS = 8  # that the node claims to have, for up to 22 actors of a quarter each

Search = Callable[[Floats], Hits]


def run(quick: bool, progress: ReportProgress, repeats: int = 800, codes: int = 3_000_000) -> Figures:
    """Compare answers and times with one index; then throughput by shards, and many shards through aggregators."""
    check_integer(codes, "codes", 1000)
    queries = 1000
    if quick:
        repeats, codes, queries = MIN_REPEATS, 20_000, 40
    check_integer(repeats, "repeats", MIN_REPEATS)
    weights = make_weights(queries)
    progress("the answers of one index")
    single = Index(CODE_BITS)
    add_codes(single, codes)
    expected = single.search(weights, TOP_K)
    with temporary_folder(None) as folder, LocalCluster(0, cpus=CPUS) as _:
        progress(f"{codes:,} codes over {COMPARED_SHARDS} shards")
        with cluster_index(folder / "shards", codes, COMPARED_SHARDS) as index:
            progress(f"{queries:,} queries against one index")
            same = compare(index, weights, expected)
            clients = []
            for count in CLIENT_COUNTS:
                progress(f"{count} clients")
                clients.append(time_beside(single, index, weights, count, repeats))
        rates = []
        for count in SHARD_COUNTS:
            progress(f"throughput of {count} shards")
            with cluster_index(folder / f"rate-{count}", codes, count) as index:
                rates.append({"shards": count, **measure_rates(index, weights, repeats)})
        many = []
        for aggregators in (0, AGGREGATORS):
            progress(f"{MANY_SHARDS} shards, {aggregators} aggregators")
            with cluster_index(folder / f"many-{aggregators}", codes, MANY_SHARDS, aggregators) as index:
                wrong = compare(index, weights, expected)["different"]
                timed = [time_clients(index, weights, count, repeats) for count in CLIENT_COUNTS]
                many += [{"aggregators": aggregators, "different": wrong, **each} for each in timed]
    wrong = same["different"] + sum(each["different"] for each in many)
    goals = [
        ("answers that differ from one index", "<= 0", wrong),
        ("p50 of one client, of one index", "<= 2", clients[0]["cluster_p50_ms"] / clients[0]["single_p50_ms"]),
        (f"searches/s of {CLIENT_COUNTS[-1]} clients, of one index", ">= 0.5", clients[-1]["of_single"]),
        ("overhead of a search, one client, p50 ms", "<= 1", clients[0]["overhead_p50_ms"]),
    ]
    about = {"codes": codes, "bits": CODE_BITS, "k": TOP_K, "shards": COMPARED_SHARDS, "queries": queries}
    return {**about, "same": same, "clients": clients, "rates": rates, "many": many, "goals": goals}


class AggregatedShards(Controller):
    """Starts so many aggregators, whatever the number of shards."""

    def __init__(self, storage: Storage, options: dict[str, Any], aggregators: int) -> None:
        super().__init__(storage, options, detached=False)
        self.aggregators = aggregators

    def ensure(
        self, shards: Iterable[int], replicas: int, aggregators: int | None = None, seconds: float = 60.0
    ) -> None:
        super().ensure(shards, replicas, self.aggregators if aggregators is None else aggregators, seconds)


@contextmanager
def cluster_index(folder: Path, codes: int, shards: int, aggregators: int = 0) -> Iterator[ClusterIndex]:
    """Fill an index, and wait until all shards have loaded it."""
    threads = max(1, usable_cores() // shards)
    processes = AggregatedShards(Storage(folder), {"threads": threads}, aggregators)
    with ClusterIndex(CODE_BITS, shards, storage=folder, deadline=SEARCH_SECONDS, processes=processes) as index:
        add_codes(index, codes)
        index.wait_ready()
        index.search(np.zeros(CODE_BITS, np.float32), TOP_K)  # lets each shard load a commit that it missed
        while any(actor["merging"] for actor in index.status()["actors"]):
            time.sleep(0.5)
        yield index


def compare(index: ClusterIndex, weights: Floats, expected: Hits) -> Figures:
    """Count answers that differ: all queries at once, some of them one at a time, and some by many threads."""
    right = hit_bytes(expected)
    together = hit_bytes(index.search(weights, TOP_K))
    wrong = sum(a != b for a, b in zip(together, right, strict=True))
    places = range(0, len(right), 5)
    answers: dict[int, bytes] = {}

    def search(first: int) -> None:
        for place in places[first::8]:
            answers[place] = hit_bytes(index.search(weights[place], TOP_K))[0]

    in_threads([partial(search, first) for first in range(8)])
    wrong += sum(answers[place] != right[place] for place in places)
    ties = int((expected.scores[:, :-1] == expected.scores[:, 1:]).any(axis=1).sum())
    return {"queries": len(right), "alone": len(places), "with_ties": ties, "different": wrong}


def in_threads(functions: Sequence[Callable[[], object]]) -> float:
    """Run functions at the same time; how long it took. What one of them raises is raised."""
    start, failures = threading.Barrier(len(functions) + 1), list[BaseException]()

    def call(function: Callable[[], object]) -> None:
        start.wait()
        try:
            function()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=call, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    for failure in failures:
        raise failure
    return seconds


def time_searches(search: Search, weights: Floats, clients: int, each: int) -> tuple[list[float], float]:
    """Let so many threads search one query after the other; the seconds of each search, and of all together."""
    waits: list[float] = []

    def client(number: int) -> None:
        for turn in range(each):
            query = weights[(number * each + turn) % len(weights)]
            began = time.perf_counter()
            search(query)
            waits.append(time.perf_counter() - began)

    seconds = in_threads([partial(client, number) for number in range(clients)])
    return waits, seconds


def time_beside(single: Index, index: ClusterIndex, weights: Floats, clients: int, repeats: int) -> Figures:
    """Time the cluster and one index in turns, in several rounds."""
    rounds, each = 4, max(2, repeats // (4 * min(clients, 8)))
    searches: dict[str, Search] = {
        "single": lambda query: single.search(query, TOP_K),
        "cluster": lambda query: index.search(query, TOP_K),
    }
    waits: dict[str, list[float]] = {name: [] for name in searches}
    seconds = dict.fromkeys(searches, 0.0)
    index.search(weights[0], TOP_K)
    index.timings.clear()
    for _ in range(rounds):
        for name, search in searches.items():
            some, spent = time_searches(search, weights, clients, each)
            waits[name] += some
            seconds[name] += spent
    over = [timing.seconds - timing.slowest for timing in index.timings]
    figures: Figures = {"clients": clients, "searches": len(waits["cluster"]), **quantiles_ms(over, "overhead_")}
    for name in searches:
        figures |= {**quantiles_ms(waits[name], f"{name}_"), f"{name}_per_second": len(waits[name]) / seconds[name]}
    figures["of_single"] = figures["cluster_per_second"] / figures["single_per_second"]
    return figures


def time_clients(index: ClusterIndex, weights: Floats, clients: int, repeats: int) -> Figures:
    """Time the cluster alone."""
    each = max(2, repeats // min(clients, 8))
    index.search(weights[0], TOP_K)
    waits, seconds = time_searches(lambda query: index.search(query, TOP_K), weights, clients, each)
    return {"clients": clients, **quantiles_ms(waits), "per_second": len(waits) / seconds}


def measure_rates(index: ClusterIndex, weights: Floats, repeats: int) -> Figures:
    """Return queries per second: one at a time, by many clients, and in batches of 64."""
    alone = time_clients(index, weights, 1, repeats)["per_second"]
    clients = time_clients(index, weights, CLIENT_COUNTS[-1], repeats)["per_second"]
    batches = max(2, repeats // 16)
    began = time.perf_counter()
    for _ in range(batches):
        index.search(weights[: CLIENT_COUNTS[-1]], TOP_K)
    together = batches * len(weights[: CLIENT_COUNTS[-1]]) / (time.perf_counter() - began)
    return {"plan": index.plan, "alone": alone, "clients": clients, "together": together}


def tables(result: Figures) -> Sections:
    same = "queries: {queries:,} | one at a time: {alone:,} | with ties: {with_ties:,} | different: {different:,}"
    clients = """clients: {clients} | cluster p50 ms: {cluster_p50_ms:.2f} | p99: {cluster_p99_ms:.2f} |
        one index p50 ms: {single_p50_ms:.2f} | p99: {single_p99_ms:.2f} |
        cluster searches/s: {cluster_per_second:,.0f} | one index: {single_per_second:,.0f} |
        overhead p50 ms: {overhead_p50_ms:.2f} | p99: {overhead_p99_ms:.2f}"""
    rates = """shards: {shards} | begins on: {plan} | one client, searches/s: {alone:,.0f} |
        64 clients: {clients:,.0f} | batches of 64, queries/s: {together:,.0f}"""
    many = """aggregators: {aggregators} | clients: {clients} | p50 ms: {p50_ms:.2f} | p99: {p99_ms:.2f} |
        searches/s: {per_second:,.0f} | different: {different}"""
    size = "{codes:,} codes of {bits} bits, k = {k}, {shards} shards".format_map(result)
    return [
        format_table(f"{size}: answers against one index", same, [result["same"]]),
        format_table("Beside one index in this process, with as many threads as clients", clients, result["clients"]),
        format_table("By shards, all on the same cores", rates, result["rates"]),
        format_table(f"{MANY_SHARDS} shards, searched one by one and through aggregators", many, result["many"]),
    ]


# ---- codes and queries ----


CODES_PER_ADD = 1_000_000
TIED_CODES = 1000  # codes that a tenth of the rows share, so that there are long ties


class Addable(Protocol):
    """An index, or one on a cluster."""

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None) -> object: ...


def make_codes(start: int, rows: int, codes: int) -> Codes:
    """Make rows from `start`; the last tenth of all `codes` rows is made of a few codes, over and over."""
    rng = np.random.default_rng([7, start])
    chunk = rng.integers(0, 256, (rows, CODE_BITS // 8), dtype=np.uint8)
    few = np.random.default_rng(8).integers(0, 256, (TIED_CODES, CODE_BITS // 8), dtype=np.uint8)
    tied = np.arange(start, start + rows) >= codes - codes // 10
    chunk[tied] = few[rng.integers(0, TIED_CODES, int(tied.sum()))]
    return chunk


def make_weights(queries: int, *, ties: bool = True) -> Floats:
    """Make weights; with ties, every other query has -1, 0 and 1 only, so that most of its scores are equal."""
    rng = np.random.default_rng(9)
    weights = rng.standard_normal((queries, CODE_BITS)).astype(np.float32)
    if ties:
        weights[::2] = rng.integers(-1, 2, weights[::2].shape)
    return weights


def add_codes(index: Addable, codes: int, step: int = CODES_PER_ADD) -> None:
    """Add so many codes under the numbers from 0."""
    for start in range(0, codes, step):
        index.add(make_codes(start, min(step, codes - start), codes))
