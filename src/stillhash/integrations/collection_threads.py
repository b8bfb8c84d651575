"""Run the calls of a collection in threads, for an event loop: reads side by side, writes one after another."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

from stillhash.errors import Busy, Closed, report_shortages
from stillhash.numeric.threads import usable_cores

READ_THREADS = max(2, usable_cores())
MAX_WAITING_CALLS = 1024  # running ones included; more are refused

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


class CollectionThreads:
    """Threads of its own, so that the calls of a collection never wait for those of other libraries.

    They start with the first call. If the task of a call is cancelled, a call that runs goes on to its end, so that a
    write is whole; one that still waits is dropped.
    """

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, threading.Lock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._waiting, self._closed = 0, False

    async def read(
        self, work: Callable[Arguments, Returned], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Returned:
        """Run a call beside others."""
        return await self._run("read", READ_THREADS, partial(work, *args, **kwargs))

    async def write(
        self, work: Callable[Arguments, Returned], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Returned:
        """Run a call after all earlier writes."""
        return await self._run("write", 1, partial(work, *args, **kwargs))

    async def _run(self, kind: str, threads: int, work: Callable[[], Returned]) -> Returned:
        context = copy_context()  # it has the name for the audit log
        with self._lock:
            if self._closed:
                raise Closed(f"{self._name}: closed; open it again to go on")
            if self._waiting >= MAX_WAITING_CALLS:
                raise Busy(f"{self._name}: {self._waiting} calls are waiting. Try again in a moment")
            if kind not in self._pools:
                self._pools[kind] = started_threads(threads, f"{kind} {self._name}")
            future = self._pools[kind].submit(context.run, work)
            self._waiting += 1
        future.add_done_callback(self._count_down)
        return await asyncio.wrap_future(future)

    def _count_down(self, _: Future[Any]) -> None:
        with self._lock:
            self._waiting -= 1

    def close(self) -> None:
        """Wait for the calls that run or wait; later ones raise Closed."""
        with self._lock:
            self._closed = True
        for pool in self._pools.values():
            pool.shutdown()


@report_shortages
def started_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return a pool with all its threads: one that lacked a thread would refuse a call, and yet run it later."""
    pool, ready = ThreadPoolExecutor(count, name), threading.Barrier(count + 1)
    try:
        for _ in range(count):
            pool.submit(ready.wait)
    except BaseException:
        ready.abort()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    ready.wait()
    return pool
