"""Every verb over HTTP, as JSON and raw, equals the library; requests have ids, limits and one shape of errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

import stillhash
from stillhash import Collection
from tests.collection.fixtures import DIM, copied, some_rows
from tests.collection.test_doubtful_labels import create, noisy_rows
from tests.server.live_server import LiveServer, Reply, live_server
from tests.support.toys import toy

RAW = "application/octet-stream"
PATH = "/v1/collections/c"
QUERIES = toy(3, DIM, 4, seed=77).X
X, LABELS, METADATA = some_rows(3, seed=50)


@pytest.fixture
def library(template: Path, tmp_path: Path) -> Collection:
    return stillhash.open(copied(template, tmp_path / "library"))


def raw(body: dict[str, Any], rows: np.ndarray) -> bytes:
    return json.dumps(body).encode() + b"\n" + rows.astype("<f4").tobytes()


def as_json(answers: Any) -> Any:
    """Convert answers of the library to JSON values."""
    return json.loads(json.dumps(answers, default=vars))


def ok(reply: Reply) -> Any:
    assert reply.status == 200, reply.data
    assert reply.headers["content-type"] == "application/json"
    return reply.json


def failed(reply: Reply, status: int, error: str, match: str = "") -> None:
    payload = reply.json
    assert (reply.status, payload["status"], payload["error"]) == (status, status, error), reply.data
    assert match in payload["message"] and payload["request_id"] == reply.headers["x-request-id"]


# ---- verbs ----


def test_server_reports_health_and_collections(shared: LiveServer) -> None:
    health = {"status": "ok", "stillhash": stillhash.__version__, "collections": {"c": 320}}
    assert ok(shared.request("GET", "/v1/health")) == health
    assert ok(shared.request("GET", "/v1/collections")) == {"collections": ["c"], "items": {"c": 320}}


def test_reads_equal_the_library(shared: LiveServer, library: Collection) -> None:
    assert ok(shared.request("GET", f"{PATH}/count")) == {"count": library.count()}
    where = {"odd": True, "labels": "a"}
    assert ok(shared.request("POST", f"{PATH}/count", {"where": where})) == {"count": library.count(where)}
    assert ok(shared.request("POST", f"{PATH}/count", {})) == {"count": library.count()}
    assert ok(shared.request("POST", f"{PATH}/ids", {"where": where})) == {"ids": library.ids(where)}
    page = {"after": 9, "limit": 3}
    assert ok(shared.request("POST", f"{PATH}/ids", page)) == {"ids": library.ids(**page)} == {"ids": [10, 11, 12]}
    failed(shared.request("POST", f"{PATH}/ids", {"limit": 10**9}), 413, "TooLarge", "limit")
    failed(shared.request("POST", f"{PATH}/count", {"where": {"a": {}}}), 422, "InvalidInput", "where")
    assert ok(shared.request("GET", f"{PATH}/versions"))["versions"] == library.versions()
    assert ok(shared.request("GET", f"{PATH}/quality")) == library.quality()
    doubtful = {"wrong_label_share": None, "items": []}  # of too few rows
    assert ok(shared.request("GET", f"{PATH}/doubtful_labels")) == doubtful
    items = ok(shared.request("POST", f"{PATH}/get", {"ids": [5, "nobody", 5]}))
    assert items["items"] == as_json(library.get([5, "nobody", 5]))
    assert (
        ok(shared.request("POST", f"{PATH}/reconstruct", {"ids": [5, 7]}))["features"]
        == library.reconstruct([5, 7]).tolist()
    )
    assert ok(shared.request("POST", f"{PATH}/verify")) == {"problems": []}
    stats = ok(shared.request("GET", f"{PATH}/stats"))
    assert {**stats, "disk_bytes": 0} == {**library.stats(), "disk_bytes": 0}
    sample = ok(shared.request("GET", f"{PATH}/sample?count=7"))["items"]
    assert 0 < len(sample) <= 7 and as_json(library.get([item["id"] for item in sample])) == sample
    assert len(ok(shared.request("GET", f"{PATH}/sample"))["items"]) == 1


def test_audit_equals_the_library(serving: Callable[..., LiveServer], library: Collection) -> None:
    server = serving()
    body = {"ids": ["x", "y", "z"], "features": X.tolist()}
    lines = [json.dumps({"id": r, "features": X[0].tolist()}) for r in range(1000, 2500)]
    with stillhash.acting_as("anonymous"):
        assert ok(server.request("POST", f"{PATH}/add", body)) == {"count": library.add(body["ids"], X)}
        assert ok(server.request("POST", f"{PATH}/ingest", "\n".join(lines).encode())) == {"count": 1500}
        for ids in (range(1000, 2000), range(2000, 2500)):
            library.add(ids, X[:1].repeat(len(ids), axis=0))
        assert ok(server.request("POST", f"{PATH}/rollback", {"version": 1}))["version"] == library.rollback(1)
        ok(server.request("POST", f"{PATH}/delete", {"ids": ["nobody"]}))

    def without_time(entries: Any) -> Any:
        return [{**entry, "time": ""} for entry in entries]

    for options in ({}, {"after": 0}, {"after": 2, "limit": 2}, {"limit": 1}, {"who": "anonymous"}, {"who": "no?&"}):
        reply = ok(server.request("GET", f"{PATH}/audit?{urlencode(options)}"))
        assert without_time(reply["entries"]) == without_time(as_json(library.audit(**options)))
    for name, value in (("after", -1), ("after", 2**63), ("limit", 0), ("limit", 10_001), ("who", ""), ("limit", "x")):
        failed(server.request("GET", f"{PATH}/audit?{name}={value}"), 422, "InvalidInput", name)


def test_stats_say_whether_codes_see_labels(tmp_path: Path) -> None:
    """So do the schema, the page and the client."""
    collections: dict[str, Any] = {"c": {}, "off": {"codes_see_labels": False}, "other": {"method": "ohsl"}}
    opened = {name: stillhash.open(tmp_path / name, 4, **settings) for name, settings in collections.items()}
    with live_server(opened) as server:
        schema = server.request("GET", "/v1/openapi.json").json["components"]["schemas"]["StatsResponse"]
        assert schema["properties"]["codes_see_labels"]["type"] == "boolean"
        assert "codes_see_labels" in schema["required"]
        for name in collections:
            assert ok(server.request("GET", f"/v1/collections/{name}/stats"))["codes_see_labels"] is (name == "c")
            with stillhash.Client(server.url, collection=name) as client:
                assert client.stats()["codes_see_labels"] is (name == "c")
            page = server.request("GET", f"/c/{name}/collection").data.decode()
            assert ("hold the labels they were added with" in page) is (name == "c")
            assert ("are of the features alone" in page) is (name != "c")


def test_suggested_labels_equal_the_library(tmp_path: Path) -> None:
    rows = noisy_rows(0.0, 800)
    collection = create(tmp_path / "c", rows)
    collection.add(range(5000, 5100), rows.X[:100] + np.float32(0.1))
    expected = as_json(collection.suggest_labels(5, skip=[5001], seed=2))
    with live_server({"c": collection}) as server:
        body = {"count": 5, "skip": [5001], "seed": 2}
        assert ok(server.request("POST", f"{PATH}/suggest_labels", body)) == {"suggestions": expected}
        assert len(ok(server.request("POST", f"{PATH}/suggest_labels", {}))["suggestions"]) == 20
        for wrong in ({"count": 0}, {"count": 1001}, {"seed": -1}):
            failed(server.request("POST", f"{PATH}/suggest_labels", wrong), 422, "InvalidInput", next(iter(wrong)))


@pytest.mark.medium
def test_doubtful_labels_equal_the_library(tmp_path: Path) -> None:
    collection = create(tmp_path / "c", noisy_rows(0.2, 800))
    expected = as_json({"wrong_label_share": collection.stats()["wrong_label_share"]})
    with live_server({"c": collection}) as server:
        for count in (100, 3):
            items = as_json(collection.doubtful_labels(count))
            assert len(items) == count
            reply = ok(server.request("GET", f"{PATH}/doubtful_labels?count={count}"))
            assert reply == {**expected, "items": items}
        for count in (0, 1001, -1, "many"):
            failed(server.request("GET", f"{PATH}/doubtful_labels?count={count}"), 422, "InvalidInput", "count")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 30},
        {"where": {"odd": True}, "k": 400},
        {"version": 0},
        {"version": 1},
        {"explain": True, "k": 3},
        {"explain": 0, "k": 3},
    ],
)
def test_searches_equal_the_library(shared: LiveServer, library: Collection, options: dict[str, Any]) -> None:
    one = as_json(library.search(QUERIES[0], **options))
    many = as_json(library.search(QUERIES, **options))
    for query, expected in ((QUERIES[0], [one]), (QUERIES, many)):
        by_json = shared.request("POST", f"{PATH}/search", {"query": query.tolist(), **options})
        by_raw = shared.request("POST", f"{PATH}/search", raw(options, query), content_type=RAW)
        assert ok(by_json)["answers"] == ok(by_raw)["answers"] == expected


def test_range_searches_equal_the_library(shared: LiveServer, library: Collection) -> None:
    for options in ({"threshold": 0.5}, {"threshold": -3, "where": {"odd": True}, "version": 1}):
        expected = as_json(library.range_search(QUERIES, **options))
        by_json = shared.request("POST", f"{PATH}/range_search", {"query": QUERIES.tolist(), **options})
        by_raw = shared.request("POST", f"{PATH}/range_search", raw(options, QUERIES), content_type=RAW)
        assert ok(by_json)["answers"] == ok(by_raw)["answers"] == expected


def test_zero_queries_have_zero_answers(shared: LiveServer) -> None:
    assert ok(shared.request("POST", f"{PATH}/search", b"{}\n", content_type=RAW)) == {"answers": []}


Step = tuple[str, dict[str, Any], str | None, np.ndarray | None, Callable[[Collection], Any]]
NAMES = {"ids": ["x", "y", "z"], "labels": LABELS, "metadata": METADATA}
OTHER = {"ids": ["x", "z", "w"], "labels": [["a"], [3], []], "learn": False}
STEPS: list[Step] = [
    ("add", NAMES, "features", X, lambda c: {"count": c.add(["x", "y", "z"], X, LABELS, METADATA)}),
    ("upsert", OTHER, "features", X, lambda c: {"count": c.upsert(["x", "z", "w"], X, [["a"], [3], []], learn=False)}),
    ("delete", {"ids": [3, "nobody"]}, None, None, lambda c: {"count": c.delete([3, "nobody"])}),
    ("learn", {"labels": LABELS}, "features", X, lambda c: {"version": c.learn(X, LABELS)}),
    ("flush", {}, None, None, lambda c: {"version": c.flush()}),
    ("feedback", {"id": 5, "vote": "up"}, "query", X[0], lambda c: {"version": c.feedback(X[0], 5, True)}),
    (
        "feedback",
        {"id": [6, "x"], "vote": [0.5, -0.5], "source": "me", "position": [3, None]},
        "query",
        X[1],
        lambda c: {"version": c.feedback(X[1], [6, "x"], [0.5, -0.5], source="me", position=[3, None])},
    ),
    (
        "tag",
        {"version": 1, "name": "first"},
        None,
        None,
        lambda c: c.tag(1, "first") or {"version": 1, "name": "first"},
    ),
    ("rollback", {"version": 1}, None, None, lambda c: {"version": c.rollback(1)}),
]


@pytest.mark.medium
@pytest.mark.parametrize("by", ["json", "raw"])
def test_writes_equal_the_library(serving: Callable[..., LiveServer], library: Collection, by: str) -> None:
    server = serving()
    for verb, options, field, rows, call in STEPS:
        if by == "raw" and field is not None and rows is not None:
            reply = server.request("POST", f"{PATH}/{verb}", raw(options, rows), content_type=RAW)
        else:
            body = {**options, **({field: rows.tolist()} if field and rows is not None else {})}
            reply = server.request("POST", f"{PATH}/{verb}", body)
        assert ok(reply) == call(library), verb
        expected = as_json(library.search(QUERIES, 400))
        response = server.request("POST", f"{PATH}/search", {"query": QUERIES.tolist(), "k": 400})
        assert ok(response)["answers"] == expected, verb


@pytest.mark.parametrize("sample", [False, True])
def test_fit_equals_the_library(sample: bool, tmp_path: Path) -> None:
    first = some_rows(310, seed=4)
    twins = [stillhash.open(tmp_path / name, DIM, 16, init_rows=1000, learn_rows=40) for name in ("library", "served")]
    for twin in twins:
        twin.add(list(range(310)), *first)
    library = twins[0]
    body = {"features": first.X.tolist(), "labels": first.labels} if sample else {}
    library.fit(first.X, first.labels) if sample else library.fit()
    with live_server({"c": twins[1]}) as server:
        assert ok(server.request("POST", f"{PATH}/fit", body)) == {"version": library.stats()["version"]}
        response = server.request("POST", f"{PATH}/search", {"query": QUERIES.tolist()})
        assert ok(response)["answers"] == as_json(library.search(QUERIES))
        failed(server.request("POST", f"{PATH}/fit", body), 409, "Conflict")


def test_snapshot_goes_to_the_servers_folder(serving: Callable[..., LiveServer], tmp_path: Path) -> None:
    server = serving(snapshots=tmp_path / "snapshots")
    for _ in range(2):
        snapshot = ok(server.request("POST", f"{PATH}/snapshot"))
        with stillhash.open(tmp_path / "snapshots" / snapshot["name"], read_only=True) as copy:
            assert copy.count() == 320


def test_metadata_that_pydantic_cannot_serialise_is_returned(serving: Callable[..., LiveServer]) -> None:
    """A lone surrogate, and deep nesting: the library stores both."""
    server = serving()
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"d": deep}
    for name, data in (("half", {"x": "\ud800"}), ("deep", deep)):
        line = json.dumps({"id": name, "features": [1.0] * DIM, "metadata": data}).encode()
        assert ok(server.request("POST", f"{PATH}/ingest", line)) == {"count": 1}
        assert ok(server.request("POST", f"{PATH}/get", {"ids": [name]}))["items"][0]["metadata"] == data
    assert (
        len(ok(server.request("POST", f"{PATH}/search", {"query": [1.0] * DIM, "k": 400}))["answers"][0]["hits"]) == 322
    )


# ---- streams ----


def lines(n: int, seed: int = 9, first: int = 1000) -> list[bytes]:
    rows = zip(*some_rows(n, seed), strict=True)
    return [
        json.dumps({"id": first + r, "features": x.tolist(), "labels": labels, "metadata": data}).encode()
        for r, (x, labels, data) in enumerate(rows)
    ]


@pytest.mark.medium
def test_stream_equals_adding_rows(serving: Callable[..., LiveServer], library: Collection) -> None:
    server = serving()
    rows = some_rows(1300, seed=9)
    for start in (0, 1000):
        part = slice(start, start + 1000)
        library.add(list(range(1000, 2300))[part], rows.X[part], rows.labels[part], rows.metadata[part])
    spaced = b"\n\n".join(lines(1300)) + b"\r\n  \n"
    assert ok(server.request("POST", f"{PATH}/ingest", spaced)) == {"count": 1300}
    response = server.request("POST", f"{PATH}/search", {"query": QUERIES.tolist(), "k": 2000})
    assert ok(response)["answers"] == as_json(library.search(QUERIES, 2000))
    failed(server.request("POST", f"{PATH}/ingest", b"\n".join(lines(3))), 409, "Conflict")
    assert ok(server.request("POST", f"{PATH}/ingest?replace=true&learn=false", b"\n".join(lines(3)))) == {"count": 3}
    assert ok(server.request("POST", f"{PATH}/ingest", b"")) == {"count": 0}


def test_single_label_needs_no_list(serving: Callable[..., LiveServer]) -> None:
    server = serving()
    labels: list[Any] = [0, "", "cat", None, [], [0, 1.5]]
    body = [json.dumps({"id": f"n{r}", "features": [1.0] * DIM, "labels": one}) for r, one in enumerate(labels)]
    assert ok(server.request("POST", f"{PATH}/ingest", "\n".join(body).encode())) == {"count": 6}
    items = ok(server.request("POST", f"{PATH}/get", {"ids": [f"n{r}" for r in range(6)]}))["items"]
    assert [item["labels"] for item in items] == [[0], [""], ["cat"], [], [], [0, 1.5]]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("line", "match"),
    [
        (b"{", "line 1201: "),
        (b"\xff\xfe", "line 1201: "),
        (b"[" * 100_000, "line 1201: "),
        (b"[1]", "line 1201: "),
        (b'{"id": 1}', "line 1201: "),
        (b'{"id": "n", "features": [1], "weight": 2}', "line 1201: "),
        (b'{"id": "n", "features": [1]}', "features"),
        (b'{"id": "n", "features": null}', "features"),
        (b'{"id": "n", "features": [NaN, 0, 0, 0, 0, 0, 0, 0]}', "features"),
        (b'{"id": 1000, "features": [1, 1, 1, 1, 1, 1, 1, 1]}', "1000"),
        (b'{"id": 1.5, "features": [1, 1, 1, 1, 1, 1, 1, 1]}', "ids"),
        (b'{"id": "n", "features": [1, 1, 1, 1, 1, 1, 1, 1], "labels": {"a": 1}}', "labels"),
        (b'{"id": "n", "features": [1, 1, 1, 1, 1, 1, 1, 1], "metadata": [1]}', "metadata"),
    ],
)
def test_error_of_an_invalid_line_counts_the_stored_rows(
    serving: Callable[..., LiveServer], line: bytes, match: str
) -> None:
    server = serving()
    reply = server.request("POST", f"{PATH}/ingest", b"\n".join([*lines(1200), line, *lines(3, first=9000)]))
    assert reply.status in (409, 422) and match in reply.json["message"], reply.data
    assert reply.json["acknowledged"] == 1000
    assert ok(server.request("GET", f"{PATH}/count")) == {"count": 1320}


# ---- limits ----


def test_requests_beyond_the_limits_are_refused(serving: Callable[..., LiveServer]) -> None:
    server = serving(max_body_bytes=2000, max_rows=5, max_hits=7)
    rows = np.ones((6, DIM), np.float32)
    for verb, body in (
        ("search", {"query": rows.tolist()}),
        ("range_search", {"query": rows.tolist(), "threshold": 0}),
        ("search", {"query": rows[0].tolist(), "k": 8}),
        ("add", {"ids": list(range(1000, 1006)), "features": rows.tolist()}),
        ("learn", {"features": rows.tolist(), "labels": [["a"]] * 6}),
        ("get", {"ids": [1] * 6}),
        ("reconstruct", {"ids": [1] * 6}),
        ("search", {"query": [1.0] * 1000}),
    ):
        failed(server.request("POST", f"{PATH}/{verb}", body), 413, "TooLarge", "expected at most")
    failed(server.request("POST", f"{PATH}/search", raw({}, rows), content_type=RAW), 413, "TooLarge", "query: ")
    line = b'{"id": "n", "features": [' + b"1, " * 1000 + b"1]}"
    failed(server.request("POST", f"{PATH}/ingest", line), 413, "TooLarge", "line 1: ")
    many = b"\n".join(lines(100))
    assert len(many) > 2000 and ok(server.request("POST", f"{PATH}/ingest", many)) == {"count": 100}
    ok(server.request("POST", f"{PATH}/search", {"query": rows[:5].tolist(), "k": 7}))
    wide = server.request("POST", f"{PATH}/search", {"query": [1.0] * 20, "k": 7})  # one wide query, not twenty
    failed(wide, 422, "InvalidInput", "query")


def test_body_without_a_length_is_limited(serving: Callable[..., LiveServer]) -> None:
    server = serving(max_body_bytes=2000)
    parts = iter([b'{"query": [', b"1, " * 1000, b"1]}"])
    reply = server.pool.request("POST", f"{server.url}{PATH}/search", body=parts, retries=False)
    assert reply.status == 413 and reply.json()["error"] == "TooLarge"


# ---- every request ----


def test_requests_have_ids(shared: LiveServer) -> None:
    first, second = (shared.request("GET", "/v1/health").headers["x-request-id"] for _ in range(2))
    assert first != second and len(first) == 32
    assert shared.request("GET", "/v1/health", x_request_id="mine-7").headers["x-request-id"] == "mine-7"
    for bad in ("two words", "x" * 65, '"', ""):
        assert len(shared.request("GET", "/v1/health", x_request_id=bad).headers["x-request-id"]) == 32
    reply = shared.request("POST", f"{PATH}/search", {"k": 1}, x_request_id="mine-8")
    failed(reply, 422, "InvalidInput", "query")
    assert reply.json["request_id"] == "mine-8"


def test_responses_have_security_headers(shared: LiveServer) -> None:
    for reply in (
        shared.request("GET", "/v1/health"),
        shared.request("GET", "/nowhere"),
        shared.request("POST", f"{PATH}/search", b""),
    ):
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]


def test_unknown_routes_and_collections_are_not_found(shared: LiveServer) -> None:
    for path in ("/v1/nothing", "/v1", "/v1/collections/c/nothing", "/v1/collections/c/search/more"):
        failed(shared.request("GET", path), 404, "NotFound", path)
    for verb in ("search", "add", "get"):
        failed(
            shared.request("POST", f"/v1/collections/none/{verb}", b"{}"),
            404,
            "NotFound",
            "No collection 'none'. Available: c",
        )
    failed(shared.request("GET", "/v1/collections/none/count"), 404, "NotFound", "No collection 'none'")


def test_other_methods_are_not_allowed(shared: LiveServer) -> None:
    for method, path, allowed in (
        ("GET", f"{PATH}/search", "POST"),
        ("DELETE", f"{PATH}/add", "POST"),
        ("POST", f"{PATH}/versions", "GET"),
        ("PUT", "/v1/health", "GET"),
        ("PATCH", f"{PATH}/stats", "GET"),
    ):
        reply = shared.request(method, path, b"{}")
        failed(reply, 405, "NotAllowed", method)
        assert allowed in reply.headers["allow"]
