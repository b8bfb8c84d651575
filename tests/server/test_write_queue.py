"""The desk: one write after another, few waiting, none forgotten; and searches go on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash import Collection
from stillhash.errors import Busy, Conflict
from stillhash.server.write_queue import Desk
from tests.collection.fixtures import DIM, copied
from tests.server.process import Served

AT = "/v1/collections/c"
ONE = [0.5] * DIM
PATIENCE = 60.0


class Slow:
    """A write that lasts until it is told to end."""

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()

    def __call__(self, collection: Collection) -> int:
        self.begun.set()
        assert self.end.wait(PATIENCE)
        return collection.delete([1])


@contextmanager
def opened(template: Path, to: Path, **settings: Any) -> Iterator[Desk]:
    desk = Desk("c", stillhash.open(copied(template, to)), **{"queue": 2, "timeout": PATIENCE, **settings})
    try:
        yield desk
    finally:
        desk.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(work(), PATIENCE)

    asyncio.run(limited())


async def until(met: Callable[[], bool]) -> None:
    while not met():
        await asyncio.sleep(0.002)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "desk"


def test_a_full_queue_is_busy_and_empties(template: Path, place: Path) -> None:
    async def work() -> None:
        slow = Slow()
        first = asyncio.create_task(desk.write(slow))
        await until(slow.begun.is_set)
        second = asyncio.create_task(desk.write(lambda c: c.delete([2])))
        await until(lambda: desk.waiting == 2)
        with pytest.raises(Busy, match="2 writes are waiting"):
            await desk.write(lambda c: c.delete([3]))
        assert desk.waiting == 2 and await desk.read(Collection.count) == 320
        slow.end.set()
        assert await first == 1 and await second == 1
        await until(lambda: desk.waiting == 0)
        assert await desk.write(lambda c: c.delete([3])) == 1
        await until(lambda: desk.waiting == 0)
        assert await desk.read(Collection.count) == 317

    with opened(template, place) as desk:
        run(work)


def test_a_write_that_waited_too_long_is_not_done(template: Path, place: Path) -> None:
    async def work() -> None:
        slow = Slow()
        first = asyncio.create_task(desk.write(slow))  # it has begun, so it is waited for however long that takes
        await until(slow.begun.is_set)
        with pytest.raises(Busy, match="nothing of it was kept"):
            await desk.write(lambda c: c.delete([2]))
        assert not first.done()
        slow.end.set()
        assert await first == 1
        await until(lambda: desk.waiting == 0)
        assert await desk.read(Collection.count) == 319

    with opened(template, place, timeout=0.05) as desk:
        run(work)


def test_a_patient_write_waits_for_room(template: Path, place: Path) -> None:
    async def work() -> None:
        slow = Slow()
        first = asyncio.create_task(desk.write(slow))
        await until(slow.begun.is_set)
        patient = asyncio.create_task(desk.write(lambda c: c.delete([2]), patient=True))
        await asyncio.sleep(0.1)
        assert desk.waiting == 1 and not patient.done()
        slow.end.set()
        assert await first == 1 and await patient == 1
        await until(lambda: desk.waiting == 0)

    with opened(template, place, queue=1) as desk:
        run(work)


def test_patience_ends(template: Path, place: Path) -> None:
    async def work() -> None:
        slow = Slow()
        first = asyncio.create_task(desk.write(slow))
        await until(slow.begun.is_set)
        with pytest.raises(Busy):
            await desk.write(lambda c: c.delete([2]), patient=True)
        slow.end.set()
        assert await first == 1

    with opened(template, place, queue=1, timeout=0.1) as desk:
        run(work)


def test_a_write_whose_client_went_away_is_counted_down(template: Path, place: Path) -> None:
    async def work() -> None:
        slow = Slow()
        first = asyncio.create_task(desk.write(slow))
        await until(slow.begun.is_set)
        second = asyncio.create_task(desk.write(lambda c: c.delete([2])))
        await until(lambda: desk.waiting == 2)
        second.cancel()
        first.cancel()
        await asyncio.wait([first, second])
        slow.end.set()
        await until(lambda: desk.waiting == 0)
        assert await desk.read(Collection.count) == 318  # they were accepted, so they are done

    with opened(template, place) as desk:
        run(work)


def test_errors_of_writes_come_through_and_are_told_once(
    template: Path, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        for _ in range(5):
            with pytest.raises(Conflict):
                await desk.write(lambda c: c.add([1], [ONE]))
        await until(lambda: desk.waiting == 0)

    with opened(template, place) as desk:
        run(work)
    assert caplog.records == []


def test_a_slow_search_is_given_up_but_a_patient_one_is_not(template: Path, place: Path) -> None:
    async def work() -> None:
        slow, other = Slow(), threading.Event()
        with pytest.raises(Busy, match="no answer within"):
            await desk.read(slow)
        slow.end.set()
        patient = asyncio.create_task(desk.read(lambda c: other.wait(PATIENCE), patient=True))
        await asyncio.sleep(0.2)
        other.set()
        assert await patient is True

    with opened(template, place, timeout=0.05) as desk:
        run(work)


# ---- over HTTP ----


def begin_slow(server: Served) -> tuple[Slow, Any]:
    """A slow write at the desk of a server that runs, as if somebody else had asked for it."""
    slow, desk = Slow(), server.app.state.room.desks["c"]
    future = desk._writer.submit(slow, desk.collection)
    assert slow.begun.wait(PATIENCE)
    return slow, future


def test_searches_go_on_during_a_slow_write(serving: Callable[..., Served]) -> None:
    server = serving(queue=2)
    slow, future = begin_slow(server)
    with ThreadPoolExecutor(4) as clients:
        waiting = [clients.submit(server.ask, "POST", f"{AT}/delete", {"ids": [n]}) for n in (2, 3)]
        desk = server.app.state.room.desks["c"]
        while desk.waiting < 2:
            threading.Event().wait(0.002)
        for _ in range(20):
            assert server.ask("POST", f"{AT}/search", {"query": ONE}).status == 200
        assert server.ask("GET", f"{AT}/count").json == {"count": 320}
        busy = server.ask("POST", f"{AT}/delete", {"ids": [4]})
        assert busy.status == 503 and busy.json["error"] == "Busy" and int(busy.headers["retry-after"]) >= 1
        metrics = server.ask("GET", "/v1/metrics").data.decode()
        assert 'stillhash_queue_depth{collection="c"} 2.0' in metrics
        assert not any(one.done() for one in waiting)
        slow.end.set()
        assert [one.result().json for one in waiting] == [{"count": 1}, {"count": 1}]
    assert future.result(PATIENCE) == 1
    assert server.ask("GET", f"{AT}/count").json == {"count": 317}


def test_a_client_of_a_busy_server_gets_through(serving: Callable[..., Served]) -> None:
    server = serving(queue=1)
    slow, _ = begin_slow(server)
    with ThreadPoolExecutor(1) as clients, stillhash.Client(server.url, retries=20) as client:
        waiting = clients.submit(server.ask, "POST", f"{AT}/delete", {"ids": [2]})
        desk = server.app.state.room.desks["c"]
        while desk.waiting < 1:
            threading.Event().wait(0.002)
        threading.Timer(0.3, slow.end.set).start()
        assert client.add(["n"], [ONE]) == 1
        assert waiting.result().status == 200
        assert client.count() == 319
