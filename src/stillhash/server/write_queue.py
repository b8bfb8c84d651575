"""Run reads concurrently and writes one at a time, through a bounded queue.

Reads that may be slow, such as filters and large batches, have few threads of their own, at a lower priority, so that
quick ones need not wait for them. Upkeep, such as a snapshot, has one thread, which tasks use too (tasks.py).

A write is answered once it is on disk. A write that meets a full queue, or waits too long, is refused before it starts:
`Busy` always means that nothing was stored. All threads start with the server, so that none can be refused later.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from stillhash.collection import Collection
from stillhash.errors import Busy, Closed, InvalidInput, report_shortages
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Floats
from stillhash.platform import SYSTEM
from stillhash.server.tasks import TaskList
from stillhash.server.uploads import UploadFolder

SLOT_POLL_SECONDS = 0.02
QUICK_THREADS, SLOW_THREADS = 2 * usable_cores(), max(1, usable_cores() // 2)
THREADS_OF_COLLECTION = QUICK_THREADS + SLOW_THREADS + 2
SLOW_NICENESS = 5  # of threads: the larger, the less they get of a busy processor

ReadKind = Literal["quick", "slow", "upkeep"]

Result = TypeVar("Result")


class QueryEncoder(Protocol):
    """Encode images and text to features (D,) of a collection."""

    has_text: bool
    has_images: bool

    def image(self, data: bytes) -> Floats: ...
    def text(self, words: str) -> Floats: ...


@runtime_checkable
class OnShards(Protocol):
    """Something that is searched on shards: `missing` are those of which no replica answers, `degraded` lack some."""

    def readiness(self) -> dict[str, Any]: ...


class ClusterControl(OnShards, Protocol):
    """Show and change the cluster that serves a collection."""

    def status(self) -> dict[str, Any]: ...
    def add_shard(self) -> int: ...
    def remove_shard(self, shard: int) -> None: ...
    def drain(self, node: str) -> int: ...
    def undrain(self, node: str) -> int: ...
    def rebalance(self) -> int: ...
    def stop_moves(self) -> None: ...
    def compact(self) -> dict[str, Any]: ...


@report_shortages
def started_pool(threads: int, name: str, on_start: Callable[[], None] | None = None) -> ThreadPoolExecutor:
    """Return a pool that has all its threads. One that starts them later would queue a call and then refuse it."""
    pool, ready = ThreadPoolExecutor(threads, name, on_start), threading.Barrier(threads + 1)
    try:
        for _ in range(threads):
            pool.submit(ready.wait)
    except BaseException:
        ready.abort()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    ready.wait()
    return pool


class ReadExecutor:
    """Run reads in threads, for the event loop."""

    name: str
    collection: Any
    timeout: float
    _readers: dict[str, ThreadPoolExecutor]
    _closed: bool

    async def read(self, work: Callable[[Any], Result], kind: ReadKind = "quick") -> Result:
        """Run beside other reads and a write, within the timeout; upkeep for as long as it takes."""
        with self._closing(RuntimeError):
            future = self._readers[kind].submit(report_shortages(work), self.collection)
        try:
            with self._closing(asyncio.CancelledError):
                return await asyncio.wait_for(asyncio.wrap_future(future), None if kind == "upkeep" else self.timeout)
        except TimeoutError:
            message = f"timeout: no answer within {self.timeout:g} seconds. Request less, or try again later"
            raise Busy(message) from None

    @contextmanager
    def _closing(self, kind: type[BaseException]) -> Iterator[None]:
        """Raise Closed where a pool that is shut down refuses a call (RuntimeError), or cancels one that waits."""
        try:
            yield
        except kind:
            task = asyncio.current_task()
            if not self._closed or (task is not None and task.cancelling()):
                raise
            raise Closed(f"No collection {self.name!r} any more. The request had not started") from None


@dataclass(eq=False)
class CollectionExecutor(ReadExecutor):
    """Run calls of one collection in threads, for the event loop."""

    name: str
    collection: Collection
    max_queued: int
    timeout: float
    query_encoder: QueryEncoder | None = None
    cluster: ClusterControl | None = None
    queued: int = field(default=0, init=False)  # writes waiting or running

    def __post_init__(self) -> None:
        self.collection.warn_unknown_fields(False)  # clients would not see it
        self._lock = threading.Lock()  # guards `queued`
        self._closed = False
        self._readers = {
            "quick": started_pool(QUICK_THREADS, f"search {self.name}"),
            "slow": started_pool(SLOW_THREADS, f"slow search {self.name}", lower_priority),
            "upkeep": started_pool(1, f"upkeep {self.name}", lower_priority),
        }
        self._writer = started_pool(1, f"write {self.name}")
        self.tasks = TaskList(self.collection, self._readers["upkeep"])
        self.uploads = UploadFolder(self.collection.path, read_only=self.collection.read_only)

    async def encode_query(self, query: bytes | str) -> Floats:
        """Return the features (D,) of an image, or of a text."""
        encoder = self.query_encoder
        if encoder is None:
            reason = "This collection has no encoder here, so it cannot be searched by image or text"
            raise InvalidInput(f"query: expected a vector of {self.collection.dim} numbers. {reason}")
        return await self.read(lambda _: encoder.text(query) if isinstance(query, str) else encoder.image(query))

    async def write(self, work: Callable[[Collection], Result], *, wait_for_slot: bool = False) -> Result:
        """Run after all earlier writes. A full queue is Busy, at once or after the timeout (`wait_for_slot`)."""
        polls = round(self.timeout / SLOT_POLL_SECONDS) if wait_for_slot else 0
        while polls and self.queued >= self.max_queued:
            await asyncio.sleep(SLOT_POLL_SECONDS)
            polls -= 1
        with self._lock:
            if self.queued >= self.max_queued:
                raise Busy(f"write queue: {self.queued} writes are waiting. Try again in a moment")
            self.queued += 1
        context = copy_context()  # who sent the request, for the audit log
        try:
            with self._closing(RuntimeError):
                future = self._writer.submit(context.run, work, self.collection)
        except BaseException:
            with self._lock:
                self.queued -= 1
            raise
        future.add_done_callback(self._release)
        result = asyncio.wrap_future(future)
        started, _ = await asyncio.wait([result], timeout=self.timeout)
        if not started and future.cancel():
            raise Busy(f"timeout: the write did not start within {self.timeout:g} seconds. Nothing was stored")
        with self._closing(asyncio.CancelledError):
            return await result  # a write that has started is never given up

    def _release(self, _: Future[Any]) -> None:
        """Count a write as done, also when its client has gone away."""
        with self._lock:
            self.queued -= 1

    def close(self) -> None:
        """Wait for running calls; those that have not started raise Closed. The caller closes the collection.

        Tasks are cancelled, and moves between shards stopped, so that none of them is waited for long.
        """
        self._closed = True
        if self.cluster is not None:
            self.cluster.stop_moves()
        self.tasks.close()
        self._writer.shutdown(cancel_futures=True)
        for readers in self._readers.values():
            readers.shutdown(cancel_futures=True)
        if not self.collection.read_only:
            self.uploads.clear()


def lower_priority() -> None:
    """Let other threads go first on a busy processor, where a thread has a priority of its own: on Linux."""
    SYSTEM.lower_thread_priority(SLOW_NICENESS)
