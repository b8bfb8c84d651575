"""Listing all items over HTTP: pages and streams hold what the collection has, within the limits of the server."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash.server import routes_export
from tests.collection.fixtures import some_rows
from tests.server.live_server import LiveServer, live_server
from tests.server.test_limits import raw_connection, read_all, served
from tests.support.waiting import TIMEOUT, until

PATH = "/v1/collections/c"
FILTERS: list[Any] = [None, {"odd": True}, {"labels": "a"}, {"n": -1}]


def expected_items(server: LiveServer, where: Any, codes: bool, after: Any = None) -> list[dict[str, Any]]:
    collection = server.executor().collection
    items = [vars(item) for item in collection.items(where, after=after)]
    packed = collection.codes([item["id"] for item in items]) if codes else None
    if packed is None:
        return items
    return [{**item, "code": base64.b64encode(code).decode()} for item, code in zip(items, packed, strict=True)]


@pytest.mark.parametrize("where", FILTERS)
@pytest.mark.parametrize("codes", [False, True])
def test_pages_and_streams_hold_all_items(shared: LiveServer, where: Any, codes: bool) -> None:
    expected = expected_items(shared, where, codes)
    for limit in (7, 100, 1000):
        pages: list[dict[str, Any]] = []
        body: dict[str, Any] = {"where": where, "limit": limit, "codes": codes}
        while True:
            answer = shared.request("POST", f"{PATH}/items", body).json
            pages += answer["items"]
            assert len(answer["items"]) == min(limit, len(expected) - len(pages) + len(answer["items"]))
            if answer["after"] is None:
                break
            body["after"] = answer["after"]
        assert pages == expected
    reply = shared.request("POST", f"{PATH}/export", {"where": where, "codes": codes})
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line) for line in reply.data.splitlines()] == expected
    if where is None:
        assert shared.request("GET", f"{PATH}/export?codes={str(codes).lower()}").data == reply.data
    rest = shared.request("POST", f"{PATH}/export", {"where": where, "codes": codes, "after": 200})
    assert [json.loads(line) for line in rest.data.splitlines()] == expected_items(shared, where, codes, 200)


def test_items_that_wait_for_hash_functions_have_no_code(tmp_path: Path) -> None:
    waiting = stillhash.open(tmp_path / "w", dim=8, bits=16)
    waiting.add(["a"], some_rows(1).X)
    with live_server({"c": waiting}) as server:
        answer = server.request("POST", f"{PATH}/items", {"codes": True}).json
        assert answer == {"items": [{"id": "a", "labels": [], "metadata": None, "code": None}], "after": None}


def test_invalid_requests_are_answered_before_a_stream_begins(shared: LiveServer) -> None:
    for path, body in (
        ("items", {"limit": 0}),
        ("items", {"where": {"a": {}}}),
        ("items", {"after": 1.5}),
        ("items", {"more": 1}),
        ("export", {"where": {"a": {}}}),
        ("export", {"codes": "yes"}),
        ("export", {"after": ""}),
    ):
        reply = shared.request("POST", f"{PATH}/{path}", body)
        assert reply.status == 422 and reply.json["error"] in ("InvalidInput", "WrongType"), (path, body, reply.data)


def test_a_page_is_cut_at_the_bytes_of_an_answer(serving: Callable[..., LiveServer]) -> None:
    server = serving(max_answer_bytes=4000, max_total_hits=500)
    assert server.request("POST", f"{PATH}/items", {"limit": 501}).status == 413
    ids, after = [], None
    while True:
        reply = server.request("POST", f"{PATH}/items", {"limit": 500, "after": after})
        assert len(reply.data) <= 4000
        ids += [item["id"] for item in reply.json["items"]]
        after = reply.json["after"]
        if after is None:
            break
    assert ids == list(range(320))


@pytest.mark.medium
def test_a_stream_reads_on_as_the_client_takes_it(
    serving: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that does not read is disconnected, its memory is given back, and not all items were read for it."""
    server = serving(send_seconds=0.3)
    collection = server.executor().collection
    collection.upsert(range(60), *some_rows(60)[:2], [{"text": "x" * 500_000}] * 60)  # more than sockets hold
    pages = []
    original = routes_export.ItemPage.read
    monkeypatch.setattr(routes_export.ItemPage, "read", lambda *args: pages.append(1) or original(*args))
    request = b"GET /v1/collections/c/export HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with raw_connection(server.url, request) as connection:
        memory = server.app.state.stillhash.memory
        until(lambda: pages and not memory.used, "release of memory")
        served(server)
        taken = read_all(connection)
    assert b'"id":0' in taken and len(taken) < 60 * 500_000 and len(pages) < 60
    server.change(send_seconds=TIMEOUT)
    with raw_connection(server.url, request.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")) as connection:
        assert read_all(connection).count(b'"id":') == 320


def test_memory_beyond_the_budget_is_busy(serving: Callable[..., LiveServer]) -> None:
    server = serving(max_memory_bytes=1 << 20)
    reply = server.request("GET", f"{PATH}/export")
    assert reply.status == 503 and reply.headers["retry-after"]
    assert server.request("POST", f"{PATH}/items", {"limit": 200_000}).status == 503


def test_a_stream_that_fails_says_so_in_its_last_line(
    serving: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serving()
    monkeypatch.setattr(routes_export, "EXPORTED_ROWS", 100)
    executor, reads = server.executor(), []
    original = executor.collection.list_coded_items

    def list_until_damaged(*args: Any, **options: Any) -> Any:
        reads.append(1)
        if len(reads) == 3:
            executor.collection.close()
        return original(*args, **options)

    monkeypatch.setattr(executor.collection, "list_coded_items", list_until_damaged)
    *lines, last = map(json.loads, server.request("GET", f"{PATH}/export").data.splitlines())
    assert len(lines) == 200
    assert last["error"] == "Closed" and last["status"] == 503 and "id" not in last


def test_writes_go_on_while_items_are_streamed(serving: Callable[..., LiveServer], monkeypatch: Any) -> None:
    server = serving()
    monkeypatch.setattr(routes_export, "EXPORTED_ROWS", 20)
    collection, done = server.executor().collection, threading.Event()

    def write() -> None:
        for n in range(20):
            collection.upsert([f"n{n}", n], *some_rows(2, seed=n))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    rounds = 0
    while not done.is_set() or not rounds:
        ids = [json.loads(line)["id"] for line in server.request("GET", f"{PATH}/export").data.splitlines()]
        assert len(set(ids)) == len(ids) and set(range(320)) <= set(ids)
        rounds += 1
    writer.join()
