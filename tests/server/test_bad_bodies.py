"""Bodies that are wrong in every way there is: refused in the one shape of errors, and the collection is as it was."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.collection.fixtures import DIM
from tests.server.process import Served
from tests.support.toys import toy

JSON, RAW = "application/json", "application/octet-stream"
AT = "/v1/collections/c"
ONE = [0.5] * DIM
ROWS = [ONE, ONE]
FEW = toy(2, DIM, 4, seed=5).X
NAN = FEW.copy()
NAN[1, 3] = np.nan
WRITES = ("add", "upsert")


def standing(server: Served) -> Any:
    told = [server.ask("GET", f"{AT}/{verb}").json for verb in ("stats", "versions", "count", "quality")]
    return (
        told,
        server.ask("POST", f"{AT}/search", {"query": ONE, "k": 400}).json,
        server.ask("POST", f"{AT}/verify").json,
    )


def text(**told: Any) -> bytes:
    return json.dumps(told).encode()


def raw(rows: np.ndarray | bytes, **told: Any) -> bytes:
    return text(**told) + b"\n" + (rows if isinstance(rows, bytes) else rows.astype("<f4").tobytes())


NO_JSON: list[bytes] = [
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
    ONE,
    [ROWS],
    [ONE[:-1], ONE[:-1]],
    [ONE, ONE[:-1]],
    [ONE, None],
    [ONE, "text"],
    [ONE, {}],
    [ONE, ["x"] * DIM],
    [ONE, [None] * DIM],
    [ONE, [[1.0]] * DIM],
    [ONE, [float("nan")] * DIM],
    [ONE, [float("inf")] * DIM],
    [ONE, [1e30] * DIM],
    [ONE, [10**400] * DIM],
    [ONE, ONE, ONE],
]
QUERIES: list[Any] = [*FEATURES[:5], *FEATURES[7:-1], [ONE[:-1]], ONE[:-1], [*ONE, 1.0]]
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
GOOD: dict[str, Any] = {"ids": ["n", "m"], "features": ROWS}
ASKED: dict[str, Any] = {"query": ONE}
THUMB: dict[str, Any] = {"query": ONE, "id": 5, "relevant": True}
CASES: list[tuple[str, bytes]] = [
    *((verb, body) for verb in VERBS for body in NO_JSON),
    *((verb, text(**{**GOOD, "features": wrong})) for verb in WRITES for wrong in FEATURES),
    *((verb, text(**{**GOOD, "ids": wrong})) for verb in WRITES for wrong in IDS),
    *((verb, text(**GOOD, labels=wrong)) for verb in WRITES for wrong in LABELS),
    *((verb, text(**GOOD, metadata=wrong)) for verb in WRITES for wrong in METADATA),
    *((verb, text(**GOOD, learn=wrong)) for verb in WRITES for wrong in (1, "true", None, [])),
    *((verb, text(**GOOD, more=1)) for verb in WRITES),
    ("add", text(ids=["n", 5], features=ROWS)),
    *((verb, text(ids=wrong)) for verb in ("delete", "get", "reconstruct") for wrong in (*IDS[:4], *IDS[6:])),
    ("delete", text(ids=[5, 5])),
    ("reconstruct", text(ids=["nobody"])),
    *(("learn", text(features=wrong, labels=[["a"], ["b"]])) for wrong in FEATURES),
    *(("learn", text(features=ROWS, labels=wrong)) for wrong in LABELS),
    *(("fit", text(features=wrong, labels=[["a"], ["b"]])) for wrong in FEATURES),
    ("fit", text(labels=[["a"]])),
    ("fit", text()),
    *(("search", text(query=wrong)) for wrong in QUERIES),
    *(("range_search", text(query=wrong, threshold=0)) for wrong in QUERIES),
    *(("range_search", text(**ASKED, threshold=wrong)) for wrong in (None, "0", [0], True, float("nan"), {})),
    *(("search", text(**ASKED, k=wrong)) for wrong in (0, -1, 1.5, "5", None, True, 2**63, 10**400, [1])),
    *(("search", text(**ASKED, version=wrong)) for wrong in (-1, 99, 1.5, "1", True, 2**63, 10**400)),
    *(("search", text(**ASKED, explain=wrong)) for wrong in (-1, 99, 1.5, "yes", None, 2**63, 10**400)),
    *(
        ("search", text(**ASKED, where=wrong))
        for wrong in (5, "odd", [], {"$nor": []}, {"a": []}, {"a": {"$gt": None}})
    ),
    ("search", text(**ASKED, where={"a": float("nan")})),
    ("search", text(**ASKED, where={"a": 10**400})),
    ("search", text(**ASKED, where={"a\0": 1})),
    ("search", text(**ASKED, surprise=1)),
    *(("feedback", text(**{**THUMB, "query": wrong})) for wrong in (*QUERIES, ROWS, [ONE])),
    *(
        ("feedback", text(**{**THUMB, "id": wrong}))
        for wrong in (None, "nobody", 1.5, True, [], [5, 5], {}, [[5]], 2**70)
    ),
    *(("feedback", text(**{**THUMB, "relevant": wrong})) for wrong in (None, 1, "yes", [], [True, True], 0.5)),
    *(("feedback", text(**THUMB, weight=wrong)) for wrong in (0, -1, 2, "1", None, float("nan"), True, 10**400)),
    *(("feedback", text(**THUMB, source=wrong)) for wrong in (None, 5, "a\nb", [])),
    *(("tag", text(version=wrong, name="n")) for wrong in (0, -1, 99, 1.5, "1", None, True, 2**63)),
    *(("tag", text(version=1, name=wrong)) for wrong in ("", " ", "a\nb", None, 5, [])),
    *(("rollback", text(version=wrong)) for wrong in (0, -1, 99, 1.5, "1", None, True, 2**63)),
]
RAWS: list[tuple[str, bytes]] = [
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
    ("search", raw(FEW[0], query=ONE)),
    ("search", raw(FEW[0], surprise=1)),
    ("search", b"null\n" + FEW.tobytes()),
    ("range_search", raw(FEW)),
    ("learn", raw(FEW)),
    ("learn", raw(FEW, labels=[["a"]])),
    ("learn", raw(NAN, labels=[["a"], ["b"]])),
    ("fit", raw(FEW[:1], labels=[["a"]])),
    ("fit", raw(b"")),
    ("feedback", raw(FEW, id=5, relevant=True)),
    ("feedback", raw(b"", id=5, relevant=True)),
    ("feedback", raw(NAN[1], id=5, relevant=True)),
]


def check(server: Served, verb: str, body: bytes, kind: str) -> None:
    reply = server.ask("POST", f"{AT}/{verb}", body, content_type=kind)
    about = f"{verb} {body[:200]!r}: {reply.status} {reply.data[:300]!r}"
    assert 400 <= reply.status < 500 and reply.headers["content-type"] == JSON, about
    told = reply.json
    assert told.keys() == {"error", "message", "status", "request_id"} and told["status"] == reply.status, about
    assert told["message"] and "Traceback" not in told["message"] and len(told["message"]) < 2000, about


@pytest.mark.parametrize("verb", VERBS)
def test_wrong_json_changes_nothing(shared: Served, verb: str) -> None:
    before = standing(shared)
    for name, body in CASES:
        if name == verb:
            check(shared, verb, body, JSON)
    assert standing(shared) == before


def test_wrong_raw_bodies_change_nothing(shared: Served) -> None:
    before = standing(shared)
    for verb, body in RAWS:
        check(shared, verb, body, RAW)
    assert standing(shared) == before


def test_random_bytes_change_nothing(shared: Served) -> None:
    rng, before = np.random.default_rng(7), standing(shared)
    for verb in VERBS:
        for kind in (JSON, RAW):
            check(shared, verb, rng.bytes(int(rng.integers(1, 5000))), kind)
    assert standing(shared) == before


def test_other_types_of_content_are_refused(shared: Served) -> None:
    before = standing(shared)
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "nonsense",
        "\xe4",
    ):
        check(shared, "add", text(**GOOD), kind)
    for verb in ("delete", "get", "tag", "rollback"):
        check(shared, verb, text(ids=[5], version=1), RAW)
    assert standing(shared) == before


def test_wrong_questions_are_refused(shared: Served) -> None:
    before = standing(shared)
    for verb, asked in (
        ("sample", "count=0"),
        ("sample", "count=-1"),
        ("sample", "count=10001"),
        ("sample", "count=x"),
        ("sample", "count=1.5"),
        ("sample", "count="),
    ):
        reply = shared.ask("GET", f"{AT}/{verb}?{asked}")
        assert reply.status == 422 and "count" in reply.json["message"], reply.data
    for asked in ("replace=x", "learn=2", "learn="):
        reply = shared.ask("POST", f"{AT}/ingest?{asked}", text(id="n", features=ONE))
        assert reply.status == 422 and reply.json["error"] == "InvalidInput", reply.data
    assert standing(shared) == before


# ---- what is no proper HTTP ----


def said(server: Served, request: bytes) -> bytes:
    """What the server says to these bytes, after which nothing more comes."""
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


def headed(verb: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {AT}/{verb} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def test_lengths_that_lie_change_nothing(shared: Served, caplog: pytest.LogCaptureFixture) -> None:
    before, body = standing(shared), text(**GOOD)
    row = text(id="n", features=ONE)
    for verb, sent in (("add", body), ("search", text(query=ONE)), ("ingest", row + b"\n" + row)):
        said(shared, headed(verb, sent, f"Content-Length: {len(sent) + 10}"))  # ends early
        said(shared, headed(verb, sent[: len(sent) // 2], f"Content-Length: {len(sent)}"))
        short = said(shared, headed(verb, sent, f"Content-Length: {len(sent) - 10}"))  # the rest is no request
        assert short.split()[1] in (b"400", b"422")
        for length in ("-5", "x", "1e3", ""):
            assert b" 400 " in said(shared, headed(verb, sent, f"Content-Length: {length}")).split(b"\r\n")[0]
        huge = said(shared, headed(verb, sent, "Content-Length: 99999999999"))
        assert verb == "ingest" or b" 413 " in huge.split(b"\r\n")[0]
        parts = b"%x\r\n%b\r\n" % (len(sent) - 10, sent[:-10])
        said(shared, headed(verb, parts, "Transfer-Encoding: chunked"))  # no last chunk
        said(shared, headed(verb, b"zz\r\nnonsense\r\n", "Transfer-Encoding: chunked"))
        said(shared, headed(verb, b"", "Content-Length: 5"))
    assert standing(shared) == before
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
