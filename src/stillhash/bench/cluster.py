"""What a cluster costs and survives: the answers of one index, the price of many shards, killed actors and nodes.

All nodes are on this machine and share its cores, so nothing here gets faster by more shards; what is measured is what
the distribution adds. A trip is one round of calls to all shards, with every query that waited for it; its overhead
is its time on the wall, until the hits are merged, less the time that the slowest shard was at work.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from stillhash.bench.timing import Progress, goal, print_frame, silent
from stillhash.cluster import ClusterIndex, LocalCluster
from stillhash.errors import InvalidInput
from stillhash.experiments.machine import machine
from stillhash.experiments.tables import print_table
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Codes, Floats, check_integer
from stillhash.search import Hits, Index

BITS, K = 64, 10
STEP = 1_000_000  # rows of an `add`, and of a segment
DISTINCT = 1000  # codes that a tenth of the rows share, so that there are long ties
CONCURRENT = (1, 8, 64)
TINY = 4096  # rows of an index in which there is next to nothing to search
LOOKERS = 8  # threads that search while actors and nodes are killed
PATIENT = 120.0  # seconds that a search may take then


def run(
    repeats: int = 200,
    quick: bool = False,
    progress: Progress = silent,
    *,
    codes: int = 20_000_000,
    shards: int = 4,
    nodes: int = 4,
    queries: int = 1000,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Compares with one index, times trips, and kills an actor and a node under load."""
    check_integer(repeats, "repeats", 8)
    check_integer(codes, "codes", 1000)
    check_integer(shards, "shards", 1)
    check_integer(nodes, "nodes", 2)
    check_integer(queries, "queries", 1)
    if folder is not None and not folder.is_dir():
        raise InvalidInput(f"folder is {str(folder)!r}; a folder that is there is wanted")
    step = STEP
    if quick:
        repeats, codes, queries, step, shards, nodes = 8, 20_000, 40, 2000, min(shards, 2), min(nodes, 2)
    here = machine()
    asked = weights(queries)
    progress("the answers of one index")
    truth = answers_of_one(codes, step, asked)
    with (
        tempfile.TemporaryDirectory(prefix=".stillhash-bench-", dir=folder or Path.cwd()) as made,
        LocalCluster(nodes, fast_health_check=quick) as local,
    ):
        rates = []
        for count in sorted({1, 2, shards} - {shards} if shards > 1 else set()):
            progress(f"throughput of {count} shards")
            with filled(Path(made), codes, step, count) as index:
                rates.append(rate(index, asked, repeats))
        progress(f"{codes:,} codes over {shards} shards")
        with filled(Path(made), codes, step, shards) as index:
            progress(f"{queries:,} queries against one index")
            same = compared(index, asked, truth)
            rates.append(rate(index, asked, repeats))
            trips = []
            for clients in CONCURRENT:
                progress(f"trips of {clients} concurrent queries")
                trips.append(timed(index, asked, clients, repeats))
            progress("an actor is killed under load")
            actor = killed_actor(index, asked, truth)
            progress("a node is lost under load")
            node = killed_node(local, index, asked, truth)
            progress("a node joins under load")
            joined = joined_node(local, index, asked, truth)
        progress("trips with next to nothing to search")
        with filled(Path(made), TINY, -(-TINY // shards), shards) as index:
            bare = [timed(index, asked, clients, repeats) for clients in CONCURRENT]
    faults = {"actor": actor, "node": node, "joined": joined}
    goals = [
        goal("answers that differ from one index", "<= 0", same["different"]),
        goal(f"overhead of a query, {CONCURRENT[-1]} at a time, ms", "<= 1", trips[-1]["per_query_ms"]),
        goal("wrong or short answers while an actor is killed", "<= 0", actor["wrong"]),
        goal("wrong or short answers while nodes go and come", "<= 0", node["wrong"] + joined["wrong"]),
        goal("faults that actors were replaced or moved in", ">= 3", sum(f["actors"] > 0 for f in faults.values())),
        goal("searches refused meanwhile", "<= 0", sum(fault["refused"] for fault in faults.values())),
        goal("full service after kill -9 of an actor, s", "<= 5", actor["seconds"]),
        goal("full service after the loss of a node, s", "<= 30", node["seconds"]),
    ]
    about = {"codes": codes, "bits": BITS, "k": K, "shards": shards, "nodes": nodes, "queries": queries}
    measured = {"same": same, "rates": rates, "trips": trips, "bare": bare, "faults": faults}
    return {"machine": here, "quick": quick, **about, **measured, "goals": goals}


# ---- what is searched ----


def chunk(start: int, rows: int, codes: int) -> Codes:
    """Rows from `start`; the last tenth of all `codes` rows is made of a few codes, over and over."""
    rng = np.random.default_rng([7, start])
    made = rng.integers(0, 256, (rows, BITS // 8), dtype=np.uint8)
    few = np.random.default_rng(8).integers(0, 256, (DISTINCT, BITS // 8), dtype=np.uint8)
    tied = np.arange(start, start + rows) >= codes - codes // 10
    made[tied] = few[rng.integers(0, DISTINCT, int(tied.sum()))]
    return made


def weights(queries: int) -> Floats:
    """Every other query has weights of -1, 0 and 1 only: most of its scores are ties."""
    rng = np.random.default_rng(9)
    made = rng.standard_normal((queries, BITS)).astype(np.float32)
    made[::2] = rng.integers(-1, 2, made[::2].shape)
    return made


def answers_of_one(codes: int, step: int, asked: Floats) -> Hits:
    index = Index(BITS)
    for start in range(0, codes, step):
        rows = min(step, codes - start)
        index.add(chunk(start, rows, codes), np.arange(start, start + rows))
    return index.search(asked, K)


@contextmanager
def filled(folder: Path, codes: int, step: int, shards: int) -> Iterator[ClusterIndex]:
    threads = max(1, usable_cores() // shards)
    with ClusterIndex(BITS, shards, storage=folder, deadline=PATIENT, threads=threads) as index:
        for start in range(0, codes, step):
            rows = min(step, codes - start)
            index.add(chunk(start, rows, codes), np.arange(start, start + rows))
        index.wait_ready()
        while any(actor["merging"] for actor in index.status()["actors"]):
            time.sleep(0.5)
        yield index


# ---- what it costs ----


def compared(index: ClusterIndex, asked: Floats, truth: Hits) -> dict[str, Any]:
    """All queries at once, then some of them one at a time."""
    together = index.search(asked, K)
    wrong = sum(not equal(together, truth, q, q) for q in range(len(asked)))
    alone = range(0, len(asked), 20)
    wrong += sum(not equal(index.search(asked[q], K), truth, 0, q) for q in alone)
    ties = int((truth.scores[:, :-1] == truth.scores[:, 1:]).any(axis=1).sum())
    return {"queries": len(asked), "alone": len(alone), "with_ties": ties, "different": wrong}


def equal(found: Hits, truth: Hits, row: int, q: int) -> bool:
    pairs = (found.ids[row], truth.ids[q]), (found.scores[row], truth.scores[q])
    return all(a.tobytes() == b.tobytes() for a, b in pairs)


def rate(index: ClusterIndex, asked: Floats, repeats: int) -> dict[str, Any]:
    """Queries per second, alone and in batches."""
    began = time.perf_counter()
    for turn in range(repeats):
        index.search(asked[turn % len(asked)], K)
    alone = repeats / (time.perf_counter() - began)
    batch = asked[:64]
    began = time.perf_counter()
    for _ in range(max(1, repeats // 16)):
        index.search(batch, K)
    together = max(1, repeats // 16) * len(batch) / (time.perf_counter() - began)
    return {"shards": len(index.status()["shards"]), "plan": index.plan, "alone": alone, "together": together}


def timed(index: ClusterIndex, asked: Floats, clients: int, repeats: int) -> dict[str, Any]:
    """So many threads that search one query after the other."""
    each = max(4, repeats // {1: 1, 8: 4}.get(clients, 8))
    start, waits = threading.Barrier(clients), list[float]()

    def search(number: int) -> None:
        start.wait()
        for turn in range(each):
            began = time.perf_counter()
            index.search(asked[(number * each + turn) % len(asked)], K)
            waits.append(time.perf_counter() - began)

    index.search(asked[0], K)
    index.timings.clear()
    began = time.perf_counter()
    in_threads(search, clients)
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


def in_threads(work: Any, count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# ---- what it survives ----


@contextmanager
def load(index: ClusterIndex, asked: Floats, truth: Hits) -> Iterator[Counter[str]]:
    """Threads that search all the time and hold each answer against the truth."""
    stop, told = threading.Event(), Counter[str]()

    def look(turn: int) -> None:
        while not stop.is_set():
            q = turn % len(asked)
            turn += LOOKERS
            try:
                told["right" if equal(index.search(asked[q], K), truth, 0, q) else "wrong"] += 1
            except Exception:
                told["refused"] += 1

    threads = [threading.Thread(target=look, args=(number,)) for number in range(LOOKERS)]
    for thread in threads:
        thread.start()
    try:
        yield told
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def verdict(told: Counter[str], seconds: float, ready: float, actors: int) -> dict[str, Any]:
    """`seconds` until a search that began after the fault had its answer; `ready` until every actor was up to date.

    `actors` are those that a new one stands for now: with none, nothing was survived.
    """
    counts = {name: told[name] for name in ("right", "wrong", "refused")}
    return {"seconds": seconds, "ready_s": ready, "actors": actors, **counts}


def killed_actor(index: ClusterIndex, asked: Floats, truth: Hits) -> dict[str, Any]:
    with load(index, asked, truth) as told:
        time.sleep(1.0)
        victims = {index.status()["actors"][0]["pid"]}
        began = time.perf_counter()
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)  # dead for certain, so that the search cannot do without the new one
        told["right" if equal(index.search(asked[0], K), truth, 0, 0) else "wrong"] += 1
        seconds = time.perf_counter() - began
        index.wait_ready()
        ready = time.perf_counter() - began
        time.sleep(1.0)
        left = victims & {actor["pid"] for actor in index.status()["actors"]}
    return verdict(told, seconds, ready, len(victims) - len(left))


def killed_node(local: LocalCluster, index: ClusterIndex, asked: Floats, truth: Hits) -> dict[str, Any]:
    with load(index, asked, truth) as told:
        time.sleep(1.0)
        where = {actor["pid"]: actor["node"] for actor in index.status()["actors"]}
        victim = next(node for node in local.nodes if node in where.values())
        victims = {pid for pid, node in where.items() if node == victim}
        began = time.perf_counter()
        local.remove_node(victim)
        told["right" if equal(index.search(asked[0], K), truth, 0, 0) else "wrong"] += 1
        seconds = time.perf_counter() - began
        index.wait_ready()
        ready = time.perf_counter() - began
        time.sleep(1.0)
        left = victims & {actor["pid"] for actor in index.status()["actors"]}
    return verdict(told, seconds, ready, len(victims) - len(left))


def joined_node(local: LocalCluster, index: ClusterIndex, asked: Floats, truth: Hits) -> dict[str, Any]:
    """`ready_s`: until an actor works on the new node. The head is drained before, so that one has reason to move."""
    with load(index, asked, truth) as told:
        index.drain(local.head)
        began = time.perf_counter()
        new = local.add_node()
        seconds = time.perf_counter() - began
        while (
            new not in {actor["node"] for actor in index.status()["actors"]} and time.perf_counter() - began < PATIENT
        ):
            time.sleep(0.2)
        ready = time.perf_counter() - began
        time.sleep(1.0)
        moved = sum(actor["node"] == new for actor in index.status()["actors"])
    return verdict(told, seconds, ready, moved)


def show(result: dict[str, Any], console: Console) -> None:
    same, faults = result["same"], result["faults"]
    title = f"{result['codes']:,} codes of {BITS} bits, {result['shards']} shards, {result['nodes']} nodes and a head"
    print_table(
        console,
        f"{title}: answers against one index",
        ("queries", "one at a time", "with ties", "different"),
        [tuple(f"{same[name]:,}" for name in ("queries", "alone", "with_ties", "different"))],
    )
    columns = (
        "at a time",
        "trips",
        "overhead p50 ms",
        "p99",
        "of each query",
        "search p50 ms",
        "p99",
        "searches/s",
    )
    for name, trips in (("Trips to all shards", result["trips"]), (f"The same over {TINY:,} codes", result["bare"])):
        rows = [
            (
                str(trip["clients"]),
                str(trip["trips"]),
                f"{trip['overhead_p50_ms']:.2f}",
                f"{trip['overhead_p99_ms']:.2f}",
                f"{trip['per_query_ms']:.3f}",
                f"{trip['search_p50_ms']:.1f}",
                f"{trip['search_p99_ms']:.1f}",
                f"{trip['per_second']:,.0f}",
            )
            for trip in trips
        ]
        print_table(console, name, columns, rows)
    print_table(
        console,
        "Queries per second by shards, all on the same cores",
        ("shards", "begins on", "one at a time", "64 together"),
        [(str(r["shards"]), r["plan"], f"{r['alone']:,.0f}", f"{r['together']:,.0f}") for r in result["rates"]],
    )
    names = {"actor": "kill -9 of an actor", "node": "a node is lost", "joined": "a node joins"}
    print_table(
        console,
        f"Under load of {LOOKERS} threads",
        ("", "actors", "answer after s", "all ready after s", "right", "wrong", "refused"),
        [
            (
                names[name],
                str(fault["actors"]),
                f"{fault['seconds']:.1f}",
                f"{fault['ready_s']:.1f}",
                *(f"{fault[count]:,}" for count in ("right", "wrong", "refused")),
            )
            for name, fault in faults.items()
        ],
    )
    print_frame(result, console)
