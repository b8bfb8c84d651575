"""A served collection of ready codes: texts in JSON, raw bytes, and the clients, answer as the collection does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import Collection, codes
from stillhash.errors import InvalidInput
from tests.client.awaited_client import CLIENTS
from tests.collection.test_codes_only import BITS, brute_force, some_codes
from tests.server.live_server import LiveServer, live_server
from tests.server.test_pages import hits

STORED, QUERIES = some_codes(120), some_codes(3, seed=4)
TEXTS = codes.to_hex(QUERIES, BITS)
PATH = "/v1/collections/c/"
RAW = "application/octet-stream"


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Collection]:
    with stillhash.open(tmp_path / "local", bits=BITS, codes_only=True) as one:
        one.add(range(120), STORED, None, [{"n": r} for r in range(120)])
        yield one


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with live_server({"c": stillhash.open(tmp_path / "served", bits=BITS, codes_only=True)}) as one:
        yield one


def hits_of(answers: Any) -> list[Any]:
    return [[(hit["id"], hit["score"], hit["distance"]) for hit in answer["hits"]] for answer in answers]


def expected(answers: Any) -> list[Any]:
    return [[(hit.id, hit.score, hit.distance) for hit in answer.hits] for answer in answers]


def test_codes_travel_as_texts_and_as_bytes(server: LiveServer, local: Collection) -> None:
    post = lambda verb, body, **headers: server.request("POST", PATH + verb, body, **headers)  # noqa: E731
    metadata = [{"n": r} for r in range(120)]
    first = {"ids": list(range(60)), "features": codes.to_hex(STORED[:60], BITS), "metadata": metadata[:60]}
    assert post("add", first).json == {"count": 60}
    head = json.dumps({"ids": list(range(60, 90)), "metadata": metadata[60:90]}).encode()
    assert post("upsert", head + b"\n" + STORED[60:90].tobytes(), content_type=RAW).json == {"count": 30}
    rows = [{"id": r, "features": codes.to_hex(STORED[r], BITS), "metadata": metadata[r]} for r in range(90, 120)]
    lines = [json.dumps(row) for row in rows]
    assert post("ingest", "\n".join(lines).encode(), content_type="application/x-ndjson").json == {"count": 30}
    answers = post("search", {"query": TEXTS, "k": 7, "where": {"n": {"$lt": 100}}}).json["answers"]
    assert hits_of(answers) == expected(local.search(QUERIES, 7, where={"n": {"$lt": 100}}))
    assert hits_of(post("search", {"query": TEXTS[0]}).json["answers"]) == expected(local.search(QUERIES[:1]))
    raw = json.dumps({"distance": 9}).encode() + b"\n" + QUERIES.tobytes()
    in_range = post("range_search", raw, content_type=RAW).json["answers"]
    assert hits_of(in_range) == expected(local.range_search(QUERIES, distance=9))
    weights = np.random.default_rng(0).normal(size=(2, BITS)).astype(np.float32)
    by_weights = post("search", {"weights": weights.tolist(), "k": 5}).json["answers"]
    assert hits_of(by_weights) == expected(local.search(weights=weights, k=5))
    assert post("reconstruct", {"ids": [5, 7]}).json["features"] == codes.to_hex(STORED[[5, 7]], BITS)
    assert post("feedback", {"query": TEXTS[0], "id": 44, "vote": "up"}).status == 200
    assert post("search", {"query": TEXTS[0], "k": 1}).json["answers"][0]["hits"][0]["id"] == 44
    vote = json.dumps({"query": TEXTS[1], "id": 45, "vote": 1}).encode()
    assert post("feedback_many", vote, content_type="application/x-ndjson").status == 200
    assert post("search", {"query": TEXTS[1], "k": 1}).json["answers"][0]["hits"][0]["id"] == 45
    assert server.request("GET", PATH + "stats").json["codes_only"] is True


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("add", {"ids": [1000], "features": [[0.5] * BITS]}),
        ("add", {"ids": [1000], "features": [TEXTS[0][1:]]}),
        ("add", {"ids": [1000], "features": ["x" * 11]}),
        ("search", {"query": [0.5] * BITS}),
        ("search", {"query": "12"}),
        ("search", {"query": 7}),
        ("search", {}),
        ("search", {"query": TEXTS[0], "weights": [1.0] * BITS}),
        ("search", {"weights": "12"}),
        ("range_search", {"query": TEXTS[0]}),
        ("range_search", {"query": TEXTS[0], "distance": 1, "threshold": 1.0}),
        ("range_search", {"query": TEXTS[0], "distance": -1}),
        ("feedback", {"query": [1.0] * BITS, "id": 1, "vote": 1}),
        ("learn", {"features": [[1.0] * BITS], "labels": [["x"]]}),
        ("fit", {"features": [TEXTS[0]] * 2}),
    ],
)
def test_what_is_no_code_is_refused(server: LiveServer, verb: str, body: Any) -> None:
    reply = server.request("POST", PATH + verb, body)
    assert reply.status in (409, 422), reply.json
    assert server.request("GET", PATH + "count").json == {"count": 0}


def test_rows_of_other_lengths_are_refused(server: LiveServer) -> None:
    reply = server.request("POST", PATH + "search", b"{}\n" + bytes(BITS * 4 + 1), content_type=RAW)
    assert reply.status == 422 and "codes of 44 bits" in reply.json["message"]


@pytest.mark.medium
@pytest.mark.parametrize("new_client", CLIENTS, ids=["blocking", "async"])
def test_clients_take_codes(server: LiveServer, local: Collection, new_client: Any) -> None:
    with new_client(server.url) as client:
        assert client.add(range(100), STORED[:100], None, [{"n": r} for r in range(100)]) == 100
        assert (
            client.upsert(range(100, 120), codes.to_hex(STORED[100:], BITS), None, [{"n": r} for r in range(100, 120)])
            == 20
        )
        assert client.search(QUERIES, 9) == local.search(QUERIES, 9)
        assert client.search(TEXTS[1]).hits[0].id == local.search(QUERIES[1]).hits[0].id
        assert client.search(QUERIES[1], 3).hits[0].distance == local.search(QUERIES[1], 3).hits[0].distance
        in_range = client.range_search(QUERIES, distance=9)
        assert [[hit.id for hit in one.hits] for one in in_range] == [
            [hit.id for hit in one.hits] for one in local.range_search(QUERIES, distance=9)
        ]
        weights = np.linspace(-1, 1, BITS)
        ids = [hit.id for hit in local.search(weights=weights).hits]
        assert [hit.id for hit in client.search(weights=weights).hits] == ids
        assert np.array_equal(client.reconstruct([3, 119]), STORED[[3, 119]])
        assert client.feedback(QUERIES[0], 44, "up") == local.feedback(QUERIES[0], 44, "up")
        assert client.search(QUERIES[0], 1).hits[0].id == 44
        for bad in (np.ones(BITS), STORED[0][:3], "12"):
            with pytest.raises(InvalidInput):
                client.search(bad)
            with pytest.raises(InvalidInput):
                client.add([1000], [bad])


def test_the_page_shows_and_takes_codes(server: LiveServer) -> None:
    server.request("POST", PATH + "add", {"ids": list(range(120)), "features": codes.to_hex(STORED, BITS)})
    assert server.request("GET", "/c/c?like=7").status == 200
    assert server.request("GET", "/c/c/explain?like=7&id=8&against=0").status in (200, 404)
    form = "application/x-www-form-urlencoded"
    reply = server.request("POST", "/c/c/upload", f"numbers={TEXTS[0]}".encode(), content_type=form)
    assert reply.status == 303
    page = server.request("GET", reply.headers["location"])
    expected_ids = [str(row) for _, row in brute_force(STORED, QUERIES[0])]
    assert hits(page, "then") == hits(page, "now") == expected_ids[:12]
    for bad in ("numbers=12", "numbers=[1,2]", "numbers=zz"):
        assert server.request("POST", "/c/c/upload", bad.encode(), content_type=form).status == 422
