from __future__ import annotations

import asyncio
import threading

import pytest

from stillhash import acting_as
from stillhash.collection.storage.audit import current_actor
from stillhash.errors import Busy, Closed
from stillhash.integrations.collection_threads import MAX_WAITING_CALLS, CollectionThreads


def test_the_loop_and_reads_go_on_while_a_write_waits() -> None:
    async def calls() -> list[str]:
        threads, go_on, order = CollectionThreads("films"), threading.Event(), []
        first = asyncio.create_task(threads.write(lambda: order.append("write 1") if go_on.wait(60) else None))
        second = asyncio.create_task(threads.write(order.append, "write 2"))
        await threads.read(order.append, "read")
        go_on.set()
        await asyncio.gather(first, second)
        threads.close()
        return order

    assert asyncio.run(calls()) == ["read", "write 1", "write 2"]


def test_a_write_that_runs_is_not_cancelled_and_one_that_waits_is() -> None:
    async def calls() -> list[str]:
        threads, started, go_on, order = CollectionThreads("films"), threading.Event(), threading.Event(), []

        def write() -> None:
            started.set()
            go_on.wait(60)
            order.append("written")

        task = asyncio.create_task(threads.write(write))
        waiting = asyncio.create_task(threads.write(order.append, "never"))
        await threads.read(started.wait, 60)
        for cancelled in (waiting, task):
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        go_on.set()
        threads.close()
        return order

    assert asyncio.run(calls()) == ["written"]


def test_calls_are_bounded_and_closed() -> None:
    async def calls() -> None:
        threads, go_on = CollectionThreads("films"), threading.Event()
        waiting = [asyncio.create_task(threads.write(go_on.wait, 60)) for _ in range(MAX_WAITING_CALLS)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await threads.read(int)
        go_on.set()
        await asyncio.gather(*waiting)
        assert await threads.read(int) == 0
        threads.close()
        with pytest.raises(Closed):
            await threads.read(int)

    asyncio.run(calls())


def test_errors_and_the_actor_pass_through() -> None:
    async def calls() -> None:
        threads = CollectionThreads("films")
        with acting_as("ann"):
            assert await threads.write(current_actor) == "ann"
        with pytest.raises(ZeroDivisionError):
            await threads.read(divmod, 1, 0)
        threads.close()

    asyncio.run(calls())
