"""Measure on this machine what the model of a cluster needs: the scan, messages, merging and the front."""

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import zmq

from stillhash.bench.cluster_harness import STOP, HarnessFront, pack_queries, shard_processes, unpack_hits
from stillhash.bench.cluster_scenario import MessageCosts, ServiceTime
from stillhash.bench.timing import CODE_BITS, TOP_K, Figures
from stillhash.numeric.validation import Doubles, Floats
from stillhash.search import Hits, Scan
from stillhash.search.merge import merge_top

PROBE_BATCHES = (1, 8, 64)  # queries of a batch
MERGED_SHARDS = (1, 2, 8, 64, 256)
LOAD_SAMPLES, LOAD_SECONDS = 10, 0.3


def make_weights(queries: int) -> Floats:
    return np.random.default_rng(5).standard_normal((queries, CODE_BITS), dtype=np.float32)


def measure_scan(sizes: Sequence[int], threads: int, repeats: int) -> list[Figures]:
    """Time batches over random codes: CPU seconds of one thread, or the least wall seconds of more."""
    rows, weights = [], make_weights(max(PROBE_BATCHES))
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


def measure_trips(port: int, queries: int, repeats: int) -> tuple[float, float, float]:
    """Send and receive one message pair after another; return wall, own thread's and whole process' CPU seconds."""
    weights = make_weights(queries)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(f"tcp://127.0.0.1:{port}")
        walls = []
        for turn in range(repeats + 20):
            if turn == 20:
                own, whole = time.thread_time(), time.process_time()
            start = time.perf_counter()
            socket.send_multipart(pack_queries(turn, weights), copy=False)
            unpack_hits(socket.recv_multipart(copy=False))
            walls.append(time.perf_counter() - start)
        used = (time.thread_time() - own) / repeats, (time.process_time() - whole) / repeats
    return statistics.median(walls[20:]), *used


def stop_shard(port: int) -> tuple[float, float]:
    """Stop a shard; return its own thread's and its whole process' CPU seconds."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(f"tcp://127.0.0.1:{port}")
        socket.send(STOP)
        own, whole = json.loads(socket.recv())
    return own, whole


def measure_messages(repeats: int) -> Figures:
    """Measure message pairs between two processes, of one query and of many."""
    pairs: Figures = {}
    for queries in (1, 64):
        with shard_processes(1, 0) as (port,):
            wall, own, whole = measure_trips(port, queries, repeats)
            shard_own, shard_whole = (seconds / (repeats + 20) for seconds in stop_shard(port))
        parts = {"front": own, "front_io": whole - own, "shard": shard_own, "shard_io": shard_whole - shard_own}
        pairs[str(queries)] = {"wall": wall, **parts}
    return pairs


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


def measure_front(repeats: int) -> float:
    """Return CPU seconds of the front's process for a query to one shard without codes, everything included."""
    weights = make_weights(1)[0]
    with shard_processes(1, 0) as ports:
        front = HarnessFront(ports)
        try:
            for _ in range(20):
                front.search(weights)
            start = time.process_time()
            for _ in range(repeats):
                front.search(weights)
            return (time.process_time() - start) / repeats
        finally:
            front.close()


def measure_costs_of_messages(repeats: int) -> tuple[MessageCosts, float, Figures]:
    """Return the costs of messages, the latency between two processes of this machine, and what they were read from."""
    pairs, (merge, merge_source), front = measure_messages(repeats), measure_merge(repeats), measure_front(repeats)
    one, many = pairs["1"], pairs["64"]
    grow = {name: max(0.0, many[name] - one[name]) / 63 for name in one}
    cpu = one["front"] + one["front_io"] + one["shard"] + one["shard_io"]
    costs = MessageCosts(
        query=max(0.0, front - one["front"] - one["front_io"] - merge - merge_source),
        send=one["front"] / 2,
        send_query=grow["front"] / 2,
        receive=one["front"] / 2,
        receive_query=grow["front"] / 2,
        merge=merge,
        merge_source=merge_source,
        shard=one["shard"],
        shard_query=grow["shard"],
        io=(one["front_io"] + one["shard_io"]) / 4,
    )
    latency = max(0.0, one["wall"] - cpu) / 2
    return costs, latency, {"pairs": pairs, "front": front, "costs": asdict(costs), "latency": latency}


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
