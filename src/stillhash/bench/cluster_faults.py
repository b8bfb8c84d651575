"""Kill actors and nodes of a cluster under load, and count wrong answers until it is back."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from stillhash.bench.timing import TOP_K, Figures, hit_bytes
from stillhash.cluster import ClusterIndex, LocalCluster
from stillhash.errors import Unsupported
from stillhash.numeric.validation import Floats

LOAD_THREADS = 8  # that search while actors and nodes are killed
LOAD_TIMEOUT = 120.0  # seconds that a search may take then


@dataclass
class CheckedIndex:
    """A cluster, and queries whose answers are known."""

    index: ClusterIndex
    weights: Floats
    expected: list[bytes]

    def search(self, q: int) -> str:
        right = hit_bytes(self.index.search(self.weights[q], TOP_K)) == [self.expected[q]]
        return "right" if right else "wrong"

    def actors_on(self, node: str) -> int:
        return sum(actor["node"] == node for actor in self.index.status()["actors"])


@contextmanager
def load(checked: CheckedIndex) -> Iterator[list[str]]:
    """Search in several threads all the time; yield what the answers are: right, wrong or refused."""
    stop, answers = threading.Event(), list[str]()

    def search(turn: int) -> None:
        while not stop.is_set():
            try:
                answers.append(checked.search(turn % len(checked.weights)))
            except Exception:
                answers.append("refused")
            turn += LOAD_THREADS

    with ThreadPoolExecutor(LOAD_THREADS) as pool:
        pool.map(search, range(LOAD_THREADS))
        try:
            yield answers
        finally:
            stop.set()


def fault_figures(answers: list[str], seconds: float, ready: float, actors: int) -> Figures:
    """Return `seconds` until the next answer, `ready` until all actors were current, and how many `actors` are new."""
    counts = {name: answers.count(name) for name in ("right", "wrong", "refused")}
    return {"seconds": seconds, "ready_s": ready, "actors": actors, **counts}


def kill_actor(checked: CheckedIndex, _: LocalCluster) -> Figures:
    if sys.platform == "win32":
        raise Unsupported("a cluster: expected Linux, got Windows")
    pid = checked.index.status()["actors"][0]["pid"]
    return survive(checked, partial(os.kill, pid, signal.SIGKILL), {pid})


def kill_node(checked: CheckedIndex, local: LocalCluster) -> Figures:
    nodes = {actor["pid"]: actor["node"] for actor in checked.index.status()["actors"]}
    victim = next(node for node in local.nodes if node in nodes.values())
    return survive(checked, partial(local.remove_node, victim), {pid for pid in nodes if nodes[pid] == victim})


def survive(checked: CheckedIndex, kill: Callable[[], object], pids: set[int]) -> Figures:
    """Kill the actors of these pids under load, and time the next answer and full service."""
    with load(checked) as answers:
        time.sleep(1.0)
        began = time.perf_counter()
        kill()
        time.sleep(0.05)  # surely gone, so that the search needs the new one
        answers.append(checked.search(0))
        seconds = time.perf_counter() - began
        checked.index.wait_ready()
        ready = time.perf_counter() - began
        time.sleep(1.0)
        replaced = pids - {actor["pid"] for actor in checked.index.status()["actors"]}
    return fault_figures(answers, seconds, ready, len(replaced))


def join_node(checked: CheckedIndex, local: LocalCluster) -> Figures:
    """Add a node; `ready_s` is until an actor works on it. The head is drained before, so that one has to move."""
    with load(checked) as answers:
        checked.index.drain(local.head)
        began = time.perf_counter()
        new = local.add_node()
        seconds = time.perf_counter() - began
        while not checked.actors_on(new) and time.perf_counter() - began <= LOAD_TIMEOUT:
            time.sleep(0.2)
        ready = time.perf_counter() - began
        time.sleep(1.0)
        moved = checked.actors_on(new)
    return fault_figures(answers, seconds, ready, moved)
