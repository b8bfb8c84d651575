"""The client: a served collection equals a local one to the bit, and network failures are handled."""

from __future__ import annotations

import inspect
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import AsyncClient, Client, Collection, Vote
from stillhash.client.serialization import row_to_json
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
from tests.collection.fixtures import BITS, DIM, INIT, LEARN, some_rows
from tests.server.live_server import live_server
from tests.support.toys import toy

QUERIES = toy(5, DIM, 4, seed=77).X
MANY_VOTES: list[Any] = [Vote(QUERIES[2], 5, "up", "me", 3), {"query_id": 5, "id": 6, "vote": -0.5}]
X, LABELS, METADATA = some_rows(3, seed=50)
GIF = b"GIF89a and more"
BAD = X.copy()
BAD[1, 2] = np.nan
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


def outcome(call: Callable[[Any], Any], at: Any) -> Any:
    """Return the result of a call, or the class of its error and the argument that its message names."""
    try:
        return call(at)
    except StillhashError as error:
        return type(error), re.match(r"\w*", str(error))[0]  # type: ignore[index]


def same(actual: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray):
        return (
            actual.dtype == expected.dtype and actual.shape == expected.shape and actual.tobytes() == expected.tobytes()
        )
    if isinstance(expected, dict) and "disk_bytes" in expected:  # files of the same content may differ in size
        return {**actual, "disk_bytes": 0} == {**expected, "disk_bytes": 0}
    if isinstance(expected, list) and expected and isinstance(expected[0], dict) and "created" in expected[0]:
        return [{**one, "created": 0} for one in actual] == [{**one, "created": 0} for one in expected]
    return bool(actual == expected) and repr(actual) == repr(
        expected
    )  # which also distinguishes 1 from 1.0 and -0.0 from 0.0


def parts(listed: Any) -> list[Any]:
    """Return items and codes, these as bytes and their shape."""
    items, codes = listed
    return [items, codes.shape, codes.tobytes()]


FIRST, MORE = some_rows(250, seed=1), some_rows(200, seed=2)
ODD = {"ä": ['"\\\n', None, True, 1e-300, 1e22, -0.0, 0.1, 10**30, {"": []}], "n": 2**63}
Verb = tuple[str, Callable[[Any], Any]]
LIFE: list[Verb] = [
    ("empty", lambda c: (c.count(), len(c), c.get([1]), c.versions(), c.quality(), c.stats(), c.verify())),
    ("no version yet", lambda c: c.search(QUERIES[0], version=1)),
    ("search nothing", lambda c: c.search(QUERIES)),
    ("reconstruct nothing", lambda c: c.reconstruct([])),
    ("add", lambda c: c.add(list(range(250)), *FIRST)),
    ("by cosine", lambda c: c.search(QUERIES, 20)),
    ("count some", lambda c: (c.count({"odd": True}), c.count({"labels": "a"}), c.count({}))),
    ("list some", lambda c: (c.ids(limit=5), c.ids({"odd": True}, after=20, limit=7), c.ids({"n": 2**63}))),
    ("list wrongly", lambda c: c.ids({"a": {}})),
    (
        "list items",
        lambda c: (c.list_items(limit=5), list(c.items({"odd": True}, after=20, batch=7)), c.list_items(after=10**6)),
    ),
    ("list items that wait", lambda c: c.list_coded_items({"odd": True})),
    ("list items wrongly", lambda c: c.list_items({"a": {}})),
    ("list no items", lambda c: list(c.items(limit=0))),
    ("reconstruct what waits", lambda c: c.reconstruct([5, 3, 200])),
    ("learn too early", lambda c: c.learn(X, LABELS)),
    ("range too early", lambda c: c.range_search(X[0], 0.0)),
    ("feedback too early", lambda c: c.feedback(X[0], 1, True)),
    ("odd metadata", lambda c: c.add(["ö", -5], X[:2], [["a", 3, 0.5], ["b"]], [ODD, {}])),
    ("get", lambda c: c.get(["ö", -5, 7, 999, 7])),
    ("fit labels alone", lambda c: c.fit(labels=LABELS)),
    ("fit", lambda c: c.fit()),
    ("fit again", lambda c: c.fit(X, LABELS)),
    ("stats after fit", lambda c: c.stats()),
    ("search", lambda c: c.search(QUERIES, 30)),
    ("items with codes", lambda c: parts(c.list_coded_items(limit=50))),
    ("no items with codes", lambda c: parts(c.list_coded_items({"n": -1}))),
    ("some items", lambda c: list(c.items(limit=90, batch=40))),
    ("add more", lambda c: c.add(np.arange(1000, 1200), MORE.X.astype(np.float64), MORE.labels, MORE.metadata)),
    ("indicators", lambda c: c.add([2000, 2001, 2002], X, np.eye(3, dtype=np.uint8))),
    ("flat labels", lambda c: c.upsert([2001, 2002, 2003], X.tolist(), ["a", 2.0, np.int64(7)], learn=False)),
    ("pictures", lambda c: c.upsert(["p", "q"], X[:2], pictures=[GIF, None])),
    ("picture", lambda c: [c.picture(name) for name in ("p", "q", "nobody")]),
    ("relabel", lambda c: c.relabel(["p", 5], [["new", 1], []])),
    ("relabelled", lambda c: c.get(["p", 5])),
    ("relabel nobody", lambda c: c.relabel(["nobody"], [["a"]])),
    ("no picture", lambda c: c.upsert(["p"], X[:1], pictures=[b"<svg>"])),
    ("reconstruct twice the same", lambda c: c.reconstruct(["p", 5, "p"])),
    ("too many in range", lambda c: c.range_search(QUERIES[0], -1e300, most=3)),
    ("no rows", lambda c: c.add([], np.empty((0, DIM)))),
    ("conflict", lambda c: c.add([5], X[:1])),
    ("versions", lambda c: c.versions()),
    ("quality", lambda c: c.quality()),
    ("doubtful labels", lambda c: c.doubtful_labels(7)),
    ("too many doubtful labels", lambda c: c.doubtful_labels(1001)),
    ("no doubtful labels", lambda c: c.doubtful_labels(0)),
    ("one query", lambda c: c.search(QUERIES[0], np.int64(7))),
    ("a list", lambda c: c.search(QUERIES[0].tolist(), 3)),
    ("many queries", lambda c: c.search(QUERIES, 500)),
    ("where", lambda c: c.search(QUERIES, 50, where={"odd": True, "labels": {"$in": ["a", "b"]}})),
    ("where not", lambda c: c.search(QUERIES[0], where={"$not": {"tone": {"$gt": 0.5}}})),
    ("version 0", lambda c: c.search(QUERIES, 9, version=0)),
    ("version 1", lambda c: c.search(QUERIES, 9, version=1)),
    ("explained", lambda c: c.search(QUERIES[:2], 9, explain=True)),
    ("explained by 0", lambda c: c.search(QUERIES[0], 9, explain=0)),
    ("explained by 99", lambda c: c.search(QUERIES[0], 9, explain=99)),
    ("range", lambda c: c.range_search(QUERIES, 0.25, where={"odd": False})),
    ("range of all", lambda c: c.range_search(QUERIES[0], -np.inf)),
    ("range of version", lambda c: c.range_search(QUERIES[0], np.float32(-1.5), version=1)),
    ("reconstruct", lambda c: c.reconstruct([1000, "ö", 5])),
    ("reconstruct nobody", lambda c: c.reconstruct([1000, "nobody"])),
    ("search the reconstructed", lambda c: c.search(c.reconstruct([1000])[0], 3)),
    ("vote", lambda c: c.feedback(QUERIES[0], 1000, True)),
    ("votes", lambda c: c.feedback(QUERIES[1], ["ö", 5], np.array([0.5, -1]), source="me", position=[None, 9])),
    ("many votes", lambda c: c.feedback_many(MANY_VOTES)),
    ("many votes, one bad", lambda c: c.feedback_many([*MANY_VOTES, {"id": 5}])),
    ("vote taken back", lambda c: c.feedback(QUERIES[0], 1000, 0)),
    ("vote on nobody", lambda c: c.feedback(QUERIES[0], "nobody", True)),
    ("after votes", lambda c: c.search(QUERIES, 30)),
    ("learn", lambda c: c.learn(X, LABELS)),
    ("flush", lambda c: c.flush()),
    ("tag", lambda c: c.tag(1, "first")),
    ("tag again", lambda c: c.tag(2, "first")),
    ("rollback", lambda c: c.rollback(1)),
    ("rolled back", lambda c: c.search(QUERIES, 30)),
    ("delete", lambda c: c.delete([5, 6, "nobody"])),
    ("audit", lambda c: [replace(entry, time="", who="") for entry in c.audit(after=0, limit=1000)]),
    ("latest entries", lambda c: [entry.what for entry in c.audit(limit=2)]),
    ("a page of entries", lambda c: [entry.number for entry in c.audit(3, 2)]),
    ("entries of nobody", lambda c: c.audit(who="nobody & no one=?")),
    ("sample", lambda c: sorted(str(item) for item in c.sample(10_000))),
    ("end", lambda c: (c.count(), c.dim, c.bits, c.stats(), c.quality(), c.verify(), c.search(QUERIES, 1000))),
]


def test_served_collection_equals_a_local_one(twins: tuple[Collection, Client]) -> None:
    embedded, client = twins
    for name, call in LIFE:
        expected, actual = outcome(call, embedded), outcome(call, client)
        pairs = zip(actual, expected, strict=True) if name in ("empty", "end") else [(actual, expected)]
        for one, other in pairs:
            assert same(one, other), f"{name}: {str(one)[:300]} is not {str(other)[:300]}"


REFUSED: list[Callable[[Any], Any]] = [
    lambda c: c.add(5, X),
    lambda c: c.add([1.5, 2, 3], X),
    lambda c: c.add(["x\ny", 2, 3], X),
    lambda c: c.add([7, 7, 8], X),
    lambda c: c.add([7, 8], X),
    lambda c: c.add([7, 8, 9], X[:, :5]),
    lambda c: c.add([7, 8, 9], X[0]),
    lambda c: c.add([7, 8, 9], BAD),
    lambda c: c.upsert([7, 8, 9], X * np.inf),
    lambda c: c.upsert([7, 8, 9], X.astype(complex)),
    lambda c: c.upsert([7, 8, 9], [["x"] * DIM] * 3),
    lambda c: c.upsert([7, 8, 9], X, ["a"]),
    lambda c: c.upsert([7, 8, 9], X, [[b"x"], [], []]),
    lambda c: c.upsert([7, 8, 9], X, None, {"a": 1}),
    lambda c: c.upsert([7, 8, 9], X, None, [{"a": np.nan}, {}, {}]),
    lambda c: c.delete("abc"),
    lambda c: c.delete([5, 5]),
    lambda c: c.get(5),
    lambda c: c.reconstruct([None]),
    lambda c: c.sample(0),
    lambda c: c.audit(-1),
    lambda c: c.audit(2**63),
    lambda c: c.audit(limit=0),
    lambda c: c.audit(limit=100_001),
    lambda c: c.audit(limit=2.5),
    lambda c: c.audit(who=""),
    lambda c: c.audit(who="a\nb"),
    lambda c: c.sample("2"),
    lambda c: c.search(X[0], 0),
    lambda c: c.search(X[0], 2.5),
    lambda c: c.search(X[0], True),
    lambda c: c.search(X[0, :5]),
    lambda c: c.search(X[None]),
    lambda c: c.search(BAD),
    lambda c: c.search("query"),
    lambda c: c.search([[1.0, 2.0], [1.0]]),
    lambda c: c.search(X[0], where={"$nor": []}),
    lambda c: c.search(X[0], where="odd"),
    lambda c: c.search(X[0], where={"a": np.nan}),
    lambda c: c.search(X[0], version=99),
    lambda c: c.search(X[0], version=-1),
    lambda c: c.search(X[0], version="2"),
    lambda c: c.search(X[0], version=2.0),
    lambda c: c.learn(BAD, LABELS),
    lambda c: c.learn(X, LABELS[:2]),
    lambda c: c.fit(X[:1], LABELS[:1]),
    lambda c: c.feedback(X, 1, True),
    lambda c: c.feedback(X[0], [], True),
    lambda c: c.feedback(X[0], [1, 2], [True]),
    lambda c: c.feedback(X[0], 1, 1.5),
    lambda c: c.feedback(X[0], 1, True, position=0),
    lambda c: c.feedback(X[0], 1, True, source="\n"),
    lambda c: c.tag("1", "name"),
    lambda c: c.tag(1, None),
    lambda c: c.tag(99, "name"),
    lambda c: c.rollback(None),
    lambda c: c.rollback(99),
]


def test_invalid_arguments_are_refused_alike(twins: tuple[Collection, Client]) -> None:
    embedded, client = twins
    for at in twins:
        at.add(list(range(320)), *some_rows(320))
    before = client.stats(), client.versions()
    for number, call in enumerate(REFUSED):
        expected, actual = outcome(call, embedded), outcome(call, client)
        assert isinstance(expected, tuple) and actual[1] == expected[1], f"call {number}: {actual}"
        assert {actual[0], expected[0]} in ({expected[0]}, {InvalidInput, WrongType}), f"call {number}: {actual}"
    for call in (lambda c: c.range_search(X[0], "high"), lambda c: c.range_search(X[0], np.nan)):
        with pytest.raises(InvalidInput, match="threshold"):
            call(client)
    assert (client.stats(), client.versions()) == before


def test_both_clients_have_the_same_verbs() -> None:
    verbs = [{name for name in dir(kind) if not name.startswith("_")} for kind in (Client, AsyncClient)]
    assert verbs[0] == verbs[1]
    for name in verbs[0] - {"collection", "dim", "bits"}:
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (Client, AsyncClient))
        assert list(ours.parameters) == list(theirs.parameters), name
        is_async = inspect.isasyncgenfunction if name == "items" else inspect.iscoroutinefunction
        assert is_async(getattr(AsyncClient, name)), name
        assert not inspect.iscoroutinefunction(getattr(Client, name)), name


def test_verbs_are_those_of_a_collection() -> None:
    verbs = {name for name in dir(Client) if not name.startswith("_") and callable(getattr(Client, name))}
    for name in verbs - {"health", "ingest", "snapshot", "encode", "cluster", "add_shard", "drain"}:
        ours, theirs = (dict(inspect.signature(getattr(kind, name)).parameters) for kind in (Client, Collection))
        theirs.pop("max_bytes", None)  # which the server sets
        theirs.pop("snapshots", None)  # so is the folder of these
        for one, other in zip(ours.values(), theirs.values(), strict=True):
            assert (one.name, one.kind, one.default) == (other.name, other.kind, other.default), name


# ---- streams ----


def rows_of(n: int, seed: int = 3, first: int = 0) -> Iterator[dict[str, Any]]:
    rows = some_rows(n, seed)
    for r, (x, labels, metadata) in enumerate(zip(*rows, strict=True)):
        yield {"id": first + r, "features": x, "labels": labels, "metadata": metadata}


def test_stream_is_stored_a_thousand_rows_at_a_time(twins: tuple[Collection, Client]) -> None:
    embedded, client = twins
    rows = some_rows(2500, seed=3)
    for start in range(0, 2500, 1000):
        embedded.add(list(range(2500))[start : start + 1000], *(part[start : start + 1000] for part in rows))
    assert client.ingest(rows_of(2500)) == 2500 and client.ingest(iter(())) == 0
    assert same(client.search(QUERIES, 2500), embedded.search(QUERIES, 2500))
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


def whole(connection: socket.socket) -> bytes:
    """Read a request, however many packets it comes in."""
    head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
    (length,) = map(int, re.findall(rb"content-length: (\d+)", head.lower()) or [0])
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@contextmanager
def answering(*responses: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Run a server that sends one response to each connection and closes it; yield its address and the requests."""
    requests: list[bytes] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def work() -> None:
            for reply in responses:
                with closing(listener.accept()[0]) as connection:
                    requests.append(whole(connection))
                    connection.sendall(reply)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
        finally:
            thread.join(60)
            assert not thread.is_alive()


def response(status: int, body: str, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", f"content-length: {len(body)}", "connection: close", *headers]
    return "\r\n".join([*lines, "", body]).encode()


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


@pytest.mark.parametrize(("client", "library", "extra", "other"), OPTIONAL)
def test_library_works_without_what_a_client_needs(client: str, library: str, extra: str, other: str) -> None:
    program = WITHOUT.format(client=client, library=library, other=other)
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert f"pip install 'stillhash[{extra}]'" in out
    for package in (stillhash, stillhash.client):
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            package.nonsense  # noqa: B018


def test_the_client_waits_no_longer_than_its_timeout(new_client: Any) -> None:
    """Whatever a server asks for: three hours would be a way to stop a client."""
    wait = response(503, '{"error": "Busy", "message": "wait"}', "retry-after: 10800")
    with (
        answering(wait, response(200, '{"count": 5}')) as (url, requests),
        new_client(url, collection="c", timeout=1) as client,
    ):
        assert client.count() == 5
    assert len(requests) == 2
