"""Search all the time in threads, and count right, wrong and failed answers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from stillhash import Index
from stillhash.cluster import ClusterReader
from tests.contracts.searchers import random_codes
from tests.support.waiting import until

ROWS, SEGMENTS = 12_000, 12
DEADLINE = 180.0  # seconds; only a test that fails waits so long
wait_until = partial(until, timeout=DEADLINE)


def reference_index() -> tuple[Index, np.ndarray, np.ndarray]:
    """Return one index of rows with many ties, its codes, and queries."""
    rng = np.random.default_rng(5)
    codes = random_codes(rng, ROWS, 64, 50)
    reference = Index(64, threads=1)
    reference.add(codes)
    return reference, codes, rng.integers(-2, 3, (32, 64)).astype(np.float32)


class SearchLoad:
    """Threads that search, and what came back; `expected` are the answers of one index."""

    def __init__(self, index: ClusterReader, reference: Index, weights: np.ndarray) -> None:
        self.index, self.weights = index, weights
        self.expected = {k: reference.search(weights, k) for k in (1, 10, 300)}
        self.outcomes: Counter[str] = Counter()
        self.times: list[float] = []  # of right answers
        self.stop = threading.Event()

    def search(self, turn: int) -> None:
        while not self.stop.is_set():
            q, k = turn % len(self.weights), (1, 10, 300)[turn % 3]
            turn += 1
            try:
                hits = self.index.search(self.weights[q], k)
            except BaseException as error:
                self.outcomes[f"raised {error!r}"] += 1
                continue
            expected = self.expected[k]
            same = hits.ids[0].tobytes() == expected.ids[q].tobytes()
            right = same and hits.scores[0].tobytes() == expected.scores[q].tobytes()
            self.outcomes["right" if right else "wrong"] += 1
            self.times.append(time.monotonic())

    def rate(self, seconds: float) -> float:
        """Measure answers per second from now on."""
        began, before = time.monotonic(), len(self.times)
        time.sleep(seconds)
        return (len(self.times) - before) / (time.monotonic() - began)

    def wait_for_answers(self, count: int = 10) -> None:
        """Wait until there are so many more answers, or one that is not right."""
        target = self.outcomes["right"] + count
        wait_until(lambda: self.outcomes["right"] >= target or set(self.outcomes) != {"right"}, "answers")


@contextmanager
def search_load(index: ClusterReader, reference: Index, weights: np.ndarray, threads: int = 3) -> Iterator[SearchLoad]:
    load = SearchLoad(index, reference, weights)
    searchers = [threading.Thread(target=load.search, args=(n,)) for n in range(threads)]
    for searcher in searchers:
        searcher.start()
    try:
        load.wait_for_answers()
        yield load
        load.wait_for_answers()
    finally:
        load.stop.set()
        for searcher in searchers:
            searcher.join()
