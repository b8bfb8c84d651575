"""Run batches in several processes: results in order, bounded work ahead, and no batch lost with a process.

Each thread of a `ThreadPoolExecutor` drives one process over a pipe of its own, so the death of a process ends its pipe
and costs only its batch. A `ProcessPoolExecutor` shares one result pipe: a process that is killed while it writes
leaves half a message there, and the pool waits for the rest permanently.

A batch whose process died is tried again item by item; an item of which two processes died is given up.
"""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

from stillhash.errors import InvalidInput

BATCHES_PER_WORKER = 2  # submitted and not yet yielded
MAX_FAILED_STARTS = 3  # in a row

Result = TypeVar("Result")


def map_batches(
    function: Callable[[list[str]], list[Result]],
    batches: Iterator[list[str]],
    workers: int,
    lost: Callable[[str], Result],
) -> Iterator[Result]:
    """Yield the results of `function`, which must be picklable, for all items; `lost` makes that of a given-up item."""
    pool = _ProcessPool(function, lost)
    threads = ThreadPoolExecutor(workers)
    pending: deque[Future[list[Result]]] = deque()
    try:
        while True:
            free = workers * BATCHES_PER_WORKER - len(pending)
            pending.extend(threads.submit(pool.run, items) for items in islice(batches, free))
            if not pending:
                return
            yield from pending.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)
        for worker in pool.workers:
            worker.stop()


class _WorkerDied(Exception):
    """The process ended before it answered."""


class _Worker(Generic[Result]):
    """One process and the pipe to it."""

    def __init__(self, function: Callable[[list[str]], list[Result]]) -> None:
        context = get_context("spawn")  # a fork would carry over locks that threads of this process hold
        self._pipe, child_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_end, function), daemon=True)
        self._process.start()
        child_end.close()  # so that its death ends the pipe
        self.receive()  # an empty message: it is ready

    def run(self, items: list[str]) -> list[Result]:
        with suppress(OSError):  # it has died, which `receive` sees
            self._pipe.send(items)
        return self.receive()

    def receive(self) -> list[Result]:
        try:
            results: list[Result] = self._pipe.recv()
        except (EOFError, OSError):
            self.stop()
            raise _WorkerDied from None
        return results

    def stop(self) -> None:
        self._pipe.close()
        self._process.terminate()
        self._process.join()


class _ProcessPool(Generic[Result]):
    """One worker for each thread that calls `run`."""

    def __init__(self, function: Callable[[list[str]], list[Result]], lost: Callable[[str], Result]) -> None:
        self.workers: list[_Worker[Result]] = []  # also those that died
        self._function, self._lost, self._own = function, lost, threading.local()

    def run(self, items: list[str]) -> list[Result]:
        """Return the results of a batch, by this thread's worker or by those that replace it."""
        for _ in range(2):
            try:
                return self._worker().run(items)
            except _WorkerDied:
                self._own.worker = None
                if len(items) > 1:
                    return [result for item in items for result in self.run([item])]
        return [self._lost(items[0])]

    def _worker(self) -> _Worker[Result]:
        worker: _Worker[Result] | None = getattr(self._own, "worker", None)
        if worker is None:
            worker = self._own.worker = self._start()
            self.workers.append(worker)
        return worker

    def _start(self) -> _Worker[Result]:
        for _ in range(MAX_FAILED_STARTS):
            with suppress(_WorkerDied):
                return _Worker(self._function)
        raise InvalidInput(
            "workers: expected processes that start, got none. Put a script's own work under "
            'if __name__ == "__main__", or use workers=1, which needs no other process.'
        )


def _serve(pipe: Connection, function: Callable[[list[str]], list[Result]]) -> None:
    """Answer batches until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides
    os.environ["OMP_NUM_THREADS"] = "1"  # for networks: there is a process for each core already
    with suppress(EOFError, OSError):  # the parent is gone
        pipe.send([])
        while True:
            pipe.send(function(pipe.recv()))
