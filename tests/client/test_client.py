"""Both clients: streams, names, keys, and failures of the network. The verbs are in `test_contract`."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import Client, Collection
from stillhash.client.async_client import AsyncConnections
from stillhash.client.client import BlockingConnections
from stillhash.client.serialization import row_to_json
from stillhash.client.transport import FIRST_BACKOFF, MAX_BACKOFF
from stillhash.errors import (
    BadState,
    Busy,
    Closed,
    Conflict,
    Denied,
    InvalidInput,
    NotFitted,
    NotFound,
    StillhashError,
    TooLarge,
    Unreachable,
    WrongType,
)
from stillhash.server import Keys, Settings
from tests.client.awaited_client import CLIENTS
from tests.client.scripted_server import answering, response
from tests.collection.fixtures import BITS, DIM, INIT, LEARN, begin, some_rows
from tests.contracts.collections import QUERIES, X
from tests.server.live_server import live_server

KEYS = {"read": "a key that may read", "write": "a key that may write"}


def new(path: Path) -> Collection:
    return stillhash.open(path, DIM, BITS, init_rows=INIT, learn_rows=LEARN)


@pytest.fixture(params=CLIENTS, ids=["blocking", "async"])
def new_client(request: pytest.FixtureRequest) -> Any:
    """Open a client of each kind."""
    return request.param


@pytest.fixture
def twins(tmp_path: Path, new_client: Any) -> Iterator[tuple[Collection, Client]]:
    settings = Settings(snapshots=tmp_path / "snapshots")
    with (
        new(tmp_path / "embedded") as embedded,
        live_server({"twin": new(tmp_path / "served")}, settings) as server,
        new_client(server.url) as client,
    ):
        yield embedded, client


# ---- streams ----


def rows_of(n: int, seed: int = 3, first: int = 0) -> Iterator[dict[str, Any]]:
    rows = some_rows(n, seed)
    for r, (x, labels, metadata) in enumerate(zip(*rows, strict=True)):
        yield {"id": first + r, "features": x, "labels": labels, "metadata": metadata}


@pytest.mark.medium
def test_stream_is_stored_a_thousand_rows_at_a_time(twins: tuple[Collection, Client]) -> None:
    embedded, client = twins
    rows = some_rows(2500, seed=3)
    for start in range(0, 2500, 1000):
        embedded.add(list(range(2500))[start : start + 1000], *(part[start : start + 1000] for part in rows))
    assert client.ingest(rows_of(2500)) == 2500 and client.ingest(iter(())) == 0
    assert client.search(QUERIES, 2500) == embedded.search(QUERIES, 2500)
    assert client.ingest(rows_of(7), replace=True, learn=False) == 7 and client.count() == 2500


@pytest.mark.parametrize(
    ("row", "error", "match"),
    [
        ({"id": 1}, InvalidInput, r"^row 1500"),
        ({"id": "new", "features": [1.0], "more": 1}, InvalidInput, r"^row 1500"),
        ([1, 2], InvalidInput, r"^row 1500"),
        ({"id": "new", "features": [np.nan] * DIM}, InvalidInput, r"^row 1500"),
        ({"id": "new", "features": {1, 2}}, InvalidInput, r"^row 1500"),
        ({"id": "new", "features": [1.0] * 5}, InvalidInput, "features"),
        ({"id": "new", "features": ["x"] * DIM}, WrongType, r"^features"),
        ({"id": 3, "features": [1.0] * DIM}, Conflict, "3"),
        ({"id": None, "features": [1.0] * DIM}, WrongType, r"^ids"),
    ],
)
def test_error_of_a_stream_counts_the_stored_rows(
    twins: tuple[Collection, Client], row: Any, error: type[Exception], match: str
) -> None:
    client = twins[1]

    def rows() -> Iterator[Any]:
        yield from rows_of(1500)
        yield row
        yield from rows_of(10, first=5000)

    with pytest.raises(error, match=match) as raised:
        client.ingest(rows())
    assert vars(raised.value)["acknowledged"] == 1000 == client.count()


def test_row_is_sent_as_json() -> None:
    row = {"id": np.int64(3), "features": np.float32([0.1, 2]), "labels": ("a",), "metadata": None}
    expected = b'{"id": 3, "features": [0.10000000149011612, 2.0], "labels": ["a"], "metadata": null}'
    assert row_to_json(row, 0) == expected


# ---- which server, which collection ----


def test_only_collection_needs_no_name(tmp_path: Path, new_client: Any) -> None:
    with live_server({"one": new(tmp_path / "one"), "zwei & drei": new(tmp_path / "two")}) as server:
        with (
            new_client(server.url + "/") as client,
            pytest.raises(InvalidInput, match=r"^collection: .*one, zwei & drei"),
        ):
            client.count()
        with new_client(server.url, collection="zwei & drei") as client:
            client.add([1], X[:1])
            assert client.health()["collections"] == {"one": 0, "zwei & drei": 1}
            assert repr(client) == f"Client('{server.url}', collection='zwei & drei')"
        with new_client(server.url, collection="none") as client, pytest.raises(NotFound, match="'none'"):
            client.count()


def test_snapshot_is_a_collection(twins: tuple[Collection, Client], tmp_path: Path) -> None:
    client = twins[1]
    client.add([1, 2, 3], X)
    snapshot = client.snapshot()
    with stillhash.open(tmp_path / "snapshots" / snapshot["name"], read_only=True) as copy:
        assert copy.count() == 3 and snapshot["bytes"] > 0


def test_compact_waits_for_the_task_and_raises_its_error(
    twins: tuple[Collection, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, shares = twins[1], []
    client.add([1, 2, 3], X)
    client.delete([2])
    assert client.compact(progress=shares.append) == 1 and client.stats()["deleted"] == 0
    assert shares == sorted(shares) and shares and client.get([1]) != [None]
    monkeypatch.setattr(Collection, "compact", lambda *_, **__: (_ for _ in ()).throw(Conflict("compact: taken")))
    with pytest.raises(Conflict, match="taken"):
        client.compact()


def test_rescoring_codes_are_built_of_features_that_are_sent_again(tmp_path: Path, new_client: Any) -> None:
    rows = some_rows(400)
    collection, _ = begin(tmp_path / "c", 400, rescore_bits=0)
    with live_server({"c": collection}) as server, new_client(server.url) as client:
        assert client.build_rescoring(range(300), rows.X[:300], rescore_bits=2) == 100
        with pytest.raises(Conflict, match="100 of 400 items"):
            client.build_rescoring()
        with pytest.raises(InvalidInput, match=r"^features"):
            client.build_rescoring(range(300, 400), rows.X[:100])
        assert client.build_rescoring(range(300, 400), rows.X[300:]) == 0
        shares = list[float]()
        assert client.build_rescoring(progress=shares.append) == 0 and shares == sorted(shares)
        assert client.stats()["rescore_bits"] == 2 and client.verify() == []


def test_keys_are_sent(tmp_path: Path, new_client: Any) -> None:
    settings = Settings(keys=Keys((KEYS["read"],), (KEYS["write"],)))
    with live_server({"c": new(tmp_path / "c")}, settings) as server:
        with new_client(server.url) as client, pytest.raises(Denied, match="key"):
            client.count()
        with new_client(server.url, KEYS["read"]) as client:
            assert client.count() == 0
            with pytest.raises(Denied, match="key"):
                client.add([1], X[:1])
        with new_client(server.url, KEYS["write"]) as client:
            assert client.add([1], X[:1]) == 1


def test_limits_of_the_server_are_errors_of_the_client(tmp_path: Path, new_client: Any) -> None:
    with (
        live_server({"c": new(tmp_path / "c")}, Settings(max_rows=2, max_hits=5)) as server,
        new_client(server.url) as client,
    ):
        for call in (lambda: client.add([1, 2, 3], X), lambda: client.search(X[0], 6), lambda: client.get([1, 2, 3])):
            with pytest.raises(TooLarge):
                call()
        with pytest.raises(NotFound, match=r"^snapshots"):
            client.snapshot()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"url": "127.0.0.1:8000"}, r"^url"),
        ({"url": "ftp://x"}, r"^url"),
        ({"url": None}, r"^url"),
        ({"url": "http://"}, r"^url"),
        ({"key": "a\nb"}, r"^key"),
        ({"collection": ""}, r"^collection"),
        ({"timeout": 0}, r"^timeout"),
        ({"retries": -1}, r"^retries"),
        ({"retries": 1.5}, r"^retries"),
    ],
)
def test_invalid_settings_are_refused(arguments: dict[str, Any], match: str, new_client: Any) -> None:
    with pytest.raises(InvalidInput, match=match):
        new_client(**{"url": "http://localhost:1", **arguments})


def test_closed_client_is_an_error(twins: tuple[Collection, Client]) -> None:
    client = twins[1]
    assert client.count() == 0
    client.close()
    with pytest.raises(Closed):
        client.count()


# ---- network failures ----


def test_missing_server_is_unreachable(new_client: Any) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with new_client(url, collection="c", retries=1) as client, pytest.raises(Unreachable, match=url):
            client.count()
        with new_client(url, collection="c", retries=1) as client, pytest.raises(Unreachable) as raised:
            client.ingest(rows_of(3))
        assert vars(raised.value)["acknowledged"] == 0


BUSY = response(503, '{"error": "Busy", "message": "wait"}', "retry-after: 0")
MANY = response(429, '{"error": "TooMany", "message": "wait"}', "retry-after: 0")
PROXY = response(502, "<html>bad gateway</html>")
DROPPED = b""


@pytest.mark.parametrize("wrong", [BUSY, MANY, PROXY, DROPPED], ids=["busy", "many", "proxy", "dropped"])
def test_idempotent_requests_are_always_retried(wrong: bytes, new_client: Any) -> None:
    with (
        answering(wrong, wrong, response(200, '{"count": 5}')) as (url, requests),
        new_client(url, collection="c") as client,
    ):
        assert client.delete([1, 2]) == 5
    assert len(requests) == 3 and len(set(requests)) == 1


@pytest.mark.parametrize("wrong", [BUSY, MANY], ids=["busy", "many"])
def test_requests_that_stored_nothing_are_retried(wrong: bytes, new_client: Any) -> None:
    with (
        answering(wrong, response(200, '{"version": 5}')) as (url, requests),
        new_client(url, collection="c") as client,
    ):
        assert client.flush() == 5
    assert len(requests) == 2


@pytest.mark.parametrize("wrong", [PROXY, DROPPED], ids=["proxy", "dropped"])
def test_requests_that_may_be_done_are_not_retried(wrong: bytes, new_client: Any) -> None:
    for call in (lambda c: c.flush(), lambda c: c.rollback(1), lambda c: c.snapshot(), lambda c: c.ingest(rows_of(3))):
        with answering(wrong) as (url, requests), new_client(url, collection="c") as client, pytest.raises(Unreachable):
            call(client)
        assert len(requests) == 1


def test_retry_after_is_an_attribute_of_the_error(new_client: Any) -> None:
    with (
        answering(response(503, '{"error": "Busy", "message": "wait"}', "retry-after: 7")) as (url, _),
        new_client(url, collection="c", retries=0) as client,
        pytest.raises(Busy) as raised,
    ):
        client.count()
    assert raised.value.retry_after == 7


def test_retries_end(new_client: Any) -> None:
    with (
        answering(BUSY, BUSY, BUSY) as (url, requests),
        new_client(url, collection="c", retries=2) as client,
        pytest.raises(Busy, match="wait"),
    ):
        client.count()
    assert len(requests) == 3


def test_stream_continues_after_a_busy_server(new_client: Any) -> None:
    halfway = response(503, '{"error": "Busy", "message": "wait", "acknowledged": 2}', "retry-after: 0")
    with (
        answering(halfway, response(200, '{"count": 1}')) as (url, requests),
        new_client(url, collection="c") as client,
    ):
        assert client.ingest(rows_of(3)) == 3
    first, second = (request.partition(b"\r\n\r\n")[2].splitlines() for request in requests)
    assert len(first) == 3 and second == first[2:]


@pytest.mark.parametrize(
    "answer", [response(200, "[1]"), response(200, "hello"), response(404, "{}"), response(302, "")]
)
def test_other_servers_are_unreachable(answer: bytes, new_client: Any) -> None:
    with (
        answering(answer) as (url, _),
        new_client(url, collection="c") as client,
        pytest.raises(Unreachable, match="stillhash"),
    ):
        client.count()


def test_errors_are_raised_by_class_name(new_client: Any) -> None:
    for name, kind in (
        ("BadState", BadState),
        ("NotFitted", NotFitted),
        ("Unheard", StillhashError),
        ("os", StillhashError),
    ):
        body = f'{{"error": "{name}", "message": "words", "status": 400, "request_id": "r"}}'
        with (
            answering(response(400, body)) as (url, _),
            new_client(url, collection="c") as client,
            pytest.raises(StillhashError, match="words") as raised,
        ):
            client.count()
        assert type(raised.value) is kind and vars(raised.value)["request_id"] == "r"


# ---- without urllib3, without httpx ----

WITHOUT = """
import sys
import stillhash
assert not {{"urllib3", "httpx"}} & sys.modules.keys() and "{client}" in stillhash.__all__
sys.modules["{library}"] = None
try:
    stillhash.{client}
except stillhash.errors.MissingExtra as error:
    print(error)
stillhash.{other}  # which does not need it
"""
OPTIONAL = [("Client", "urllib3", "client", "AsyncClient"), ("AsyncClient", "httpx", "async", "Client")]


@pytest.mark.medium
@pytest.mark.parametrize(("client", "library", "extra", "other"), OPTIONAL)
def test_library_works_without_what_a_client_needs(client: str, library: str, extra: str, other: str) -> None:
    program = WITHOUT.format(client=client, library=library, other=other)
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert f"pip install 'stillhash[{extra}]'" in out
    for package in (stillhash, stillhash.client):
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            package.nonsense  # noqa: B018


@pytest.mark.parametrize(("timeout", "most"), [(5, 5), (30, MAX_BACKOFF)])
def test_the_client_waits_no_longer_than_its_timeout(
    new_client: Any, monkeypatch: pytest.MonkeyPatch, timeout: float, most: float
) -> None:
    """Whatever a server asks for: three hours would be a way to stop a client."""
    waits = []

    async def record(_: object, seconds: float) -> None:
        waits.append(seconds)

    for connections in (BlockingConnections, AsyncConnections):
        monkeypatch.setattr(connections, "sleep", record)
    wait = response(503, '{"error": "Busy", "message": "wait"}', "retry-after: 10800")
    with (
        answering(wait, response(200, '{"count": 5}')) as (url, requests),
        new_client(url, collection="c", timeout=timeout) as client,
    ):
        assert client.count() == 5
    (seconds,) = waits
    assert len(requests) == 2 and most <= seconds <= most + FIRST_BACKOFF
