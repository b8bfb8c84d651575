"""Queries that wait are sent together, and a leader that fails or is interrupted blocks nobody. Without Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from stillhash.cluster.batching import MAX_BATCH_QUERIES, BatchQueue, PendingQuery

Send = Callable[[list[PendingQuery]], None]
DEADLINE = 60.0  # seconds; only a test that fails waits so long


def make_query(rows: int = 1) -> PendingQuery:
    return PendingQuery(np.zeros((rows, 8), np.float32), 1, None, None, time.monotonic() + DEADLINE)


def answer(queue: BatchQueue, query: PendingQuery, send: Send) -> None:
    with suppress(KeyboardInterrupt), queue.entered(query):
        while not query.done:
            with queue.turn(query) as batch:
                if batch:
                    send(batch)


class Batches:
    """Holds the first batch back until `release`, then marks all queries as done."""

    def __init__(self) -> None:
        self.sizes, self.started, self.release = list[int](), threading.Event(), threading.Event()

    def send(self, batch: list[PendingQuery]) -> None:
        self.sizes.append(sum(len(query.weights) for query in batch))
        if len(self.sizes) == 1:
            self.started.set()
            assert self.release.wait(DEADLINE)
        for query in batch:
            query.done = True


def run_behind_a_leader(queue: BatchQueue, batches: Batches, queries: list[PendingQuery], *sends: Send) -> None:
    """Start a leader, queue the others meanwhile, in order, let the leader continue, and wait for all of them."""
    leader = threading.Thread(target=answer, args=(queue, make_query(), batches.send))
    leader.start()
    assert batches.started.wait(DEADLINE)
    pairs = zip(queries, sends, strict=True)
    threads = [threading.Thread(target=answer, args=(queue, query, send)) for query, send in pairs]
    end = time.monotonic() + DEADLINE
    for count, thread in enumerate(threads, 1):
        thread.start()
        while len(queue) < count:
            assert time.monotonic() < end
            time.sleep(0.001)
    batches.release.set()
    for thread in (leader, *threads):
        thread.join(DEADLINE)
        assert not thread.is_alive()


def test_waiting_queries_are_sent_together() -> None:
    queue, batches = BatchQueue(leaders=1), Batches()
    run_behind_a_leader(queue, batches, [make_query() for _ in range(5)], *[batches.send] * 5)
    assert batches.sizes == [1, 5] and len(queue) == 0


def test_a_batch_has_a_limit() -> None:
    queue, batches = BatchQueue(leaders=1), Batches()
    sizes = [MAX_BATCH_QUERIES - 1, 2, MAX_BATCH_QUERIES + 1]
    run_behind_a_leader(queue, batches, [make_query(rows) for rows in sizes], *[batches.send] * 3)
    assert batches.sizes == [1, *sizes]


def test_an_error_goes_to_every_caller_of_the_batch() -> None:
    queue, batches, queries = BatchQueue(leaders=1), Batches(), [make_query() for _ in range(3)]

    def fail(batch: list[PendingQuery]) -> None:
        raise ValueError("batch")

    run_behind_a_leader(queue, batches, queries, fail, fail, fail)
    assert [str(query.error) for query in queries] == ["batch"] * 3


def test_an_interrupted_leader_passes_the_lead_on() -> None:
    queue, batches, queries = BatchQueue(leaders=1), Batches(), [make_query() for _ in range(4)]

    def interrupt(batch: list[PendingQuery]) -> None:
        raise KeyboardInterrupt

    run_behind_a_leader(queue, batches, queries, interrupt, *[batches.send] * 3)
    assert [query.done for query in queries] == [False, True, True, True]
    assert batches.sizes == [1, 3] and len(queue) == 0
