"""Writes run one at a time through a bounded queue; reads go on meanwhile."""

from __future__ import annotations

import asyncio
import getpass
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash import Collection
from stillhash.collection.storage.audit import set_actor
from stillhash.errors import Busy, Conflict
from stillhash.server.write_queue import CollectionExecutor
from tests.collection.fixtures import DIM, copied
from tests.server.live_server import LiveServer
from tests.support.waiting import TIMEOUT, until, until_async

PATH = "/v1/collections/c"
QUERY = [0.5] * DIM


class SlowWrite:
    """A write that lasts until `end` is set."""

    def __init__(self) -> None:
        self.started, self.end = threading.Event(), threading.Event()

    def __call__(self, collection: Collection) -> int:
        self.started.set()
        assert self.end.wait(TIMEOUT)
        return collection.delete([1])


@contextmanager
def opened(template: Path, to: Path, **settings: Any) -> Iterator[CollectionExecutor]:
    executor = CollectionExecutor(
        "c", stillhash.open(copied(template, to)), **{"max_queued": 2, "timeout": TIMEOUT, **settings}
    )
    try:
        yield executor
    finally:
        executor.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(work(), TIMEOUT)

    asyncio.run(limited())


def test_a_write_is_logged_under_the_name_of_its_task(template: Path, tmp_path: Path) -> None:
    with opened(template, tmp_path / "c", max_queued=10) as executor:

        async def delete(number: int) -> None:
            set_actor(f"user {number}")
            await executor.write(lambda c: c.delete([number]))

        async def delete_all() -> None:
            await asyncio.gather(*(asyncio.create_task(delete(number)) for number in range(5)))
            await executor.write(lambda c: c.delete([5]))

        run(delete_all)
        names = {entry.ids[0]: entry.who for entry in executor.collection.audit(after=1)}
        assert names == {**{number: f"user {number}" for number in range(5)}, 5: getpass.getuser()}


async def begin(executor: CollectionExecutor, write: SlowWrite) -> asyncio.Task[int]:
    """Start a write, again where it was refused since it did not start within the timeout of a short queue."""
    while True:
        task = asyncio.create_task(executor.write(write))
        await until_async(lambda task=task: write.started.is_set() or task.done())
        if write.started.is_set():
            return task
        assert isinstance(task.exception(), Busy)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "c"


def test_full_queue_is_busy_until_it_empties(template: Path, place: Path) -> None:
    async def work() -> None:
        slow = SlowWrite()
        first = asyncio.create_task(executor.write(slow))
        await until_async(slow.started.is_set)
        second = asyncio.create_task(executor.write(lambda c: c.delete([2])))
        await until_async(lambda: executor.queued == 2)
        with pytest.raises(Busy, match=r"^write queue"):
            await executor.write(lambda c: c.delete([3]))
        assert executor.queued == 2 and await executor.read(Collection.count) == 320
        slow.end.set()
        assert await first == 1 and await second == 1
        await until_async(lambda: executor.queued == 0)
        assert await executor.write(lambda c: c.delete([3])) == 1
        await until_async(lambda: executor.queued == 0)
        assert await executor.read(Collection.count) == 317

    with opened(template, place) as executor:
        run(work)


def test_write_that_waited_too_long_is_not_done(template: Path, place: Path) -> None:
    async def work() -> None:
        slow = SlowWrite()
        first = await begin(executor, slow)
        with pytest.raises(Busy, match=r"^timeout"):
            await executor.write(lambda c: c.delete([2]))
        assert not first.done()  # a write that has started is never given up
        slow.end.set()
        assert await first == 1
        await until_async(lambda: executor.queued == 0)
        executor.timeout = TIMEOUT
        assert await executor.read(Collection.count) == 319

    with opened(template, place, timeout=0.05) as executor:
        run(work)


def test_write_can_wait_for_a_slot(template: Path, place: Path) -> None:
    async def work() -> None:
        slow = SlowWrite()
        first = asyncio.create_task(executor.write(slow))
        await until_async(slow.started.is_set)
        waiting = asyncio.create_task(executor.write(lambda c: c.delete([2]), wait_for_slot=True))
        for _ in range(10):
            await asyncio.sleep(0)  # it has its turn
        assert executor.queued == 1 and not waiting.done()
        slow.end.set()
        assert await first == 1 and await waiting == 1
        await until_async(lambda: executor.queued == 0)

    with opened(template, place, max_queued=1) as executor:
        run(work)


def test_waiting_for_a_slot_times_out(template: Path, place: Path) -> None:
    async def work() -> None:
        slow = SlowWrite()
        first = asyncio.create_task(executor.write(slow))
        await until_async(slow.started.is_set)
        executor.timeout = 0.1
        with pytest.raises(Busy):
            await executor.write(lambda c: c.delete([2]), wait_for_slot=True)
        slow.end.set()
        assert await first == 1

    with opened(template, place, max_queued=1) as executor:
        run(work)


def test_write_of_a_cancelled_request_leaves_the_queue(template: Path, place: Path) -> None:
    async def work() -> None:
        slow = SlowWrite()
        first = asyncio.create_task(executor.write(slow))
        await until_async(slow.started.is_set)
        second = asyncio.create_task(executor.write(lambda c: c.delete([2])))
        await until_async(lambda: executor.queued == 2)
        second.cancel()
        first.cancel()
        await asyncio.wait([first, second])
        slow.end.set()
        await until_async(lambda: executor.queued == 0)
        assert await executor.read(Collection.count) == 318  # accepted writes are done

    with opened(template, place) as executor:
        run(work)


def test_errors_of_writes_are_raised_and_not_logged(
    template: Path, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        for _ in range(5):
            with pytest.raises(Conflict):
                await executor.write(lambda c: c.add([1], [QUERY]))
        await until_async(lambda: executor.queued == 0)

    with opened(template, place) as executor:
        run(work)
    assert caplog.records == []


def test_slow_read_times_out_unless_it_is_upkeep(template: Path, place: Path) -> None:
    async def work() -> None:
        slow, started, go_on = SlowWrite(), threading.Event(), threading.Event()
        with pytest.raises(Busy, match=r"^timeout"):
            await executor.read(slow)
        slow.end.set()
        waiting = asyncio.create_task(executor.read(lambda c: started.set() or go_on.wait(TIMEOUT), "upkeep"))
        await until_async(started.is_set)
        assert not waiting.done()
        go_on.set()
        assert await waiting is True

    with opened(template, place, timeout=0) as executor:  # over at once
        run(work)


# ---- over HTTP ----


@contextmanager
def slow_write(server: LiveServer) -> Iterator[SlowWrite]:
    """Run a slow write of a server, as if another client had sent it."""
    slow = SlowWrite()
    with ThreadPoolExecutor(1) as thread:
        result = thread.submit(asyncio.run, server.executor().write(slow))
        try:
            assert slow.started.wait(TIMEOUT)
            yield slow
        finally:
            slow.end.set()
        assert result.result(TIMEOUT) == 1


def test_searches_go_on_during_a_slow_write(serving: Callable[..., LiveServer]) -> None:
    server = serving(max_queued_writes=3)
    with slow_write(server) as slow, ThreadPoolExecutor(4) as clients:
        waiting = [clients.submit(server.request, "POST", f"{PATH}/delete", {"ids": [n]}) for n in (2, 3)]
        until(lambda: server.executor().queued == 3)
        for _ in range(20):
            assert server.request("POST", f"{PATH}/search", {"query": QUERY}).status == 200
        assert server.request("GET", f"{PATH}/count").json == {"count": 320}
        busy = server.request("POST", f"{PATH}/delete", {"ids": [4]})
        assert busy.status == 503 and busy.json["error"] == "Busy" and int(busy.headers["retry-after"]) >= 1
        metrics = server.request("GET", "/v1/metrics").data.decode()
        assert 'stillhash_queue_depth{collection="c"} 3.0' in metrics
        assert not any(one.done() for one in waiting)
        slow.end.set()
        assert [one.result().json for one in waiting] == [{"count": 1}, {"count": 1}]
    assert server.request("GET", f"{PATH}/count").json == {"count": 317}


def test_client_retries_while_the_server_is_busy(serving: Callable[..., LiveServer]) -> None:
    server = serving(max_queued_writes=1)
    with (
        slow_write(server) as slow,
        ThreadPoolExecutor(1) as clients,
        stillhash.Client(server.url, retries=20) as client,
    ):
        added = clients.submit(client.add, ["n"], [QUERY])
        until(lambda: 'status="503"' in server.request("GET", "/v1/metrics").data.decode())
        assert not added.done()
        slow.end.set()
        assert added.result() == 1
        assert client.count() == 320
