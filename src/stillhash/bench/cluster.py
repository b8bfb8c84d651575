"""Time and break a cluster: the answers of one index, the cost of many shards, killed actors and nodes.

All nodes are on this machine and share its cores, so nothing here gets faster by more shards; what is measured is what
the distribution adds. A trip is one round of calls to all shards, with every query that waited for it; its overhead
is its time on the wall, until the hits are merged, less the time that the slowest shard was at work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stillhash.bench.cluster_faults import (
    LOAD_THREADS,
    LOAD_TIMEOUT,
    equal,
    join_node,
    kill_actor,
    kill_node,
    run_threads,
)
from stillhash.bench.timing import CODE_BITS, TOP_K, goal, temporary_folder
from stillhash.cluster import ClusterIndex, LocalCluster
from stillhash.experiments.tables import ReportProgress, TableData, format_table, silent
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Codes, Floats, check_integer
from stillhash.search import Hits, Index

CODES_PER_ADD = 1_000_000  # and of a segment
TIED_CODES = 1000  # codes that a tenth of the rows share, so that there are long ties
CONCURRENT_QUERIES = (1, 8, 64)
TINY_INDEX_CODES = 4096  # in which there is next to nothing to search


def run(
    repeats: int = 200,
    quick: bool = False,
    progress: ReportProgress = silent,
    *,
    codes: int = 20_000_000,
    shards: int = 4,
    nodes: int = 4,
    queries: int = 1000,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Compare with one index, time trips, and kill an actor and a node under load."""
    check_integer(repeats, "repeats", 8)
    check_integer(codes, "codes", 1000)
    check_integer(shards, "shards", 1)
    check_integer(nodes, "nodes", 2)
    check_integer(queries, "queries", 1)
    step = CODES_PER_ADD
    if quick:
        repeats, codes, queries, step, shards, nodes = 8, 20_000, 40, 2000, min(shards, 2), min(nodes, 2)
    weights = query_weights(queries)
    with temporary_folder(folder) as temporary:
        progress("the answers of one index")
        expected = search_one_index(codes, step, weights)
        with LocalCluster(nodes, fast_health_check=quick) as local:
            rates = []
            for count in sorted({1, 2} - {shards} if shards > 1 else set()):
                progress(f"throughput of {count} shards")
                with cluster_index(temporary, codes, step, count) as index:
                    rates.append(measure_rate(index, weights, repeats))
            progress(f"{codes:,} codes over {shards} shards")
            with cluster_index(temporary, codes, step, shards) as index:
                progress(f"{queries:,} queries against one index")
                same = compare(index, weights, expected)
                rates.append(measure_rate(index, weights, repeats))
                trips = []
                for clients in CONCURRENT_QUERIES:
                    progress(f"trips of {clients} concurrent queries")
                    trips.append(time_trips(index, weights, clients, repeats))
                progress("an actor is killed under load")
                actor = kill_actor(index, weights, expected)
                progress("a node is lost under load")
                node = kill_node(local, index, weights, expected)
                progress("a node joins under load")
                joined = join_node(local, index, weights, expected)
            progress("trips with next to nothing to search")
            with cluster_index(temporary, TINY_INDEX_CODES, -(-TINY_INDEX_CODES // shards), shards) as index:
                bare = [time_trips(index, weights, clients, repeats) for clients in CONCURRENT_QUERIES]
    faults = {"actor": actor, "node": node, "joined": joined}
    goals = [
        goal("answers that differ from one index", "<= 0", same["different"]),
        goal(f"overhead of a query, {CONCURRENT_QUERIES[-1]} at a time, ms", "<= 1", trips[-1]["per_query_ms"]),
        goal("wrong or short answers while an actor is killed", "<= 0", actor["wrong"]),
        goal("wrong or short answers while nodes go and come", "<= 0", node["wrong"] + joined["wrong"]),
        goal("faults that actors were replaced or moved in", ">= 3", sum(f["actors"] > 0 for f in faults.values())),
        goal("searches refused meanwhile", "<= 0", sum(fault["refused"] for fault in faults.values())),
        goal("full service after kill -9 of an actor, s", "<= 5", actor["seconds"]),
        goal("full service after the loss of a node, s", "<= 30", node["seconds"]),
    ]
    about = {"codes": codes, "bits": CODE_BITS, "k": TOP_K, "shards": shards, "nodes": nodes, "queries": queries}
    measured = {"same": same, "rates": rates, "trips": trips, "bare": bare, "faults": faults}
    return {**about, **measured, "goals": goals}


# ---- codes and queries ----


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


def search_one_index(codes: int, step: int, weights: Floats) -> Hits:
    index = Index(CODE_BITS)
    fill_index(index, codes, step)
    return index.search(weights, TOP_K)


@contextmanager
def cluster_index(folder: Path, codes: int, step: int, shards: int) -> Iterator[ClusterIndex]:
    threads = max(1, usable_cores() // shards)
    with ClusterIndex(CODE_BITS, shards, storage=folder, deadline=LOAD_TIMEOUT, threads=threads) as index:
        fill_index(index, codes, step)
        index.wait_ready()
        while any(actor["merging"] for actor in index.status()["actors"]):
            time.sleep(0.5)
        yield index


# ---- cost ----


def compare(index: ClusterIndex, weights: Floats, expected: Hits) -> dict[str, Any]:
    """Count answers that differ: all queries at once, then some of them one at a time."""
    together = index.search(weights, TOP_K)
    wrong = sum(not equal(together, expected, q, q) for q in range(len(weights)))
    alone = range(0, len(weights), 20)
    wrong += sum(not equal(index.search(weights[q], TOP_K), expected, 0, q) for q in alone)
    ties = int((expected.scores[:, :-1] == expected.scores[:, 1:]).any(axis=1).sum())
    return {"queries": len(weights), "alone": len(alone), "with_ties": ties, "different": wrong}


def measure_rate(index: ClusterIndex, weights: Floats, repeats: int) -> dict[str, Any]:
    """Return queries per second, alone and in batches."""
    began = time.perf_counter()
    for turn in range(repeats):
        index.search(weights[turn % len(weights)], TOP_K)
    alone = repeats / (time.perf_counter() - began)
    batch = weights[:64]
    began = time.perf_counter()
    for _ in range(max(1, repeats // 16)):
        index.search(batch, TOP_K)
    together = max(1, repeats // 16) * len(batch) / (time.perf_counter() - began)
    return {"shards": len(index.status()["shards"]), "plan": index.plan, "alone": alone, "together": together}


def time_trips(index: ClusterIndex, weights: Floats, clients: int, repeats: int) -> dict[str, Any]:
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
    run_threads(search, clients)
    seconds = time.perf_counter() - began
    over = 1e3 * np.array([trip.seconds - trip.slowest for trip in index.timings])
    count = sum(trip.queries for trip in index.timings)
    ms = 1e3 * np.array(waits)
    return {
        "clients": clients,
        "queries": count,
        "trips": len(over),
        "overhead_p50_ms": float(np.median(over)),
        "overhead_p99_ms": float(np.quantile(over, 0.99)),
        "per_query_ms": float(over.sum() / count),
        "search_p50_ms": float(np.median(ms)),
        "search_p99_ms": float(np.quantile(ms, 0.99)),
        "per_second": count / seconds,
    }


def tables(result: dict[str, Any]) -> list[TableData | str]:
    same = "queries: {queries:,} | one at a time: {alone:,} | with ties: {with_ties:,} | different: {different:,}"
    trips = """at a time: {clients} | trips: {trips} | overhead p50 ms: {overhead_p50_ms:.2f} |
        p99: {overhead_p99_ms:.2f} | of each query: {per_query_ms:.3f} | search p50 ms: {search_p50_ms:.1f} |
        p99: {search_p99_ms:.1f} | searches/s: {per_second:,.0f}"""
    rates = "shards: {shards} | begins on: {plan} | one at a time: {alone:,.0f} | 64 together: {together:,.0f}"
    faults = """: {name} | actors: {actors} | answer after s: {seconds:.1f} | all ready after s: {ready_s:.1f} |
        right: {right:,} | wrong: {wrong:,} | refused: {refused:,}"""
    names = {"actor": "kill -9 of an actor", "node": "a node is lost", "joined": "a node joins"}
    fault_rows = [{"name": names[name], **fault} for name, fault in result["faults"].items()]
    size = (
        f"{result['codes']:,} codes of {CODE_BITS} bits, {result['shards']} shards, {result['nodes']} nodes and a head"
    )
    return [
        format_table(f"{size}: answers against one index", same, [result["same"]]),
        format_table("Trips to all shards", trips, result["trips"]),
        format_table(f"The same over {TINY_INDEX_CODES:,} codes", trips, result["bare"]),
        format_table("Queries per second by shards, all on the same cores", rates, result["rates"]),
        format_table(f"Under load of {LOAD_THREADS} threads", faults, fault_rows),
    ]
