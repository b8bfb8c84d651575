"""Time and break a cluster: the answers of one index, the cost of many shards, killed actors and nodes.

All nodes are on this machine and share its cores, so nothing here gets faster by more shards; what is measured is what
the distribution adds. A trip is one round of calls to all shards, with every query that waited for it; its overhead
is its time on the wall, until the hits are merged, less the time that the slowest shard was at work.
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from stillhash.bench import cluster_faults
from stillhash.bench.cluster_faults import LOAD_THREADS, LOAD_TIMEOUT, CheckedIndex
from stillhash.bench.timing import CODE_BITS, TOP_K, Figures, Sections, hit_bytes, quantiles_ms, temporary_folder
from stillhash.cluster import ClusterIndex, LocalCluster
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Codes, Floats, check_integer
from stillhash.search import Hits, Index

CODES_PER_ADD = 1_000_000  # and of a segment
TIED_CODES = 1000  # codes that a tenth of the rows share, so that there are long ties
MIN_REPEATS = 8
CONCURRENT_QUERIES = (1, 8, 64)
FAULTS = {
    "actor": ("kill -9 of an actor", cluster_faults.kill_actor),
    "node": ("a node is lost", cluster_faults.kill_node),
    "joined": ("a node joins", cluster_faults.join_node),
}
TINY_INDEX_CODES = 4096  # in which there is next to nothing to search


def run(repeats: int, quick: bool, progress: ReportProgress, codes: int) -> Figures:
    """Compare with one index, time trips, and kill an actor and a node under load."""
    check_integer(codes, "codes", 1000)
    shards, nodes, queries, step = 4, 4, 1000, CODES_PER_ADD
    if quick:
        repeats, codes, shards, nodes, queries, step = MIN_REPEATS, 20_000, 2, 2, 40, 2000
    check_integer(repeats, "repeats", MIN_REPEATS)
    weights = query_weights(queries)
    progress("the answers of one index")
    one_index = Index(CODE_BITS)
    fill_index(one_index, codes, step)
    expected = one_index.search(weights, TOP_K)
    del one_index
    with temporary_folder(None) as folder, LocalCluster(nodes, fast_health_check=quick) as local:
        rates = []
        for count in range(1, min(shards, 3)):
            progress(f"throughput of {count} shards")
            with cluster_index(folder, codes, step, count) as index:
                rates.append(measure_rate(index, weights, repeats))
        progress(f"{codes:,} codes over {shards} shards")
        with cluster_index(folder, codes, step, shards) as index:
            checked = CheckedIndex(index, weights, hit_bytes(expected))
            progress(f"{queries:,} queries against one index")
            same = compare(checked, expected)
            rates.append(measure_rate(index, weights, repeats))
            progress("trips of concurrent queries")
            trips = [time_trips(index, weights, clients, repeats) for clients in CONCURRENT_QUERIES]
            faults = {}
            for name, (fault, cause) in FAULTS.items():
                progress(f"{fault}, under load")
                faults[name] = cause(checked, local)
        progress("trips with next to nothing to search")
        with cluster_index(folder, TINY_INDEX_CODES, -(-TINY_INDEX_CODES // shards), shards) as index:
            bare = [time_trips(index, weights, clients, repeats) for clients in CONCURRENT_QUERIES]
    actor, node, joined = faults.values()
    goals = [
        ("answers that differ from one index", "<= 0", same["different"]),
        (f"overhead of a query, {CONCURRENT_QUERIES[-1]} at a time, ms", "<= 1", trips[-1]["per_query_ms"]),
        ("wrong or short answers while an actor is killed", "<= 0", actor["wrong"]),
        ("wrong or short answers while nodes go and come", "<= 0", node["wrong"] + joined["wrong"]),
        ("faults that actors were replaced or moved in", ">= 3", sum(f["actors"] > 0 for f in faults.values())),
        ("searches refused meanwhile", "<= 0", sum(fault["refused"] for fault in faults.values())),
        ("full service after kill -9 of an actor, s", "<= 5", actor["seconds"]),
        ("full service after the loss of a node, s", "<= 30", node["seconds"]),
    ]
    about = {"codes": codes, "bits": CODE_BITS, "k": TOP_K, "shards": shards, "nodes": nodes, "queries": queries}
    measured = {"same": same, "rates": rates, "trips": trips, "bare": bare, "faults": faults}
    return {**about, **measured, "goals": goals}


def make_codes(start: int, rows: int, codes: int) -> Codes:
    """Make rows from `start`; the last tenth of all `codes` rows is made of a few codes, over and over."""
    rng = np.random.default_rng([7, start])
    chunk = rng.integers(0, 256, (rows, CODE_BITS // 8), dtype=np.uint8)
    few = np.random.default_rng(8).integers(0, 256, (TIED_CODES, CODE_BITS // 8), dtype=np.uint8)
    tied = np.arange(start, start + rows) >= codes - codes // 10
    chunk[tied] = few[rng.integers(0, TIED_CODES, int(tied.sum()))]
    return chunk


def query_weights(queries: int) -> Floats:
    """Make weights; every other query has -1, 0 and 1 only, so that most of its scores are ties."""
    rng = np.random.default_rng(9)
    weights = rng.standard_normal((queries, CODE_BITS)).astype(np.float32)
    weights[::2] = rng.integers(-1, 2, weights[::2].shape)
    return weights


def fill_index(index: Index | ClusterIndex, codes: int, step: int) -> None:
    for start in range(0, codes, step):
        rows = min(step, codes - start)
        index.add(make_codes(start, rows, codes), np.arange(start, start + rows))


@contextmanager
def cluster_index(folder: Path, codes: int, step: int, shards: int) -> Iterator[ClusterIndex]:
    threads = max(1, usable_cores() // shards)
    with ClusterIndex(CODE_BITS, shards, storage=folder, deadline=LOAD_TIMEOUT, threads=threads) as index:
        fill_index(index, codes, step)
        index.wait_ready()
        while any(actor["merging"] for actor in index.status()["actors"]):
            time.sleep(0.5)
        yield index


def compare(checked: CheckedIndex, expected: Hits) -> Figures:
    """Count answers that differ: all queries at once, then some of them one at a time."""
    together = hit_bytes(checked.index.search(checked.weights, TOP_K))
    wrong = sum(a != b for a, b in zip(together, checked.expected, strict=True))
    alone = range(0, len(together), 20)
    wrong += sum(checked.search(q) == "wrong" for q in alone)
    ties = int((expected.scores[:, :-1] == expected.scores[:, 1:]).any(axis=1).sum())
    return {"queries": len(together), "alone": len(alone), "with_ties": ties, "different": wrong}


def measure_rate(index: ClusterIndex, weights: Floats, repeats: int) -> Figures:
    """Return queries per second, alone and in batches."""
    rates = []
    singles = [weights[turn % len(weights), None] for turn in range(repeats)]
    for batches in (singles, [weights[:64]] * max(1, repeats // 16)):
        began = time.perf_counter()
        for batch in batches:
            index.search(batch, TOP_K)
        rates.append(sum(map(len, batches)) / (time.perf_counter() - began))
    return {"shards": len(index.status()["shards"]), "plan": index.plan, "alone": rates[0], "together": rates[1]}


def time_trips(index: ClusterIndex, weights: Floats, clients: int, repeats: int) -> Figures:
    """Time trips while so many threads search one query after the other."""
    each = max(4, repeats // {1: 1, 8: 4}.get(clients, 8))
    start, waits = threading.Barrier(clients), list[float]()

    def search(number: int) -> None:
        start.wait()
        for turn in range(each):
            began = time.perf_counter()
            index.search(weights[(number * each + turn) % len(weights)], TOP_K)
            waits.append(time.perf_counter() - began)

    index.search(weights[0], TOP_K)
    index.timings.clear()
    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(search, range(clients)))
    seconds = time.perf_counter() - began
    over = [trip.seconds - trip.slowest for trip in index.timings]
    count = sum(trip.queries for trip in index.timings)
    counts = {"clients": clients, "queries": count, "trips": len(over)}
    times = {
        "per_query_ms": 1e3 * sum(over) / count,
        **quantiles_ms(over, "overhead_"),
        **quantiles_ms(waits, "search_"),
    }
    return {**counts, **times, "per_second": count / seconds}


def tables(result: Figures) -> Sections:
    same = "queries: {queries:,} | one at a time: {alone:,} | with ties: {with_ties:,} | different: {different:,}"
    trips = """at a time: {clients} | trips: {trips} | overhead p50 ms: {overhead_p50_ms:.2f} |
        p99: {overhead_p99_ms:.2f} | of each query: {per_query_ms:.3f} | search p50 ms: {search_p50_ms:.1f} |
        p99: {search_p99_ms:.1f} | searches/s: {per_second:,.0f}"""
    rates = "shards: {shards} | begins on: {plan} | one at a time: {alone:,.0f} | 64 together: {together:,.0f}"
    faults = """: {name} | actors: {actors} | answer after s: {seconds:.1f} | all ready after s: {ready_s:.1f} |
        right: {right:,} | wrong: {wrong:,} | refused: {refused:,}"""
    fault_rows = [{"name": FAULTS[name][0], **fault} for name, fault in result["faults"].items()]
    size = "{codes:,} codes of {bits} bits, {shards} shards, {nodes} nodes and a head".format_map(result)
    return [
        format_table(f"{size}: answers against one index", same, [result["same"]]),
        format_table("Trips to all shards", trips, result["trips"]),
        format_table(f"The same over {TINY_INDEX_CODES:,} codes", trips, result["bare"]),
        format_table("Queries per second by shards, all on the same cores", rates, result["rates"]),
        format_table(f"Under load of {LOAD_THREADS} threads", faults, fault_rows),
    ]
