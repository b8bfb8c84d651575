"""The desk of a collection: searches side by side, and one write after another, a few waiting and no more.

A write is answered when it is on disk. One that finds too many before it, or waits too long, is refused before it
begins: `Busy` always means that nothing of it was kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from stillhash.collection import Collection
from stillhash.errors import Busy, InvalidInput
from stillhash.numeric.threads import usable_cores
from stillhash.numeric.validation import Floats

PAUSE = 0.02  # seconds between two looks of a patient write

Found = TypeVar("Found")


class QueryEncoder(Protocol):
    """What makes features (D,) of images and words, in the space of a collection."""

    has_text: bool

    def image(self, data: bytes) -> Floats: ...
    def text(self, words: str) -> Floats: ...


class Crew(Protocol):
    """What holds the codes of a collection, if they are on a cluster."""

    def status(self) -> dict[str, Any]: ...
    def add_shard(self) -> int: ...
    def drain(self, node: str) -> int: ...


class Desk:
    def __init__(
        self,
        name: str,
        collection: Collection,
        eyes: QueryEncoder | None = None,
        crew: Crew | None = None,
        *,
        queue: int,
        timeout: float,
    ) -> None:
        self.name, self.collection, self.eyes, self.crew = name, collection, eyes, crew
        self.queue, self.timeout = queue, timeout
        self.waiting = 0  # writes that wait, or are being done
        self._readers = ThreadPoolExecutor(2 * usable_cores(), f"search {name}")
        self._writer = ThreadPoolExecutor(1, f"write {name}")

    async def read(self, work: Callable[[Collection], Found], *, patient: bool = False) -> Found:
        """Does this beside others, and beside a write. `patient` waits for its end, however long that takes."""
        future = self._readers.submit(work, self.collection)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), None if patient else self.timeout)
        except TimeoutError:
            raise Busy(f"no answer within {self.timeout:g} seconds; ask for less, or later") from None

    async def described(self, asked: bytes | str) -> Floats:
        """The features (D,) of an image, or of words."""
        eyes = self.eyes
        if eyes is None:
            raise InvalidInput(
                f"this collection takes vectors of {self.collection.dim} numbers; it has no encoder here, "
                "so images and words cannot be searched for"
            )
        return await self.read(lambda _: eyes.text(asked) if isinstance(asked, str) else eyes.image(asked))

    async def write(self, work: Callable[[Collection], Found], *, patient: bool = False) -> Found:
        """Does this after the writes before it. `patient` waits for its turn to wait, as a stream may."""
        if patient:
            await self._room()
        if self.waiting >= self.queue:
            raise Busy(f"{self.waiting} writes are waiting; try again in a moment")
        self.waiting += 1
        future = self._writer.submit(work, self.collection)
        end = asyncio.wrap_future(future)
        try:
            done, _ = await asyncio.wait([end], timeout=self.timeout)
            if not done and future.cancel():
                raise Busy(f"the write did not begin within {self.timeout:g} seconds; nothing of it was kept")
            return await end  # it has begun, so its end is waited for
        finally:
            self._count(future)

    async def _room(self) -> None:
        for _ in range(round(self.timeout / PAUSE)):
            if self.waiting < self.queue:
                return
            await asyncio.sleep(PAUSE)

    def _count(self, future: Future[Found]) -> None:
        """One less waits once it is done, also when nobody is there any more to be told."""
        loop = asyncio.get_running_loop()

        def less() -> None:
            self.waiting -= 1

        def done(_: Future[Found]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(less)

        less() if future.done() else future.add_done_callback(done)

    def close(self) -> None:
        """Waits for what is being done. Whoever opened the collection closes it."""
        self._writer.shutdown(cancel_futures=True)
        self._readers.shutdown(cancel_futures=True)
