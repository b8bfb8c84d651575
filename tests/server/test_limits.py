"""Clients that send slowly, do not read, hold connections or ask for too much are bounded; others are served."""

from __future__ import annotations

import json
import platform
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import urllib3

import stillhash
from stillhash.errors import Busy
from stillhash.numeric.threads import usable_cores
from stillhash.server import bodies
from stillhash.server.limits import SMALL_BYTES, MemoryBudget, RequestMemory
from stillhash.server.pages import queries
from tests.collection.fixtures import DIM, some_rows
from tests.server.live_server import LiveServer
from tests.support.waiting import TIMEOUT, until

PATH = "/v1/collections/c"
CLOSED_SECONDS = 25.0  # until a connection must be closed: before the 30 seconds of an idle one end
HEAD = b"POST /v1/collections/c/search HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


@contextmanager
def raw_connection(url: str, data: bytes = b"") -> Iterator[socket.socket]:
    """Open a connection and send these bytes."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), TIMEOUT) as connection:
        connection.sendall(data)
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def served(server: LiveServer) -> None:
    """Check that a new connection is served."""
    with urllib3.PoolManager() as pool:
        assert pool.request("GET", f"{server.url}{PATH}/count", timeout=TIMEOUT, retries=False).status == 200


# ---- connections ----


@pytest.mark.medium
def test_half_sent_headers_are_closed(serving: Callable[..., LiveServer]) -> None:
    server, parts = serving(header_seconds=1), (b"", b"GET /v1/health HT", HEAD, HEAD + b"x-long: " + b"y" * 1000)
    with ExitStack() as stack:
        connections = [stack.enter_context(raw_connection(server.url, part)) for part in parts for _ in range(20)]
        served(server)
        assert all(read_all(connection) == b"" for connection in connections)


def test_headers_that_trickle_are_closed(serving: Callable[..., LiveServer]) -> None:
    server = serving(header_seconds=0.5)
    with raw_connection(server.url, HEAD) as connection, pytest.raises(OSError):
        for number in range(1000):
            connection.sendall(b"x-%d: y\r\n" % number)
            time.sleep(0.02)


def test_headers_without_an_end_are_closed(shared: LiveServer) -> None:
    with raw_connection(shared.url, HEAD) as connection, pytest.raises(OSError):
        for _ in range(100_000):
            connection.sendall(b"x: " + b"y" * 1000)
    served(shared)


@pytest.mark.medium
def test_a_second_request_on_a_connection_has_a_deadline_too(serving: Callable[..., LiveServer]) -> None:
    server = serving(header_seconds=1)
    whole = b"GET /v1/collections/c/count HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with raw_connection(server.url, whole + b"GET /v1/health") as connection:
        connection.settimeout(CLOSED_SECONDS)
        assert read_all(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.medium
@pytest.mark.parametrize("path", ["/v1/collections/c/search", "/v1/collections/c/ingest", "/c/c/upload"])
def test_half_sent_bodies_end(serving: Callable[..., LiveServer], path: str) -> None:
    server = serving(body_seconds=0.3)
    form = b"content-type: multipart/form-data; boundary=x\r\n" if path.startswith("/c/") else b""
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n".encode()
    with raw_connection(server.url, head + form + b"\r\n--x\r\n") as connection:
        connection.settimeout(CLOSED_SECONDS)
        reply = read_all(connection)
    assert reply.startswith(b"HTTP/1.1 408 ") and b"bytes a second" in reply


def test_bodies_that_trickle_end(serving: Callable[..., LiveServer]) -> None:
    server = serving(body_seconds=0.5)
    with raw_connection(server.url, HEAD + b"content-length: 100000\r\n\r\n") as connection:

        def trickle() -> None:
            with suppress(OSError):  # the server closes the connection
                for _ in range(12):
                    connection.sendall(b" ")
                    time.sleep(0.05)

        sender = threading.Thread(target=trickle)
        sender.start()
        reply = read_all(connection)
        sender.join()
    assert reply.startswith(b"HTTP/1.1 408 ")


def test_the_longest_waiting_connection_makes_room(serving: Callable[..., LiveServer]) -> None:
    server = serving(max_connections=8)
    with ExitStack() as stack:
        waiting = [stack.enter_context(raw_connection(server.url, b"GET /v1/health HT")) for _ in range(8)]
        for _ in range(3):
            served(server)
        until(lambda: _is_closed(waiting[0]))
        closed = [connection for connection in waiting if _is_closed(connection)]
        assert closed == waiting[: len(closed)] and 1 <= len(closed) <= 4


def test_connections_beyond_the_cap_are_refused(serving: Callable[..., LiveServer]) -> None:
    server = serving(max_connections=4)
    with ExitStack() as stack:
        for _ in range(4):  # requests under way, whose bodies are not there yet
            begin = HEAD + b"expect: 100-continue\r\ncontent-length: 9\r\n\r\n{"
            connection = stack.enter_context(raw_connection(server.url, begin))
            assert connection.recv(100).startswith(b"HTTP/1.1 100 ")  # it reads the body
        with raw_connection(server.url) as connection:
            head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in head
    assert json.loads(body)["error"] == "Busy" and "all 4 are in use" in json.loads(body)["message"]
    served(server)


def _is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.medium
def test_few_file_handles_shut_nobody_out(template: Path) -> None:
    """With 64 file handles in all, on two cores, 60 half-sent requests leave room for others."""
    handles = 64 + 8 * max(0, usable_cores() - 2)  # a core more is a few threads more, which read files
    command = [sys.executable, "-m", "stillhash", "serve", str(template), "--read-only", "--port", "0", "--log", "off"]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (handles, handles))

    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=limit) as process,
        ExitStack() as stack,
    ):
        try:
            assert process.stdout is not None
            address = re.search(r"http://\S+:\d+", process.stdout.readline())
            assert address is not None
            for _ in range(handles - 4):
                stack.enter_context(raw_connection(address[0], b"GET /v1/health HT"))
            with stillhash.Client(address[0], retries=0) as client:
                query = np.ones(DIM)
                assert len([client.search(query, 5) for _ in range(20)]) == 20
        finally:
            process.terminate()


@pytest.mark.medium
def test_too_few_file_handles_are_refused(template: Path) -> None:
    command = [sys.executable, "-m", "stillhash", "serve", str(template), "--read-only", "--port", "0"]
    limit = (30, 30)
    done = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    )
    assert done.returncode == 2 and "open files: expected a limit of at least" in done.stderr


# ---- answers and memory ----


def large_items(server: LiveServer, count: int, size: int) -> list[str]:
    ids = [f"large {number}" for number in range(count)]
    metadata = [{"text": "x" * size}] * count
    server.executor().collection.add(ids, some_rows(count, seed=4).X, None, metadata)
    return ids


def test_answers_are_bounded_by_bytes(serving: Callable[..., LiveServer]) -> None:
    server = serving(max_answer_bytes=1_000_000)
    ids = large_items(server, 12, 100_000)
    query = some_rows(12, seed=4).X[0].tolist()
    for verb, body in (
        ("get", {"ids": ids}),
        ("get", {"ids": ids[:1] * 12}),
        ("search", {"query": query, "k": 332}),
        ("search", {"query": [query] * 11, "k": 1}),
        ("search", {"query": [query] * 20, "k": 320, "explain": True}),
        ("range_search", {"query": query, "threshold": -1e9}),
    ):
        reply = server.request("POST", f"{PATH}/{verb}", body)
        assert (reply.status, reply.json["error"]) == (413, "TooLarge"), (verb, body)
        assert "expected" in reply.json["message"] and "1000000 bytes" in reply.json["message"]
    assert server.request("GET", f"{PATH}/sample?count=10000").status == 413
    assert len(server.request("POST", f"{PATH}/get", {"ids": ids[:9]}).json["items"]) == 9
    assert server.request("POST", f"{PATH}/search", {"query": query, "k": 3, "explain": True}).status == 200


@pytest.mark.medium
def test_answers_nobody_reads_are_dropped(serving: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch) -> None:
    server, changes = serving(send_seconds=0.5), list[int]()
    count = MemoryBudget.count

    def count_and_keep(budget: MemoryBudget, client: str, size: int) -> None:
        changes.append(size)
        count(budget, client, size)

    monkeypatch.setattr(MemoryBudget, "count", count_and_keep)
    ids = large_items(server, 12, 1_000_000)
    body = json.dumps({"ids": ids}).encode()
    request = HEAD.replace(b"/search", b"/get") + b"content-length: %d\r\n\r\n" % len(body) + body
    memory = server.app.state.stillhash.memory
    with ExitStack() as stack:
        unread = [stack.enter_context(raw_connection(server.url, request)) for _ in range(10)]
        until(lambda: sum(size < 0 for size in changes) == len(unread), "end of the answers")
        assert memory.used == 0 and min(changes) < -12_000_000  # held while an answer waits
        assert all(len(read_all(connection)) < 12_000_000 for connection in unread)
    server.change(send_seconds=TIMEOUT)
    assert len(server.request("POST", f"{PATH}/get", {"ids": ids}).data) > 12_000_000  # who reads gets it all


def test_memory_of_requests_in_flight_is_bounded(serving: Callable[..., LiveServer]) -> None:
    server = serving(max_memory_bytes=8 << 20)
    large = json.dumps({"ids": ["a"], "features": [[0.5] * DIM], "metadata": [{"text": "x" * 900_000}]}).encode()
    head = HEAD.replace(b"/search", b"/add") + b"content-length: %d\r\n\r\n" % len(large)
    with raw_connection(server.url, head + large[:-1]) as connection:
        until(lambda: server.app.state.stillhash.memory.used >= 2_700_000, "body")
        reply = server.request("POST", f"{PATH}/add", large, content_type="application/json")
        assert (reply.status, reply.json["error"]) == (503, "Busy") and reply.headers["retry-after"]
        assert reply.json["message"].startswith("memory: requests in flight hold ")
        served(server)  # small requests need no room
        connection.sendall(large[-1:])
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
    metrics = server.request("GET", "/v1/metrics").data.decode()
    assert "stillhash_request_bytes 0.0" in metrics


def test_one_client_holds_at_most_half() -> None:
    budget = MemoryBudget(100 * SMALL_BYTES)
    first, second, third = (RequestMemory(budget, client) for client in ("a", "a", "b"))
    first.hold(SMALL_BYTES)
    assert budget.used == 0  # small requests are not counted
    first.hold(29 * SMALL_BYTES)
    with pytest.raises(Busy):
        second.hold(30 * SMALL_BYTES)
    third.hold(30 * SMALL_BYTES)
    assert budget.used == 60 * SMALL_BYTES
    second.hold_answer(30 * SMALL_BYTES)  # which is there already
    for request in (first, second, third):
        request.release()
    assert budget.used == 0


# ---- parsing beside the event loop ----


def test_rows_and_uploads_are_parsed_in_threads(
    serving: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, threads = serving(), list[str]()

    def recorded(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            threads.append(threading.current_thread().name)
            return function(*arguments)

        return call

    monkeypatch.setattr(bodies, "_parse_rows", recorded(bodies._parse_rows))
    monkeypatch.setattr("stillhash.server.pages.queries.parse_vector", recorded(queries.parse_vector))
    line = json.dumps({"id": "new", "features": [0.5] * DIM}).encode()
    assert server.request("POST", f"{PATH}/ingest", line).status == 200
    upload = b'--x\r\ncontent-disposition: form-data; name="numbers"\r\n\r\n' + b"1 " * DIM + b"\r\n--x--\r\n"
    form = {"content_type": "multipart/form-data; boundary=x"}
    assert server.request("POST", "/c/c/upload", upload, **form).status == 303
    loops = {thread.name for thread in threading.enumerate() if "run" in thread.name}
    assert len(threads) == 2 and not loops & set(threads)


@pytest.mark.medium
def test_long_lines_and_texts_are_refused(shared: LiveServer) -> None:
    long = b'{"id": "n", "features": [' + b"1, " * (1 << 20) + b"1]}"
    for path, body in (
        (f"{PATH}/ingest", long),
        (f"{PATH}/feedback_many", long),
    ):
        reply = shared.request("POST", path, body, connection="close")  # as the server does after a refusal
        assert (reply.status, reply.json["error"]) == (413, "TooLarge") and "expected at most" in reply.json["message"]
    upload = b'--x\r\ncontent-disposition: form-data; name="numbers"\r\n\r\n' + b"1 " * (2 << 20) + b"\r\n--x--\r\n"
    own = {"content_type": "multipart/form-data; boundary=x", "connection": "close"}
    page = shared.request("POST", "/c/c/upload", upload, **own)
    assert page.status == 413 and b"expected text of at most" in page.data


def test_large_json_adds_what_small_json_does(serving: Callable[..., LiveServer]) -> None:
    server, rows = serving(), some_rows(3000, seed=6)
    body = {"ids": list(range(10_000, 13_000)), "features": rows.X.tolist(), "labels": rows.labels}
    data = json.dumps({**body, "metadata": rows.metadata, "learn": False}).encode()
    assert len(data) > bodies.THREAD_BYTES
    assert server.request("POST", f"{PATH}/add", data).json == {"count": 3000}
    collection = server.executor().collection
    found = collection.search(rows.X[:50], 1)
    assert [answer.hits[0].id for answer in found] == list(range(10_000, 10_050))
    items = collection.get(body["ids"])
    assert [item and item.metadata for item in items] == rows.metadata


def test_json_beyond_its_cap_is_refused_and_raw_rows_are_not(serving: Callable[..., LiveServer]) -> None:
    server, rows = serving(max_json_bytes=10_000), some_rows(300, seed=6)
    body = {"ids": list(range(10_000, 10_300)), "labels": rows.labels, "learn": False}
    reply = server.request("POST", f"{PATH}/add", {**body, "features": rows.X.tolist()})
    assert (reply.status, reply.json["error"]) == (413, "TooLarge")
    assert all(word in reply.json["message"] for word in ("10000", "application/octet-stream", "/ingest"))
    data = json.dumps(body).encode() + b"\n" + rows.X.astype("<f4").tobytes()
    assert len(data) > 10_000
    assert server.request("POST", f"{PATH}/add", data, content_type="application/octet-stream").json == {"count": 300}
    lines = [json.dumps({"id": f"n{row}", "features": rows.X[row].tolist()}).encode() for row in range(300)]
    assert server.request("POST", f"{PATH}/ingest", b"\n".join(lines)).json == {"count": 300}
    assert server.executor().collection.count() == 320 + 600
    long = json.dumps({**body, "metadata": [{"text": "x" * 100}] * 300}).encode()
    for content_type, sent in (("application/octet-stream", long + data[data.index(b"\n") :]), ("", long)):
        assert server.request("POST", f"{PATH}/upsert", sent, content_type=content_type).status == 413
    assert server.request("POST", f"{PATH}/delete", {"ids": ["x" * 100] * 300}).status == 413


def test_of_many_problems_one_is_described(shared: LiveServer) -> None:
    """A description of each would take thousands of times the memory of the body."""
    vectors = [[0.5] * DIM]
    for verb, body, status in (
        ("add", {"ids": ["n"], "features": vectors, "labels": [[None] * 500_000]}, 422),
        ("add", {"ids": [1.5] * 500_000, "features": vectors}, 413),
        ("add", {"ids": ["n"], "features": vectors, "metadata": [{"a": [[]] * 600_000}]}, 413),
        ("delete", {f"field {number}": 1 for number in range(100_000)}, 422),
    ):
        reply = shared.request("POST", f"{PATH}/{verb}", body)
        assert reply.status == status and len(reply.data) < 2000, reply.data[:200]


def test_numbers_of_any_size_are_what_they_were(serving: Callable[..., LiveServer]) -> None:
    server, metadata = serving(), [{"n": 2**70, "x": 0.1, "y": 1e-320}]
    body = {"ids": ["n"], "features": [[0.5] * DIM], "metadata": metadata}
    assert server.request("POST", f"{PATH}/add", body).json == {"count": 1}
    (item,) = server.executor().collection.get(["n"])
    assert item is not None and [item.metadata] == metadata


@pytest.mark.medium
def test_large_blocks_are_returned_to_the_system() -> None:
    script = """
import resource, sys, threading
from pathlib import Path
from stillhash.server.run import return_large_blocks
assert return_large_blocks()
def resident(): return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
def work():
    for size in range(2 << 20, 24 << 20, 1 << 20):
        kept.append(bytes(1000))
        bytearray(size)
kept, before = [], resident()
for _ in range(4):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
assert resident() - before < 8 << 20, resident() - before
"""
    if sys.platform != "linux" or "glibc" not in platform.libc_ver():
        pytest.skip("only glibc keeps blocks")
    subprocess.run([sys.executable, "-c", script], check=True)
