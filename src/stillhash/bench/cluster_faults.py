"""Kill actors and nodes of a cluster under load, and count wrong answers until it is back."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stillhash.bench.timing import TOP_K
from stillhash.cluster import ClusterIndex, LocalCluster
from stillhash.numeric.validation import Floats
from stillhash.search import Hits

LOAD_THREADS = 8  # that search while actors and nodes are killed
LOAD_TIMEOUT = 120.0  # seconds that a search may take then


def equal(hits: Hits, expected: Hits, row: int, q: int) -> bool:
    pairs = (hits.ids[row], expected.ids[q]), (hits.scores[row], expected.scores[q])
    return all(a.tobytes() == b.tobytes() for a, b in pairs)


def run_threads(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def load(index: ClusterIndex, weights: Floats, expected: Hits) -> Iterator[Counter[str]]:
    """Search in several threads all the time, and count right, wrong and refused answers."""
    stop, counts = threading.Event(), Counter[str]()

    def search(turn: int) -> None:
        while not stop.is_set():
            q = turn % len(weights)
            turn += LOAD_THREADS
            try:
                check_answer(index, weights, expected, q, counts)
            except Exception:
                counts["refused"] += 1

    running = threading.Thread(target=run_threads, args=(search, LOAD_THREADS))
    running.start()
    try:
        yield counts
    finally:
        stop.set()
        running.join()


def check_answer(index: ClusterIndex, weights: Floats, expected: Hits, q: int, counts: Counter[str]) -> None:
    counts["right" if equal(index.search(weights[q], TOP_K), expected, 0, q) else "wrong"] += 1


def verdict(counts: Counter[str], seconds: float, ready: float, actors: int) -> dict[str, Any]:
    """Return `seconds` until a search that began after the fault had its answer, `ready` until all actors were current.

    `actors` were replaced by new ones: with none, the fault was none.
    """
    return {
        "seconds": seconds,
        "ready_s": ready,
        "actors": actors,
        **{name: counts[name] for name in ("right", "wrong", "refused")},
    }


def kill_actor(index: ClusterIndex, weights: Floats, expected: Hits) -> dict[str, Any]:
    def kill() -> set[int]:
        pid = index.status()["actors"][0]["pid"]
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)  # surely gone, so that the search needs the new one
        return {pid}

    return survive(index, weights, expected, kill)


def kill_node(local: LocalCluster, index: ClusterIndex, weights: Floats, expected: Hits) -> dict[str, Any]:
    def kill() -> set[int]:
        nodes = {actor["pid"]: actor["node"] for actor in index.status()["actors"]}
        victim = next(node for node in local.nodes if node in nodes.values())
        local.remove_node(victim)
        return {pid for pid, node in nodes.items() if node == victim}

    return survive(index, weights, expected, kill)


def survive(index: ClusterIndex, weights: Floats, expected: Hits, kill: Callable[[], set[int]]) -> dict[str, Any]:
    """Kill under load, and time the next answer and full service; `kill` returns the pids of the killed actors."""
    with load(index, weights, expected) as counts:
        time.sleep(1.0)
        began = time.perf_counter()
        victims = kill()
        check_answer(index, weights, expected, 0, counts)
        seconds = time.perf_counter() - began
        index.wait_ready()
        ready = time.perf_counter() - began
        time.sleep(1.0)
        left = victims & {actor["pid"] for actor in index.status()["actors"]}
    return verdict(counts, seconds, ready, len(victims) - len(left))


def join_node(local: LocalCluster, index: ClusterIndex, weights: Floats, expected: Hits) -> dict[str, Any]:
    """Add a node; `ready_s` is until an actor works on it. The head is drained before, so that one has to move."""
    with load(index, weights, expected) as counts:
        index.drain(local.head)
        began = time.perf_counter()
        new = local.add_node()
        seconds = time.perf_counter() - began
        while sum(actor["node"] == new for actor in index.status()["actors"]) == 0:
            if time.perf_counter() - began > LOAD_TIMEOUT:
                break
            time.sleep(0.2)
        ready = time.perf_counter() - began
        time.sleep(1.0)
        moved = sum(actor["node"] == new for actor in index.status()["actors"])
    return verdict(counts, seconds, ready, moved)
