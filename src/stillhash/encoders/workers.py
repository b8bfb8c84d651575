"""Batches of work by several processes, with results in order, that outlive the death of any of them.

Each process has a pipe of its own. So it is known at once which of them died and at what, even in the middle of an
answer; the standard library's pool knows neither, and can wait for ever for the rest of an answer that never comes.

A batch at which a process died is tried again item by item, and an item of which two processes died is given up.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from stillhash.errors import InvalidInput

AHEAD = 2  # batches under way, for each process
TRIES = 2  # of an item by itself
STARTS = 3  # that fail one after another: then processes cannot be had here

ADVICE = 'a script must do its own work under if __name__ == "__main__", and workers=1 needs no other process'

T = TypeVar("T")
Work = Callable[[list[str]], list[T]]


class _Batch(Generic[T]):
    def __init__(self, items: list[str]) -> None:
        self.items = items
        self.taken = False
        self.tries = 0
        self.results: list[T] | None = None


class _Worker(Generic[T]):
    """A process, and the batch it is at."""

    def __init__(self, begin: Callable[..., Work[T]], arguments: tuple[Any, ...]) -> None:
        context = get_context("spawn")  # a fork would carry over locks that threads of this process hold
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, begin, arguments), daemon=True)
        self.process.start()
        theirs.close()  # so that its death ends the pipe
        self.ready = False
        self.batch: _Batch[T] | None = None

    def give(self, batch: _Batch[T]) -> None:
        self.batch, batch.taken = batch, True
        with suppress(OSError):  # it has died; that is found out where its answer is awaited
            self.pipe.send(batch.items)

    def stop(self) -> None:
        """Now, whatever it is at."""
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def in_order(
    begin: Callable[..., Work[T]],
    arguments: tuple[Any, ...],
    batches: Iterator[list[str]],
    count: int,
    lost: Callable[[str], T],
) -> Iterator[T]:
    """Results of all items. Each process calls `begin(*arguments)` once, and what it gets on batches; `lost` makes the
    result of an item of which processes die."""
    workers: list[_Worker[T]] = []
    under_way: list[_Batch[T]] = []
    failed_starts = 0
    try:
        while True:
            under_way += [_Batch(items) for items in islice(batches, max(0, count * AHEAD - len(under_way)))]
            if not under_way:
                return
            _share_out(workers, under_way, count, lambda: _Worker(begin, arguments))
            if under_way[0].results is not None:
                yield from under_way.pop(0).results or ()
                continue
            for ready in wait([worker.pipe for worker in workers if worker.batch or not worker.ready]):
                worker = next(worker for worker in workers if worker.pipe is ready)
                try:
                    answer = worker.pipe.recv()
                except (EOFError, OSError):
                    workers.remove(worker)
                    worker.stop()
                    failed_starts += not worker.ready
                    if failed_starts == STARTS:
                        raise InvalidInput(f"workers is {count}, but no process starts; {ADVICE}") from None
                    _try_again(worker.batch, under_way, lost)
                    continue
                if worker.batch is not None:
                    worker.batch.results = answer
                worker.ready, worker.batch, failed_starts = True, None, 0
    finally:
        for worker in workers:
            worker.stop()


def _share_out(
    workers: list[_Worker[T]], under_way: list[_Batch[T]], count: int, start: Callable[[], _Worker[T]]
) -> None:
    """Open batches to idle processes; a process is started where all are busy and there may be one more."""
    open_ones = [batch for batch in under_way if not batch.taken]
    for worker in workers:
        if open_ones and worker.ready and worker.batch is None:
            worker.give(open_ones.pop(0))
    starting = sum(not worker.ready for worker in workers)
    workers += [start() for _ in range(min(len(open_ones) - starting, count - len(workers)))]


def _try_again(batch: _Batch[T] | None, under_way: list[_Batch[T]], lost: Callable[[str], T]) -> None:
    """Decides what becomes of the batch that a dead process had."""
    if batch is None:
        return
    if len(batch.items) > 1:
        at = under_way.index(batch)
        under_way[at : at + 1] = [_Batch(items=[item]) for item in batch.items]
        return
    batch.tries += 1
    batch.taken = batch.tries >= TRIES
    if batch.taken:
        batch.results = [lost(batch.items[0])]


def _serve(pipe: Connection, begin: Callable[..., Work[T]], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides
    os.environ["OMP_NUM_THREADS"] = "1"  # of networks: there is a process for each core already
    work = begin(*arguments)
    with suppress(EOFError, OSError):  # whoever asked is gone
        pipe.send(None)
        while True:
            pipe.send(work(pipe.recv()))
