"""Invalid bodies of every kind are refused with the one shape of errors, and change nothing."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.collection.fixtures import DIM
from tests.server.live_server import LiveServer
from tests.support.toys import toy

JSON, RAW = "application/json", "application/octet-stream"
PATH = "/v1/collections/c"
VECTOR = [0.5] * DIM
ROWS = [VECTOR, VECTOR]
FEW = toy(2, DIM, 4, seed=5).X
NAN = FEW.copy()
NAN[1, 3] = np.nan
WRITES = ("add", "upsert")


def snapshot(server: LiveServer) -> Any:
    """Return everything that requests can see of the collection."""
    stats = [server.request("GET", f"{PATH}/{verb}").json for verb in ("stats", "versions", "count", "quality")]
    return (
        stats,
        server.request("POST", f"{PATH}/search", {"query": VECTOR, "k": 400}).json,
        server.request("POST", f"{PATH}/verify").json,
    )


def text(**body: Any) -> bytes:
    return json.dumps(body).encode()


def raw(rows: np.ndarray | bytes, **body: Any) -> bytes:
    return text(**body) + b"\n" + (rows if isinstance(rows, bytes) else rows.astype("<f4").tobytes())


NOT_JSON: list[bytes] = [
    b"",
    b" ",
    b"{",
    b'{"ids": [1',
    b'{"ids": [1]} trailing',
    b"null",
    b"[]",
    b'"text"',
    b"12",
    b"NaN",
    b"\xff\xfe\x00",
    b'{"ids": ["\xff"]}',
    b'{"ids": ["\\ud800"]}',
    b"\xef\xbb\xbf{}",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"ids": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b"\x00" * 100,
    b'{"ids": [' + b"9" * 10_000 + b"]}",
]
VERBS = (
    "add",
    "upsert",
    "delete",
    "get",
    "reconstruct",
    "search",
    "range_search",
    "learn",
    "fit",
    "feedback",
    "tag",
    "rollback",
)
FEATURES: list[Any] = [
    None,
    5,
    "text",
    {},
    [],
    [[]],
    VECTOR,
    [ROWS],
    [VECTOR[:-1], VECTOR[:-1]],
    [VECTOR, VECTOR[:-1]],
    [VECTOR, None],
    [VECTOR, "text"],
    [VECTOR, {}],
    [VECTOR, ["x"] * DIM],
    [VECTOR, [None] * DIM],
    [VECTOR, [[1.0]] * DIM],
    [VECTOR, [float("nan")] * DIM],
    [VECTOR, [float("inf")] * DIM],
    [VECTOR, [1e30] * DIM],
    [VECTOR, [10**400] * DIM],
    [VECTOR, VECTOR, VECTOR],
]
QUERIES: list[Any] = [*FEATURES[:5], *FEATURES[7:-1], [VECTOR[:-1]], VECTOR[:-1], [*VECTOR, 1.0]]
IDS: list[Any] = [
    None,
    5,
    "text",
    {},
    ["n"],
    ["n", "n"],
    ["n", 1.5],
    ["n", True],
    ["n", None],
    ["n", ["m"]],
    ["n", ""],
    ["n", "a\nb"],
    ["n", 2**63],
    ["n", -(2**63) - 1],
    ["n", 1e400],
]
LABELS: list[Any] = [
    5,
    "text",
    {},
    ["a", "b"],
    [["a"]],
    [["a"], None],
    [["a"], [None]],
    [["a"], [["b"]]],
    [["a"], [{}]],
    [["a"], [True]],
    [["a"], [float("nan")]],
    [["a"], ["b\0"]],
]
METADATA: list[Any] = [
    5,
    "text",
    {},
    [{}],
    [{}, 5],
    [{}, "text"],
    [{}, []],
    [{}, {"a": float("nan")}],
    [{}, {"a": float("inf")}],
    [{}, {"a": "\0"}],
]
VALID: dict[str, Any] = {"ids": ["n", "m"], "features": ROWS}
SEARCH: dict[str, Any] = {"query": VECTOR}
VOTE: dict[str, Any] = {"query": VECTOR, "id": 5, "vote": "up"}
CASES: list[tuple[str, bytes]] = [
    *((verb, body) for verb in VERBS for body in NOT_JSON),
    *((verb, text(**{**VALID, "features": invalid})) for verb in WRITES for invalid in FEATURES),
    *((verb, text(**{**VALID, "ids": invalid})) for verb in WRITES for invalid in IDS),
    *((verb, text(**VALID, labels=invalid)) for verb in WRITES for invalid in LABELS),
    *((verb, text(**VALID, metadata=invalid)) for verb in WRITES for invalid in METADATA),
    *((verb, text(**VALID, learn=invalid)) for verb in WRITES for invalid in (1, "true", None, [])),
    *((verb, text(**VALID, more=1)) for verb in WRITES),
    ("add", text(ids=["n", 5], features=ROWS)),
    *((verb, text(ids=invalid)) for verb in ("delete", "get", "reconstruct") for invalid in (*IDS[:4], *IDS[6:])),
    ("delete", text(ids=[5, 5])),
    ("reconstruct", text(ids=["nobody"])),
    *(("learn", text(features=invalid, labels=[["a"], ["b"]])) for invalid in FEATURES),
    *(("learn", text(features=ROWS, labels=invalid)) for invalid in LABELS),
    *(("fit", text(features=invalid, labels=[["a"], ["b"]])) for invalid in FEATURES),
    ("fit", text(labels=[["a"]])),
    ("fit", text()),
    *(("search", text(query=invalid)) for invalid in QUERIES),
    *(("range_search", text(query=invalid, threshold=0)) for invalid in QUERIES),
    *(("range_search", text(**SEARCH, threshold=invalid)) for invalid in (None, "0", [0], True, float("nan"), {})),
    *(("search", text(**SEARCH, k=invalid)) for invalid in (0, -1, 1.5, "5", None, True, 2**63, 10**400, [1])),
    *(("search", text(**SEARCH, version=invalid)) for invalid in (-1, 99, 1.5, "1", True, 2**63, 10**400)),
    *(("search", text(**SEARCH, explain=invalid)) for invalid in (-1, 99, 1.5, "yes", None, 2**63, 10**400)),
    *(
        ("search", text(**SEARCH, where=invalid))
        for invalid in (5, "odd", [], {"$nor": []}, {"a": []}, {"a": {"$gt": None}})
    ),
    ("search", text(**SEARCH, where={"a": float("nan")})),
    ("search", text(**SEARCH, where={"a": 10**400})),
    ("search", text(**SEARCH, where={"a\0": 1})),
    ("search", text(**SEARCH, surprise=1)),
    *(("feedback", text(**{**VOTE, "query": invalid})) for invalid in (*QUERIES, ROWS, [VECTOR])),
    *(
        ("feedback", text(**{**VOTE, "id": invalid}))
        for invalid in (None, "nobody", 1.5, True, [], [5, 5], {}, [[5]], 2**70)
    ),
    *(("feedback", text(**{**VOTE, "vote": invalid})) for invalid in (None, 1.5, "yes", [], [1, 1], float("nan"))),
    *(("feedback", text(**VOTE, position=invalid)) for invalid in (0, -1, "1", 1.5, [], True, 10**400)),
    *(("feedback", text(**VOTE, source=invalid)) for invalid in (None, 5, "a\nb", [])),
    *(("tag", text(version=invalid, name="n")) for invalid in (0, -1, 99, 1.5, "1", None, True, 2**63)),
    *(("tag", text(version=1, name=invalid)) for invalid in ("", " ", "a\nb", None, 5, [])),
    *(("rollback", text(version=invalid)) for invalid in (0, -1, 99, 1.5, "1", None, True, 2**63)),
]
RAW_CASES: list[tuple[str, bytes]] = [
    ("add", raw(FEW, ids=["n"])),
    ("add", raw(FEW, ids=["n", "n"])),
    ("add", raw(FEW, ids=["n", 5])),
    ("add", raw(FEW, ids=["n", "m"], features=ROWS)),
    ("add", raw(NAN, ids=["n", "m"])),
    ("add", raw(FEW * np.inf, ids=["n", "m"])),
    ("add", raw(FEW * np.float32(1e30), ids=["n", "m"])),
    ("add", raw(FEW[:, :5], ids=["n", "m"])),
    ("add", raw(FEW.tobytes()[:-1], ids=["n", "m"])),
    ("add", raw(FEW.tobytes()[: 4 * DIM], ids=["n", "m"])),
    ("add", raw(b"", ids=["n", "m"])),
    ("add", FEW.tobytes()),
    ("add", b"\n" + FEW.tobytes()),
    ("add", b"[]\n" + FEW.tobytes()),
    ("add", b'{"ids": ["n", "m"]\n' + FEW.tobytes()),
    ("add", b"[" * 100_000 + b"\n" + FEW.tobytes()),
    ("add", b""),
    ("upsert", raw(NAN, ids=["n", "m"])),
    ("search", raw(NAN)),
    ("search", raw(FEW.tobytes()[:-3])),
    ("search", raw(FEW[0], k=0)),
    ("search", raw(FEW[0], query=VECTOR)),
    ("search", raw(FEW[0], surprise=1)),
    ("search", b"null\n" + FEW.tobytes()),
    ("range_search", raw(FEW)),
    ("learn", raw(FEW)),
    ("learn", raw(FEW, labels=[["a"]])),
    ("learn", raw(NAN, labels=[["a"], ["b"]])),
    ("fit", raw(FEW[:1], labels=[["a"]])),
    ("fit", raw(b"")),
    ("feedback", raw(FEW, id=5, vote=True)),
    ("feedback", raw(b"", id=5, vote=True)),
    ("feedback", raw(NAN[1], id=5, vote=True)),
]


def check(server: LiveServer, verb: str, body: bytes, kind: str) -> None:
    reply = server.request("POST", f"{PATH}/{verb}", body, content_type=kind)
    about = f"{verb} {body[:200]!r}: {reply.status} {reply.data[:300]!r}"
    assert 400 <= reply.status < 500 and reply.headers["content-type"] == JSON, about
    error = reply.json
    assert error.keys() == {"error", "message", "status", "request_id"} and error["status"] == reply.status, about
    assert error["message"] and "Traceback" not in error["message"] and len(error["message"]) < 2000, about


@pytest.mark.parametrize("verb", VERBS)
def test_invalid_json_changes_nothing(shared: LiveServer, verb: str) -> None:
    before = snapshot(shared)
    for name, body in CASES:
        if name == verb:
            check(shared, verb, body, JSON)
    assert snapshot(shared) == before


@pytest.mark.medium
def test_invalid_raw_bodies_change_nothing(shared: LiveServer) -> None:
    before = snapshot(shared)
    for verb, body in RAW_CASES:
        check(shared, verb, body, RAW)
    assert snapshot(shared) == before


def test_one_invalid_vote_of_many_changes_nothing(shared: LiveServer) -> None:
    before, good = snapshot(shared), text(**VOTE)
    for line in (
        b"{",
        b"[]",
        b"5",
        text(**{**VOTE, "vote": 2}),
        text(**{**VOTE, "id": "nobody"}),
        text(**VOTE, more=1),
    ):
        check(shared, "feedback_many", good + b"\n\n" + line, "application/x-ndjson")
    check(shared, "feedback_many", b"\n".join([good] * 10_001), "application/x-ndjson")
    assert snapshot(shared) == before


def test_random_bytes_change_nothing(shared: LiveServer) -> None:
    rng, before = np.random.default_rng(7), snapshot(shared)
    for verb in VERBS:
        for kind in (JSON, RAW):
            check(shared, verb, rng.bytes(int(rng.integers(1, 5000))), kind)
    assert snapshot(shared) == before


def test_other_content_types_are_refused(shared: LiveServer) -> None:
    before = snapshot(shared)
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "nonsense",
        "\xe4",
    ):
        check(shared, "add", text(**VALID), kind)
    for verb in ("delete", "get", "tag", "rollback"):
        check(shared, verb, text(ids=[5], version=1), RAW)
    assert snapshot(shared) == before


def test_invalid_parameters_are_refused(shared: LiveServer) -> None:
    before = snapshot(shared)
    for verb, parameters in (
        ("sample", "count=0"),
        ("sample", "count=-1"),
        ("sample", "count=10001"),
        ("sample", "count=x"),
        ("sample", "count=1.5"),
        ("sample", "count="),
    ):
        reply = shared.request("GET", f"{PATH}/{verb}?{parameters}")
        assert reply.status == 422 and "count" in reply.json["message"], reply.data
    for parameters in ("replace=x", "learn=2", "learn="):
        reply = shared.request("POST", f"{PATH}/ingest?{parameters}", text(id="n", features=VECTOR))
        assert reply.status == 422 and reply.json["error"] == "InvalidInput", reply.data
    assert snapshot(shared) == before


# ---- malformed HTTP ----


def exchange(server: LiveServer, request: bytes) -> bytes:
    """Send these bytes, and return all that the server answers."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while part := connection.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
        return answer


def http_post(verb: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {PATH}/{verb} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def test_false_content_lengths_change_nothing(shared: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    before, body = snapshot(shared), text(**VALID)
    row = text(id="n", features=VECTOR)
    for verb, sent in (("add", body), ("search", text(query=VECTOR)), ("ingest", row + b"\n" + row)):
        exchange(shared, http_post(verb, sent, f"Content-Length: {len(sent) + 10}"))  # ends early
        exchange(shared, http_post(verb, sent[: len(sent) // 2], f"Content-Length: {len(sent)}"))
        short = exchange(
            shared, http_post(verb, sent, f"Content-Length: {len(sent) - 10}")
        )  # the rest is not a request
        assert short.split()[1] in (b"400", b"422")
        for length in ("-5", "x", "1e3", ""):
            assert b" 400 " in exchange(shared, http_post(verb, sent, f"Content-Length: {length}")).split(b"\r\n")[0]
        huge = exchange(shared, http_post(verb, sent, "Content-Length: 99999999999"))
        assert verb == "ingest" or b" 413 " in huge.split(b"\r\n")[0]
        parts = b"%x\r\n%b\r\n" % (len(sent) - 10, sent[:-10])
        exchange(shared, http_post(verb, parts, "Transfer-Encoding: chunked"))  # no last chunk
        exchange(shared, http_post(verb, b"zz\r\nnonsense\r\n", "Transfer-Encoding: chunked"))
        exchange(shared, http_post(verb, b"", "Content-Length: 5"))
    assert snapshot(shared) == before
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
