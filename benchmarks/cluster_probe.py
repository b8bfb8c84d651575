"""Measure on this machine what the model of a cluster needs: the scan, messages, merging and the front."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import zmq

from benchmarks.cluster_codes import make_weights
from benchmarks.cluster_processes import RealCluster, cpu_seconds, real_cluster
from benchmarks.cluster_scenario import MessageCosts, ServiceTime
from benchmarks.timing import CODE_BITS, TOP_K, Figures, temporary_folder
from stillhash.experiments.tables import ReportProgress
from stillhash.numeric.codes import TILE
from stillhash.numeric.validation import Doubles
from stillhash.search import Hits, Scan
from stillhash.search.merge import merge_top

PROBE_BATCHES = (1, 8, 64)  # queries of a batch
MESSAGE_SHARDS, MESSAGE_QUERIES, MESSAGE_WARM_UP = (1, 4), 32, 20  # of the messages that are measured
MERGED_SHARDS = (1, 2, 8, 64, 256)
LOAD_SAMPLES, LOAD_SECONDS = 10, 0.3


def measure_scan(sizes: Sequence[int], threads: int, repeats: int) -> list[Figures]:
    """Time batches over random codes: CPU seconds of one thread, or the least wall seconds of more."""
    rows, weights = [], make_weights(max(PROBE_BATCHES), ties=False)
    clock = time.process_time if threads == 1 else time.perf_counter
    take: Callable[[list[float]], float] = statistics.median if threads == 1 else min
    codes = np.random.default_rng(6).integers(0, 256, (max(sizes), CODE_BITS // 8), dtype=np.uint8)
    for size in sizes:
        index = Scan(CODE_BITS, threads=threads)
        index.add(codes[:size])
        for queries in PROBE_BATCHES:
            times = []
            for _ in range(repeats + 1):
                start = clock()
                index.search(weights[:queries], TOP_K)
                times.append(clock() - start)
            rows.append({"codes": size, "queries": queries, "threads": threads, "seconds": take(times[1:])})
    return rows


def fit_service(rows: list[Figures]) -> ServiceTime:
    """Fit the service time to measured rows: least squares of relative errors, with no negative part."""
    seconds = np.array([row["seconds"] for row in rows])
    columns = np.array([[1, row["codes"], row["codes"] * row["queries"], row["queries"]] for row in rows], np.float64)
    parts = fit_positive(columns / seconds[:, None], np.ones(len(rows)))
    return ServiceTime(*parts.tolist())


def fit_positive(A: Doubles, b: Doubles) -> Doubles:
    """Return x >= 0 with small squares of A x - b: the most negative part is left out until there is none."""
    used, scale = np.ones(A.shape[1], bool), np.abs(A).max(axis=0)
    while used.any():
        x: Doubles = np.zeros(A.shape[1])
        x[used] = np.linalg.lstsq(A[:, used] / scale[used], b, rcond=None)[0]
        if x.min() >= 0:
            x /= scale
            return x
        used[x.argmin()] = False
    return np.zeros(A.shape[1])


def fit_error(service: ServiceTime, rows: list[Figures]) -> float:
    """Return the largest relative error of a fit."""
    errors = [service.seconds(row["codes"], row["queries"]) / row["seconds"] - 1 for row in rows]
    return float(np.abs(errors).max())


def measure_messages(repeats: int, progress: ReportProgress) -> Figures:
    """Measure searches of real shards with next to no codes, of one query and of many: seconds of each search.

    The CPU time of the front and the mean of the shards', for Python and for ZeroMQ's threads.
    """
    pairs: Figures = {}
    with temporary_folder(None) as folder:
        for shards in MESSAGE_SHARDS:
            progress(f"messages to {shards} shards")
            with real_cluster(folder / str(shards), shards, shards * TILE) as cluster:
                for queries in (1, MESSAGE_QUERIES):
                    pairs[f"{shards} shards, {queries} queries"] = measure_searches(cluster, queries, repeats)
    return pairs


def measure_searches(cluster: RealCluster, queries: int, repeats: int) -> Figures:
    """Search so often, one search after another."""
    weights, walls = make_weights(queries, ties=False), []
    for _ in range(MESSAGE_WARM_UP):
        cluster.search(weights)
    before = [cpu_seconds(), *map(cpu_seconds, cluster.pids)]
    for _ in range(repeats):
        start = time.perf_counter()
        cluster.search(weights)
        walls.append(time.perf_counter() - start)
    after = [cpu_seconds(), *map(cpu_seconds, cluster.pids)]
    used = np.subtract(after, before) / repeats
    (front, front_io), (shard, shard_io) = used[0].tolist(), used[1:].mean(axis=0).tolist()
    return {
        "wall": statistics.median(walls),
        **{"front": front, "front_io": front_io, "shard": shard, "shard_io": shard_io},
    }


def measure_merge(repeats: int) -> tuple[float, float]:
    """Return CPU seconds of merging one query: a fixed part, and one for each shard."""
    rows = []
    rng = np.random.default_rng(2)
    for shards in MERGED_SHARDS:
        sources = [
            Hits(np.sort(rng.random((1, TOP_K), np.float32))[:, ::-1], rng.integers(0, 9, (1, TOP_K)))
            for _ in range(shards)
        ]
        start = time.process_time()
        for _ in range(repeats):
            merge_top(sources, TOP_K)
        rows.append((time.process_time() - start) / repeats)
    columns = np.array([[1.0, shards] for shards in MERGED_SHARDS])
    fixed, each = fit_positive(columns / np.array(rows)[:, None], np.ones(len(rows))).tolist()
    return fixed, each


def measure_costs_of_messages(repeats: int, progress: ReportProgress) -> tuple[MessageCosts, float, Figures]:
    """Return the costs of messages, the latency between two processes of this machine, and what they were read from."""
    pairs = measure_messages(repeats, progress)
    merge, merge_source = measure_merge(repeats)
    few, more = MESSAGE_SHARDS
    one, many = (pairs[f"{few} shards, {queries} queries"] for queries in (1, MESSAGE_QUERIES))
    each, each_of_many = (
        (pairs[f"{more} shards, {queries} queries"]["front"] - base["front"]) / (more - few)
        for queries, base in ((1, one), (MESSAGE_QUERIES, many))
    )  # what one more shard costs the front
    message = max(0.0, each - merge_source)
    per_query = max(0.0, (each_of_many - each) / (MESSAGE_QUERIES - 1) - merge_source)
    costs = MessageCosts(
        query=max(0.0, one["front"] - few * each - merge),
        send=message / 2,
        send_query=per_query / 2,
        receive=message / 2,
        receive_query=per_query / 2,
        merge=merge,
        merge_source=merge_source,
        shard=one["shard"],
        shard_query=max(0.0, many["shard"] - one["shard"]) / (MESSAGE_QUERIES - 1),
        io=(one["front_io"] + one["shard_io"]) / 4,
    )
    cpu = one["front"] + one["front_io"] + one["shard"] + one["shard_io"]
    latency = max(0.0, one["wall"] - cpu) / 2
    return costs, latency, {"pairs": pairs, "costs": asdict(costs), "latency": latency}


def measure_poll(sockets: int, repeats: int) -> float:
    """Return CPU seconds of one poll of so many sockets of which one is ready."""
    with zmq.Context() as context:
        pairs = [(context.socket(zmq.PAIR), context.socket(zmq.PAIR)) for _ in range(sockets)]
        poller = zmq.Poller()
        for number, (a, b) in enumerate(pairs):
            a.bind(f"inproc://{number}")
            b.connect(f"inproc://{number}")
            poller.register(b, zmq.POLLIN)
        pairs[-1][0].send(b"")
        start = time.process_time()
        for _ in range(repeats):
            poller.poll()
        seconds = (time.process_time() - start) / repeats
        context.destroy(linger=0)
    return seconds


def other_threads() -> float:
    """Return how many threads of other programs run on average just now, by a few samples; 0 where it is unknown.

    A thread of another priority counts as the scheduler weighs it, 1.25 times less for each step of niceness.
    """
    own, weights = os.getpid(), []
    for _ in range(LOAD_SAMPLES):
        weights.append(0.0)
        for stat in Path("/proc").glob("[0-9]*/task/*/stat"):
            try:
                fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            if fields[0] == "R" and int(stat.parts[2]) != own:
                weights[-1] += 1.25 ** -int(fields[16])
        time.sleep(LOAD_SECONDS / LOAD_SAMPLES)
    return statistics.fmean(weights)
