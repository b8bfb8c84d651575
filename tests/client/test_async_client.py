"""The asynchronous client: tasks side by side, cancellation, bounded connections, and servers that go away."""

from __future__ import annotations

import asyncio
import gc
import gzip
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash import AsyncClient
from stillhash.client import async_client
from stillhash.client import client as blocking_client
from stillhash.client.transport import MAX_POOLED, REQUEST_LINES
from stillhash.errors import Closed, InvalidInput, Unreachable, WrongType
from tests.client.awaited_client import CLIENTS
from tests.client.scripted_server import answering
from tests.collection.fixtures import BITS, DIM, INIT, LEARN
from tests.contracts.collections import QUERIES, X
from tests.server.live_server import live_server
from tests.server.serve_command import serve_command
from tests.support.waiting import until_async

ANSWER = b'HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{"count": 5}'
SECONDS = 60.0  # until something that should have happened is a failure


class CountingServer:
    """A server that counts its open connections, and answers each request by a function."""

    def __init__(self, answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> None:
        self.answer, self.open, self.most, self.requests = answer, 0, 0, 0
        self.changed = asyncio.Condition()
        self.url = ""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._count(1)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                (length,) = map(int, re.findall(rb"content-length: (\d+)", head.lower()) or [0])
                await reader.readexactly(length)
                self.requests += 1
                answer, gone = asyncio.create_task(self.answer(writer)), asyncio.create_task(reader.read(1))
                await asyncio.wait([answer, gone], return_when="FIRST_COMPLETED")
                for task in (answer, gone):
                    task.cancel()
                if (await asyncio.gather(answer, gone, return_exceptions=True))[1] == b"":
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            await self._count(-1)

    async def _count(self, change: int) -> None:
        async with self.changed:
            self.open += change
            self.most = max(self.most, self.open)
            self.changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS), self.changed:
            await self.changed.wait_for(condition)


@asynccontextmanager
async def counting(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[CountingServer]:
    server = CountingServer(answer)
    listener = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener:
        yield server
        await server.until(lambda: server.open == 0)  # the client must close its connections


async def answer_soon(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(0.001)
    writer.write(ANSWER)


async def never_answer(_: asyncio.StreamWriter) -> None:
    await asyncio.sleep(10 * SECONDS)


async def answer_half(writer: asyncio.StreamWriter) -> None:
    writer.write(ANSWER[:-5])
    writer.close()


def open_handles() -> int:
    gc.collect()
    return len(list(Path("/dev/fd").iterdir()))


# ---- many at a time ----


def test_many_calls_share_few_connections() -> None:
    async def main() -> None:
        async with (
            counting(answer_soon) as server,
            AsyncClient(server.url, collection="c", timeout=SECONDS) as client,
        ):
            assert await asyncio.gather(*(client.count() for _ in range(200))) == [5] * 200
            assert server.most == MAX_POOLED and server.requests == 200

    asyncio.run(main())


def test_other_tasks_run_while_a_call_waits() -> None:
    async def main() -> None:
        async with counting(never_answer) as server, AsyncClient(server.url, collection="c") as client:
            call = asyncio.create_task(client.count())
            await server.until(lambda: server.open == 1)
            assert not call.done()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    asyncio.run(main())


def test_real_server_answers_concurrent_calls_as_single_ones(tmp_path: Path) -> None:
    collection = stillhash.open(tmp_path / "c", DIM, BITS, init_rows=INIT, learn_rows=LEARN)
    collection.add([1, 2, 3], X)
    expected = [collection.search(query, 3) for query in QUERIES]

    async def main(url: str) -> None:
        async with AsyncClient(url) as client:
            answers = await asyncio.gather(*(client.search(query, 3) for query in [*QUERIES] * 20))
            assert answers == expected * 20
            assert (await client.dim(), await client.bits(), await client.collection()) == (DIM, BITS, "c")

    with live_server({"c": collection}) as server:
        asyncio.run(main(server.url))


# ---- cancellation ----


def test_cancelled_calls_release_their_connections() -> None:
    """Those that wait for an answer, and those that wait for a connection."""

    async def main() -> None:
        async with counting(never_answer) as server, AsyncClient(server.url, collection="c") as client:
            for _ in range(3):
                calls = [asyncio.create_task(client.count()) for _ in range(4 * MAX_POOLED)]
                await server.until(lambda: server.open == MAX_POOLED)
                for call in calls:
                    call.cancel()
                results = await asyncio.gather(*calls, return_exceptions=True)
                assert all(isinstance(result, asyncio.CancelledError) for result in results)
                await server.until(lambda: server.open == 0)
            assert server.most == MAX_POOLED
            server.answer = answer_soon
            assert await asyncio.gather(*(client.count() for _ in range(4 * MAX_POOLED))) == [5] * 4 * MAX_POOLED

    asyncio.run(main())  # the first run opens what the process keeps
    before = open_handles()
    asyncio.run(main())
    assert open_handles() <= before


def test_timeouts_of_the_caller_are_cancellations() -> None:
    async def main() -> None:
        async with counting(never_answer) as server, AsyncClient(server.url, collection="c") as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.ingest({"id": n, "features": [0.0]} for n in range(3))
            await server.until(lambda: server.open == 0)

    asyncio.run(main())


def test_own_timeout_is_unreachable() -> None:
    async def main() -> None:
        async with (
            counting(never_answer) as server,
            AsyncClient(server.url, collection="c", timeout=1, retries=1) as client,
        ):
            with pytest.raises(Unreachable, match="ReadTimeout"):
                await client.count()
            assert server.requests == 2
            await server.until(lambda: server.open == 0)

    asyncio.run(main())


# ---- servers that go away ----


def test_half_an_answer_is_unreachable_and_retried() -> None:
    async def main() -> None:
        async with (
            counting(answer_half) as server,
            AsyncClient(server.url, collection="c", retries=2) as client,
        ):
            with pytest.raises(Unreachable):
                await client.count()
            assert server.requests == 3
            with pytest.raises(Unreachable):
                await client.flush()  # which may be done
            assert server.requests == 4

    asyncio.run(main())


@pytest.mark.slow
def test_a_server_that_is_killed_and_started_again(tmp_path: Path) -> None:
    """Calls under way are errors of ours; the same client works with the next process at the same address."""
    stillhash.open(tmp_path / "c", DIM, BITS, init_rows=INIT, learn_rows=LEARN).close()
    outcomes: list[Any] = []

    answered = [False] * 32

    async def repeat(client: AsyncClient, number: int) -> None:
        while True:
            await client.search(QUERIES, 3)
            answered[number] = True

    async def main(client: AsyncClient, process: subprocess.Popen[str]) -> None:
        await client.add([1, 2, 3], X)
        calls = [asyncio.create_task(repeat(client, number)) for number in range(32)]
        await until_async(lambda: all(answered))
        process.send_signal(signal.SIGKILL)
        outcomes.extend(await asyncio.gather(*calls, return_exceptions=True))

    async def after(client: AsyncClient, port: str) -> None:
        options = ["--port", port, "--log", "off"]
        command = [sys.executable, "-m", "stillhash", "serve", str(tmp_path / "c"), *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None and "http" in process.stdout.readline()
                assert await client.count() == 3
            finally:
                process.terminate()

    async def both(url: str, process: subprocess.Popen[str]) -> None:
        async with AsyncClient(url, retries=1) as client:
            await main(client, process)
            process.wait()
            await after(client, url.rpartition(":")[2])

    with serve_command(tmp_path / "log", tmp_path / "c") as server:
        asyncio.run(both(server.url, server.process))
    assert len(outcomes) == 32 and {type(one) for one in outcomes} == {Unreachable}


# ---- answers without end ----


@pytest.mark.parametrize("new_client", CLIENTS)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_an_answer_that_is_too_large_is_refused(new_client: Any, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that grows when it is unpacked."""
    for module in (blocking_client, async_client):
        monkeypatch.setattr(module, "MAX_RESPONSE_BYTES", 1 << 16)
    data = b" " * (1 << 22)
    data = gzip.compress(data) if packed else data
    encoding = b"content-encoding: gzip\r\n" if packed else b""
    head = b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\nconnection: close\r\n\r\n" % (encoding, len(data))
    with (
        answering(head + data) as (url, requests),
        new_client(url, collection="c") as client,
        pytest.raises(Unreachable, match="65536 bytes"),
    ):
        client.count()
    assert len(requests) == 1


# ---- streams ----


def test_ingest_takes_asynchronous_iterators(tmp_path: Path) -> None:
    rows = [{"id": n, "features": X[n % 3]} for n in range(REQUEST_LINES + 7)]

    async def produced(last: Any = None) -> AsyncIterator[Any]:
        for row in rows:
            yield row
            await asyncio.sleep(0)
        if last is not None:
            yield last

    async def main(url: str) -> None:
        async with AsyncClient(url) as client:
            assert await client.ingest(produced()) == len(rows) == await client.count()
            assert await client.ingest(rows, replace=True, learn=False) == len(rows)
            with pytest.raises(InvalidInput, match=f"^row {len(rows)}:") as raised:
                await client.ingest(produced({"id": "x"}), replace=True)
            assert vars(raised.value)["acknowledged"] == REQUEST_LINES

    with live_server({"c": stillhash.open(tmp_path / "c", DIM, BITS)}) as server:
        asyncio.run(main(server.url))
        with stillhash.Client(server.url) as client, pytest.raises(WrongType, match=r"^rows"):
            client.ingest(produced())  # type: ignore[arg-type]


def test_other_tasks_run_between_the_rows_of_a_stream() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    async def main() -> None:
        async with counting(never_answer) as server, AsyncClient(server.url, collection="c") as client:
            ticking = asyncio.create_task(tick())
            call = asyncio.create_task(client.ingest({"id": n, "features": [0.0]} for n in range(REQUEST_LINES)))
            await server.until(lambda: server.open == 1)
            assert ticks >= REQUEST_LINES - 1
            for task in (ticking, call):
                task.cancel()
            await asyncio.gather(ticking, call, return_exceptions=True)

    asyncio.run(main())


def test_closed_client_is_an_error() -> None:
    async def main() -> None:
        client = AsyncClient("http://127.0.0.1:1", collection="c")
        await client.close()
        with pytest.raises(Closed):
            await client.count()

    asyncio.run(main())


# ---- types ----

TYPED = """
from typing import Any
import numpy as np
from numpy.typing import NDArray
import stillhash
from stillhash import Answer, AsyncClient, Client, Item
from typing import assert_type

async def use(client: AsyncClient, blocking: Client, vector: list[float], vectors: list[list[float]]) -> None:
    assert_type(await client.search(vector, 5), Answer)
    assert_type(await client.search(vectors, 5, where={"a": 1}), list[Answer])
    assert_type(await client.get([1]), list[Item | None])
    assert_type(await client.count(), int)
    assert_type(blocking.search(vector, 5), Answer)
    assert_type(blocking.search(vectors, k=5, explain=True), list[Answer])
    assert_type(blocking.get([1]), list[Item | None])
    assert_type(blocking.range_search(vector, 0.5, most=3), Answer)
    assert_type(blocking.dim, int)
    blocking.count(7)  # type: ignore[arg-type]
    blocking.search(vector, nonsense=1)  # type: ignore[call-overload]
    await client.search(vector, nonsense=1)  # type: ignore[call-overload]
"""


@pytest.mark.nightly
def test_type_checkers_know_the_results(tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED)
    options = ("--strict", "--cache-dir", str(tmp_path / "cache"))
    command = [sys.executable, "-m", "mypy", *options, str(tmp_path / "typed.py")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert result.returncode == 0, result.stdout
