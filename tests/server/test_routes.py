"""Every verb over HTTP, as JSON and raw, gives what the library gives; and requests have ids, limits and one error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import Collection
from tests.collection.fixtures import DIM, copied, some_rows
from tests.server.process import Reply, Served, served
from tests.support.toys import toy

RAW = "application/octet-stream"
AT = "/v1/collections/c"
QUERIES = toy(3, DIM, 4, seed=77).X
X, LABELS, METADATA = some_rows(3, seed=50)


@pytest.fixture
def library(template: Path, tmp_path: Path) -> Collection:
    return stillhash.open(copied(template, tmp_path / "library"))


def raw(told: dict[str, Any], rows: np.ndarray) -> bytes:
    return json.dumps(told).encode() + b"\n" + rows.astype("<f4").tobytes()


def as_json(answers: Any) -> Any:
    """What the library answers, as it should be on the schemas."""
    return json.loads(json.dumps(answers, default=vars))


def right(reply: Reply) -> Any:
    assert reply.status == 200, reply.data
    assert reply.headers["content-type"] == "application/json"
    return reply.json


def wrong(reply: Reply, status: int, error: str, match: str = "") -> None:
    told = reply.json
    assert (reply.status, told["status"], told["error"]) == (status, status, error), reply.data
    assert match in told["message"] and told["request_id"] == reply.headers["x-request-id"]


# ---- verbs ----


def test_what_the_server_is(shared: Served) -> None:
    health = {"status": "ok", "stillhash": stillhash.__version__, "collections": {"c": 320}}
    assert right(shared.ask("GET", "/v1/health")) == health
    assert right(shared.ask("GET", "/v1/collections")) == {"collections": ["c"]}


def test_reads_are_the_librarys(shared: Served, library: Collection) -> None:
    assert right(shared.ask("GET", f"{AT}/count")) == {"count": library.count()}
    assert right(shared.ask("GET", f"{AT}/versions"))["versions"] == library.versions()
    assert right(shared.ask("GET", f"{AT}/quality")) == library.quality()
    found = right(shared.ask("POST", f"{AT}/get", {"ids": [5, "nobody", 5]}))
    assert found["items"] == as_json(library.get([5, "nobody", 5]))
    assert (
        right(shared.ask("POST", f"{AT}/reconstruct", {"ids": [5, 7]}))["features"]
        == library.reconstruct([5, 7]).tolist()
    )
    assert right(shared.ask("POST", f"{AT}/verify")) == {"problems": []}
    stats = right(shared.ask("GET", f"{AT}/stats"))
    assert {**stats, "disk_bytes": 0} == {**library.stats(), "disk_bytes": 0}
    sample = right(shared.ask("GET", f"{AT}/sample?count=7"))["items"]
    assert 0 < len(sample) <= 7 and as_json(library.get([item["id"] for item in sample])) == sample
    assert len(right(shared.ask("GET", f"{AT}/sample"))["items"]) == 1


@pytest.mark.parametrize(
    "told",
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
def test_searches_are_the_librarys(shared: Served, library: Collection, told: dict[str, Any]) -> None:
    one = as_json(library.search(QUERIES[0], **told))
    many = as_json(library.search(QUERIES, **told))
    for query, wanted in ((QUERIES[0], [one]), (QUERIES, many)):
        by_json = shared.ask("POST", f"{AT}/search", {"query": query.tolist(), **told})
        by_raw = shared.ask("POST", f"{AT}/search", raw(told, query), content_type=RAW)
        assert right(by_json)["answers"] == right(by_raw)["answers"] == wanted


def test_ranges_are_the_librarys(shared: Served, library: Collection) -> None:
    for told in ({"threshold": 0.5}, {"threshold": -3, "where": {"odd": True}, "version": 1}):
        wanted = as_json(library.range_search(QUERIES, **told))
        by_json = shared.ask("POST", f"{AT}/range_search", {"query": QUERIES.tolist(), **told})
        by_raw = shared.ask("POST", f"{AT}/range_search", raw(told, QUERIES), content_type=RAW)
        assert right(by_json)["answers"] == right(by_raw)["answers"] == wanted


def test_no_queries_have_no_answers(shared: Served) -> None:
    assert right(shared.ask("POST", f"{AT}/search", b"{}\n", content_type=RAW)) == {"answers": []}


Step = tuple[str, dict[str, Any], str | None, np.ndarray | None, Callable[[Collection], Any]]
NAMES = {"ids": ["x", "y", "z"], "labels": LABELS, "metadata": METADATA}
OTHER = {"ids": ["x", "z", "w"], "labels": [["a"], [3], []], "learn": False}
STEPS: list[Step] = [
    ("add", NAMES, "features", X, lambda c: {"count": c.add(["x", "y", "z"], X, LABELS, METADATA)}),
    ("upsert", OTHER, "features", X, lambda c: {"count": c.upsert(["x", "z", "w"], X, [["a"], [3], []], learn=False)}),
    ("delete", {"ids": [3, "nobody"]}, None, None, lambda c: {"count": c.delete([3, "nobody"])}),
    ("learn", {"labels": LABELS}, "features", X, lambda c: {"version": c.learn(X, LABELS)}),
    ("flush", {}, None, None, lambda c: {"version": c.flush()}),
    ("feedback", {"id": 5, "relevant": True}, "query", X[0], lambda c: {"version": c.feedback(X[0], 5, True)}),
    (
        "feedback",
        {"id": [6, "x"], "relevant": [True, False], "weight": 0.5, "source": "me"},
        "query",
        X[1],
        lambda c: {"version": c.feedback(X[1], [6, "x"], [True, False], weight=0.5, source="me")},
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


@pytest.mark.parametrize("by", ["json", "raw"])
def test_writes_are_the_librarys(serving: Callable[..., Served], library: Collection, by: str) -> None:
    server = serving()
    for verb, told, field, rows, call in STEPS:
        if by == "raw" and field is not None and rows is not None:
            reply = server.ask("POST", f"{AT}/{verb}", raw(told, rows), content_type=RAW)
        else:
            body = {**told, **({field: rows.tolist()} if field and rows is not None else {})}
            reply = server.ask("POST", f"{AT}/{verb}", body)
        assert right(reply) == call(library), verb
        wanted = as_json(library.search(QUERIES, 400))
        found = server.ask("POST", f"{AT}/search", {"query": QUERIES.tolist(), "k": 400})
        assert right(found)["answers"] == wanted, verb


@pytest.mark.parametrize("sample", [False, True])
def test_hash_functions_are_fitted(sample: bool, tmp_path: Path) -> None:
    first = some_rows(310, seed=4)
    twins = [stillhash.open(tmp_path / name, DIM, 16, init_rows=1000, learn_rows=40) for name in ("library", "served")]
    for twin in twins:
        twin.add(list(range(310)), *first)
    library = twins[0]
    told = {"features": first.X.tolist(), "labels": first.labels} if sample else {}
    library.fit(first.X, first.labels) if sample else library.fit()
    with served({"c": twins[1]}) as server:
        assert right(server.ask("POST", f"{AT}/fit", told)) == {"version": library.stats()["version"]}
        found = server.ask("POST", f"{AT}/search", {"query": QUERIES.tolist()})
        assert right(found)["answers"] == as_json(library.search(QUERIES))
        wrong(server.ask("POST", f"{AT}/fit", told), 409, "Conflict", "fitted already")


def test_a_snapshot_goes_to_the_servers_folder(serving: Callable[..., Served], tmp_path: Path) -> None:
    server = serving(snapshots=tmp_path / "snapshots")
    for _ in range(2):
        told = right(server.ask("POST", f"{AT}/snapshot"))
        with stillhash.open(tmp_path / "snapshots" / told["name"], read_only=True) as copy:
            assert copy.count() == 320


def test_metadata_that_is_hard_to_write_comes_back(serving: Callable[..., Served]) -> None:
    """Half a character, and depth: the library takes both, so the server says both."""
    server = serving()
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"d": deep}
    for name, data in (("half", {"x": "\ud800"}), ("deep", deep)):
        line = json.dumps({"id": name, "features": [1.0] * DIM, "metadata": data}).encode()
        assert right(server.ask("POST", f"{AT}/ingest", line)) == {"count": 1}
        assert right(server.ask("POST", f"{AT}/get", {"ids": [name]}))["items"][0]["metadata"] == data
    assert len(right(server.ask("POST", f"{AT}/search", {"query": [1.0] * DIM, "k": 400}))["answers"][0]["hits"]) == 322


# ---- streams ----


def lines(n: int, seed: int = 9, first: int = 1000) -> list[bytes]:
    made = zip(*some_rows(n, seed), strict=True)
    return [
        json.dumps({"id": first + r, "features": x.tolist(), "labels": labels, "metadata": data}).encode()
        for r, (x, labels, data) in enumerate(made)
    ]


def test_a_stream_is_added_as_rows_are(serving: Callable[..., Served], library: Collection) -> None:
    server = serving()
    made = some_rows(1300, seed=9)
    for start in (0, 1000):
        part = slice(start, start + 1000)
        library.add(list(range(1000, 2300))[part], made.X[part], made.labels[part], made.metadata[part])
    spaced = b"\n\n".join(lines(1300)) + b"\r\n  \n"
    assert right(server.ask("POST", f"{AT}/ingest", spaced)) == {"count": 1300}
    found = server.ask("POST", f"{AT}/search", {"query": QUERIES.tolist(), "k": 2000})
    assert right(found)["answers"] == as_json(library.search(QUERIES, 2000))
    wrong(server.ask("POST", f"{AT}/ingest", b"\n".join(lines(3))), 409, "Conflict", "already")
    assert right(server.ask("POST", f"{AT}/ingest?replace=true&learn=false", b"\n".join(lines(3)))) == {"count": 3}
    assert right(server.ask("POST", f"{AT}/ingest", b"")) == {"count": 0}


def test_a_single_label_is_a_label(serving: Callable[..., Served]) -> None:
    server = serving()
    labels: list[Any] = [0, "", "cat", None, [], [0, 1.5]]
    told = [json.dumps({"id": f"n{r}", "features": [1.0] * DIM, "labels": one}) for r, one in enumerate(labels)]
    assert right(server.ask("POST", f"{AT}/ingest", "\n".join(told).encode())) == {"count": 6}
    items = right(server.ask("POST", f"{AT}/get", {"ids": [f"n{r}" for r in range(6)]}))["items"]
    assert [item["labels"] for item in items] == [[0], [""], ["cat"], [], [], [0, 1.5]]


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (b"{", "line 1201 is not JSON"),
        (b"\xff\xfe", "line 1201 is not JSON"),
        (b"[" * 100_000, "line 1201 is not JSON"),
        (b"[1]", "line 1201: an object"),
        (b'{"id": 1}', "line 1201: an object"),
        (b'{"id": "n", "features": [1], "weight": 2}', "line 1201: an object"),
        (b'{"id": "n", "features": [1]}', "features"),
        (b'{"id": "n", "features": null}', "features"),
        (b'{"id": "n", "features": [NaN, 0, 0, 0, 0, 0, 0, 0]}', "features contains NaN"),
        (b'{"id": 1000, "features": [1, 1, 1, 1, 1, 1, 1, 1]}', "1000"),
        (b'{"id": 1.5, "features": [1, 1, 1, 1, 1, 1, 1, 1]}', "ids holds 1.5"),
        (b'{"id": "n", "features": [1, 1, 1, 1, 1, 1, 1, 1], "labels": {"a": 1}}', "labels"),
        (b'{"id": "n", "features": [1, 1, 1, 1, 1, 1, 1, 1], "metadata": [1]}', "metadata"),
    ],
)
def test_a_wrong_line_says_what_is_on_disk(serving: Callable[..., Served], line: bytes, match: str) -> None:
    server = serving()
    reply = server.ask("POST", f"{AT}/ingest", b"\n".join([*lines(1200), line, *lines(3, first=9000)]))
    assert reply.status in (409, 422) and match in reply.json["message"], reply.data
    assert reply.json["acknowledged"] == 1000
    assert right(server.ask("GET", f"{AT}/count")) == {"count": 1320}


# ---- limits ----


def test_more_than_the_server_takes_is_refused(serving: Callable[..., Served]) -> None:
    server = serving(most_bytes=2000, most_rows=5, most_hits=7)
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
        wrong(server.ask("POST", f"{AT}/{verb}", body), 413, "TooLarge", "taken")
    wrong(server.ask("POST", f"{AT}/search", raw({}, rows), content_type=RAW), 413, "TooLarge", "query has 6 rows")
    line = b'{"id": "n", "features": [' + b"1, " * 1000 + b"1]}"
    wrong(server.ask("POST", f"{AT}/ingest", line), 413, "TooLarge", "line 1 has more than 2000 bytes")
    many = b"\n".join(lines(100))
    assert len(many) > 2000 and right(server.ask("POST", f"{AT}/ingest", many)) == {"count": 100}
    right(server.ask("POST", f"{AT}/search", {"query": rows[:5].tolist(), "k": 7}))
    wide = server.ask("POST", f"{AT}/search", {"query": [1.0] * 20, "k": 7})  # one wide query, not twenty
    wrong(wide, 422, "InvalidInput", "query has 20 features")


def test_a_body_without_a_length_is_measured(serving: Callable[..., Served]) -> None:
    server = serving(most_bytes=2000)
    parts = iter([b'{"query": [', b"1, " * 1000, b"1]}"])
    reply = server.pool.request("POST", f"{server.url}{AT}/search", body=parts, retries=False)
    assert reply.status == 413 and reply.json()["error"] == "TooLarge"


# ---- every request ----


def test_requests_have_ids(shared: Served) -> None:
    first, second = (shared.ask("GET", "/v1/health").headers["x-request-id"] for _ in range(2))
    assert first != second and len(first) == 32
    assert shared.ask("GET", "/v1/health", x_request_id="mine-7").headers["x-request-id"] == "mine-7"
    for bad in ("two words", "x" * 65, '"', ""):
        assert len(shared.ask("GET", "/v1/health", x_request_id=bad).headers["x-request-id"]) == 32
    reply = shared.ask("POST", f"{AT}/search", {"k": 1}, x_request_id="mine-8")
    wrong(reply, 422, "InvalidInput", "query")
    assert reply.json["request_id"] == "mine-8"


def test_answers_are_safe_in_a_browser(shared: Served) -> None:
    for reply in (
        shared.ask("GET", "/v1/health"),
        shared.ask("GET", "/nowhere"),
        shared.ask("POST", f"{AT}/search", b""),
    ):
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]


def test_what_is_not_there_is_told(shared: Served) -> None:
    for path in ("/v1/nothing", "/v1", "/v1/collections/c/nothing", "/v1/collections/c/search/more"):
        wrong(shared.ask("GET", path), 404, "NotFound", path)
    for verb in ("search", "add", "get"):
        wrong(
            shared.ask("POST", f"/v1/collections/none/{verb}", b"{}"),
            404,
            "NotFound",
            "collection is 'none'; there are c",
        )
    wrong(shared.ask("GET", "/v1/collections/none/count"), 404, "NotFound", "collection is 'none'")


def test_what_is_not_for_a_method_is_told(shared: Served) -> None:
    for method, path, allowed in (
        ("GET", f"{AT}/search", "POST"),
        ("DELETE", f"{AT}/add", "POST"),
        ("POST", f"{AT}/count", "GET"),
        ("PUT", "/v1/health", "GET"),
        ("PATCH", f"{AT}/stats", "GET"),
    ):
        reply = shared.ask(method, path, b"{}")
        wrong(reply, 405, "NotAllowed", method)
        assert allowed in reply.headers["allow"]
