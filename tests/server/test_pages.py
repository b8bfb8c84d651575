"""The pages over HTTP: search, uploads, thumbs, learning, sign-in, and errors as a visitor sees them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

import stillhash
from stillhash.errors import InvalidInput
from stillhash.server import Settings
from tests.collection.test_doubtful_labels import create, noisy_rows
from tests.server.live_server import LiveServer, Reply, live_server
from tests.server.test_query_cache import as_npy
from tests.server.test_thumbnails import DOT, data_uri

FORM = "application/x-www-form-urlencoded"


def post(server: LiveServer, path: str, fields: dict[str, str], **headers: str) -> Reply:
    return server.request("POST", path, urlencode(fields).encode(), content_type=FORM, **headers)


def upload(server: LiveServer, data: bytes = b"", numbers: str = "", name: str = "a file") -> Reply:
    """Send the form of the search page."""
    parts = [
        f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode() + data,
        b'Content-Disposition: form-data; name="numbers"\r\n\r\n' + numbers.encode(),
    ]
    body = b"".join(b"--edge\r\n" + part + b"\r\n" for part in parts) + b"--edge--\r\n"
    return server.request("POST", "/c/c/upload", body, content_type="multipart/form-data; boundary=edge")


def hits(page: Reply, side: str = "now") -> list[str]:
    """Return the items of a column, best first."""
    column = page.data.decode().partition(f'class="column {side}"')[2].partition("</ol>")[0]
    return [json.loads(item) for item in re.findall(r'hx-vals=\'{"id": ("[^\']*?"), "left"', column)]


def thumbs(page: Reply) -> list[tuple[str, str]]:
    """Return the thumbs that are set: up or down, and the item."""
    matches = re.findall(r'class="thumb (\w+)"[^>]*item (\S+) is[^>]*aria-pressed="true"', page.data.decode())
    return [(way, item) for way, item in matches]


# ---- views ----


def test_start_redirects_to_the_first_collection(shared: LiveServer) -> None:
    reply = shared.request("GET", "/")
    assert (reply.status, reply.headers["location"]) == (307, "/c/c")


@pytest.mark.parametrize(
    "path", ["/c/c", "/c/c?like=7", "/c/c?like=7&against=1", "/c/c/learning", "/c/c/collection", "/c/c/doubtful_labels"]
)
def test_pages_have_no_inline_scripts(shared: LiveServer, path: str) -> None:
    reply = shared.request("GET", path)
    text = reply.data.decode()
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/html")
    assert text.count("<h1") == 1 and text.count('aria-current="page"') == 1
    assert all(' src="/static/' in tag for tag in re.findall("<script[^>]*>", text))
    assert " onclick" not in text and "http://" not in text and "https://" not in text


def test_static_files_are_served_here(shared: LiveServer) -> None:
    text = shared.request("GET", "/c/c/learning").data.decode()
    for path in set(re.findall(r'(?:src|href)="(/static/[^"]+)"', text)):
        assert shared.request("GET", path).status == 200, path
    assert shared.request("GET", "/static/../app.py").status == 404
    assert shared.request("GET", "/static/%2e%2e/app.py").status == 404


def test_pages_are_not_in_the_api(shared: LiveServer) -> None:
    assert all(path.startswith("/v1/") for path in shared.request("GET", "/v1/openapi.json").json["paths"])


def test_labels_to_check_are_listed(tmp_path: Path) -> None:
    collection = create(tmp_path / "c", noisy_rows(0.2, 800))
    expected, share = collection.doubtful_labels(100), collection.stats()["wrong_label_share"]
    with live_server({"c": collection}) as server:
        page = server.request("GET", "/c/c/learning").data.decode()
        assert 'href="/c/c/doubtful_labels"' in page and f"{100 * share:.1f} %" in page
        text = server.request("GET", "/c/c/doubtful_labels").data.decode()
        rows = text.split('<li class="doubt"')[1:]
        assert len(rows) == len(expected)
        for row, item in zip(rows, expected, strict=True):
            assert f"<bdi>{item.id}</bdi>" in row and f"{100 * item.chance:.0f} %" in row
            assert re.findall(r"<li><bdi>(.*?)</bdi>", row) == [*item.labels, *item.predicted]
        picture = re.search(r'<img src="([^"]+)"', rows[0])
        assert picture and server.request("GET", picture[1]).status == 200
        assert f"{100 * share:.1f} %" in text


def test_labels_to_check_of_too_few_rows(shared: LiveServer) -> None:
    text = shared.request("GET", "/c/c/doubtful_labels").data.decode()
    assert "No items to check" in text and "once a few hundred of them are learnt" in text


def test_both_columns_equal_the_library(shared: LiveServer) -> None:
    page = shared.request("GET", "/c/c?like=7")
    collection = shared.executor().collection
    query = collection.reconstruct([7])[0]
    for side, version in (("then", 0), ("now", None)):
        expected = [str(hit.id) for hit in collection.search(query, 13, version=version).hits if hit.id != 7]
        assert hits(page, side) == expected[:12]


def test_random_item_keeps_the_compared_version(shared: LiveServer) -> None:
    reply = shared.request("GET", "/c/c?random=1&against=1")
    assert reply.status == 303 and re.fullmatch(r"/c/c\?like=\d+&against=1", reply.headers["location"])


def test_ids_are_strings_or_integers(tmp_path: Path) -> None:
    collection = stillhash.open(tmp_path / "c", 8, 16)
    ids: list[Any] = [7, "7", "seven", '"', "a&b=c#d", "-1"]
    collection.add(ids, np.random.default_rng(0).standard_normal((len(ids), 8)))
    with live_server({"c": collection}) as server:
        for typed in ("7", '"7"', "seven", '"seven"', '"', "a&b=c#d", "-1", '"-1"'):
            reply = server.request("GET", f"/c/c?{urlencode({'like': typed})}")
            assert reply.status == 200 and "cosine of raw features" in reply.data.decode(), typed
        for typed in ("8", "[7]", "true", "7.0", "9" * 30, "\n", "\0"):
            assert server.request("GET", f"/c/c?{urlencode({'like': typed})}").status == 404, typed
        for typed in ("9" * 5000, "[" * 5000):  # no item has an id of this length
            assert server.request("GET", f"/c/c?{urlencode({'like': typed})}").status == 422, typed


def test_empty_collection_has_its_own_pages(tmp_path: Path) -> None:
    with live_server({"c": stillhash.open(tmp_path / "c", 8, 16)}) as server:
        for path, text in (("", "Nothing is stored"), ("?random=1", "Nothing is stored"), ("/learning", "No version")):
            reply = server.request("GET", f"/c/c{path}")
            assert reply.status == 200 and text in reply.data.decode()
        assert "empty" in server.request("GET", "/c/c/collection").data.decode()


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/c/nope", 404, "Available: c"),
        ("/c/nope/learning", 404, "Available: c"),
        ("/c/c?like=zzz", 404, "No item"),
        ("/c/c?q=zzz", 404, "no longer remembered"),
        ("/c/c?like=7&against=99", 422, "version"),
        ("/c/c?like=7&against=x", 422, "against"),
        ("/c/c?like=7&against=-1", 422, "against"),
        ("/c/c/explain", 422, "id"),
    ],
)
def test_errors_are_pages(shared: LiveServer, path: str, status: int, text: str) -> None:
    reply = shared.request("GET", path)
    assert reply.status == status and reply.headers["content-type"].startswith("text/html")
    assert text.lower() in reply.data.decode().lower()
    error = shared.request("GET", path, hx_request="true")
    if "?" not in path:
        assert error.status == status and error.json["status"] == status  # the script shows its message


def test_texts_of_items_are_escaped(tmp_path: Path) -> None:
    bad = "<script>alert('1')</script>"
    collection = stillhash.open(tmp_path / "c", 8, 16)
    features = np.random.default_rng(0).standard_normal((5, 8))
    collection.add([bad, *range(4)], features, [[bad]] * 5, [{"image": bad}] * 5)
    with live_server({"<script>c": collection}) as server:
        queries = [f"?{urlencode({'like': id})}" for id in (bad, bad * 2, 1)]
        for path in ("", "/learning", "/collection", *queries):
            reply = server.request("GET", f"/c/%3Cscript%3Ec{path}")
            assert b"&lt;script&gt;c" in reply.data and b"<script>" not in reply.data


# ---- uploads ----


@pytest.mark.parametrize("form", ["npy", "json", "csv", "pasted"])
def test_vector_can_be_uploaded(shared: LiveServer, form: str) -> None:
    vector = np.linspace(1, 4, 8)
    row = ", ".join(map(str, vector))
    data = {"npy": as_npy(vector), "json": f"[{row}]".encode(), "csv": row.encode(), "pasted": b""}[form]
    reply = upload(shared, data, f"[{row}]" if form == "pasted" else "", "q.txt")
    assert reply.status == 303
    page = shared.request("GET", reply.headers["location"])
    collection = shared.executor().collection
    assert hits(page) == [str(hit.id) for hit in collection.search(vector, 12).hits]
    token = reply.headers["location"].partition("q=")[2]
    assert shared.request("GET", f"/c/c/picture?q={token}").headers["content-type"] == "image/svg+xml"
    assert shared.request("GET", f"/c/c/explain?q={token}&id={hits(page)[0]}").status == 200


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "file:"),
        (b"[1, 2]", "2 features"),
        (b"[NaN, 1, 1, 1, 1, 1, 1, 1]", "NaN"),
        (b"nonsense", "file:"),
        (DOT, "query:"),
        (bytes(9 << 20), "at most"),
    ],
    ids=["nothing", "short", "not a number", "text", "image", "large"],
)
def test_invalid_uploads_are_shown_on_the_page(shared: LiveServer, data: bytes, text: str) -> None:
    reply = upload(shared, data)
    assert reply.status in (413, 422) and text.lower() in reply.data.decode().lower()
    assert 'id="search"' in reply.data.decode()  # the forms are there to try again


def test_image_is_encoded(serving: Callable[..., LiveServer]) -> None:
    class Encoder:
        has_text = False

        def image(self, data: bytes) -> Any:
            if data != DOT:
                raise InvalidInput("this is not a picture")
            return np.ones(8, np.float32)

    server = serving(Encoder())
    reply = upload(server, DOT, name="<dot>.png")
    assert reply.status == 303
    page = server.request("GET", reply.headers["location"])
    assert b"&lt;dot&gt;.png" in page.data and len(hits(page)) == 12
    token = reply.headers["location"].partition("q=")[2]
    assert server.request("GET", f"/c/c/picture?q={token}").data == DOT
    assert "This is not a picture." in upload(server, DOT + b"x").data.decode()


# ---- thumbs, versions, upkeep ----


def test_thumb_is_learnt_and_forgotten_by_a_rollback(serving: Callable[..., LiveServer]) -> None:
    server = serving()
    collection = server.executor().collection
    page, version = server.request("GET", "/c/c?like=7"), collection.stats()["version"]
    before = hits(page)
    assert thumbs(page) == []
    for up, way in (("0", "down"), ("1", "up"), ("0", "down")):  # the last thumb counts
        reply = post(server, "/c/c/thumb", {"like": "7", "id": before[0], "up": up, "against": "0"}, hx_request="true")
        assert reply.status == 200 and b"Learnt as version" in reply.data
        page = server.request("GET", "/c/c?like=7")
        assert hits(page) == hits(reply)
        assert thumbs(page) in ([(way, before[0])], [])  # none, if it is no longer a hit
    assert hits(page) != before
    assert collection.stats()["feedback"] == 1
    reply = post(server, "/c/c/rollback", {"version": str(version)}, hx_request="true")
    assert reply.status == 200 and b"restored as version" in reply.data
    page = server.request("GET", "/c/c?like=7")
    assert hits(page) == before and thumbs(page) == []


def test_invalid_thumbs_are_refused(shared: LiveServer) -> None:
    fields = {"like": "7", "id": "8", "up": "1", "against": "0"}
    for wrong, status in (({"id": "999"}, 404), ({"like": "zzz"}, 404), ({"against": "x"}, 422)):
        assert post(shared, "/c/c/thumb", {**fields, **wrong}, hx_request="true").status == status
    assert post(shared, "/c/c/thumb", fields, origin="http://elsewhere.example").status == 403
    assert post(shared, "/c/c/thumb", {**fields, "id": "x" * 100_000}).status == 413
    assert shared.executor().collection.stats()["feedback"] == 0


@pytest.mark.medium
def test_versions_can_be_tagged(serving: Callable[..., LiveServer]) -> None:
    server = serving()
    reply = post(server, "/c/c/tag", {"version": "1", "tag": "<first>"}, hx_request="true")
    assert reply.status == 200 and b"&lt;first&gt;" in reply.data
    assert b"&lt;first&gt;" in server.request("GET", "/c/c/versions").data
    assert post(server, "/c/c/tag", {"version": "1", "tag": " "}, hx_request="true").status == 422
    assert post(server, "/c/c/tag", {"version": "9", "tag": "a"}, hx_request="true").status == 422
    assert post(server, "/c/c/rollback", {"version": "9"}, hx_request="true").status == 422


def test_pictures_are_cached_by_the_browser(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(DOT)
    collection = stillhash.open(tmp_path / "c", 8, 16)
    images = ["a.png", data_uri(DOT), None, "../c/store.db", None]
    stored = [None, None, DOT, None, None]
    collection.add([*range(5)], np.eye(5, 8), None, [{"image": image} for image in images], pictures=stored)
    with live_server({"c": collection}, Settings(images=tmp_path / "images")) as server:
        replies = [server.request("GET", f"/c/c/picture?id={number}") for number in range(5)]
        assert [reply.headers["content-type"] for reply in replies] == ["image/png"] * 3 + ["image/svg+xml"] * 2
        assert [reply.data for reply in replies[:3]] == [DOT] * 3
        again = server.request("GET", "/c/c/picture?id=0", if_none_match=replies[0].headers["etag"])
        assert (again.status, again.data) == (304, b"")
        assert server.request("GET", "/c/c/picture?id=9").status == 404


def test_events_contain_what_is_new(serving: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stillhash.server.pages.learning.STREAM_EVENTS", 1)
    server = serving()

    def event(seen: str = "") -> dict[str, Any]:
        text = server.request("GET", "/c/c/events", last_event_id=seen).data.decode()
        progress: dict[str, Any] = json.loads(re.findall("^data: (.*)$", text, re.MULTILINE)[0])
        assert f"id: {progress['version']}\n" in text
        return progress

    first = event()
    assert first["restart"] and first["items"] == 320 and first["points"]
    assert not event(str(first["version"]))["restart"] and event(str(first["version"]))["points"] == []
    collection = server.executor().collection
    collection.learn(np.random.default_rng(0).standard_normal((30, 8)), [["a"], ["b"]] * 15)
    progress = event(str(first["version"]))
    assert [point["version"] for point in progress["points"]] == [first["version"] + 1]
    assert event("999")["restart"] and event("x")["restart"]  # as after a restart, with another collection


# ---- keys ----


def test_sign_in_and_out(serving: Callable[..., LiveServer]) -> None:
    reading, writing = "r" * 16, 'w;"\\, =' + "w" * 16
    server = serving(keys=stillhash.server.Keys((reading,), (writing,)))
    reply = server.request("GET", "/c/c?like=7&against=1")
    assert (reply.status, reply.headers["location"]) == (303, "/login?next=%2Fc%2Fc%3Flike%3D7%26against%3D1")
    assert server.request("GET", "/c/c/versions", hx_request="true").status == 401
    assert server.request("GET", "/c/c/picture?id=7").status == 401
    assert server.request("GET", "/static/style.css").status == 200
    assert b"needs a key" in server.request("GET", reply.headers["location"]).data
    reply = post(server, "/login", {"key": "wrong", "next": "/c/c"})
    assert reply.status == 401 and b"unknown key" in reply.data.lower() and "set-cookie" not in reply.headers

    def enter(key: str, next: str) -> Reply:
        return post(server, "/login", {"key": key, "next": next})

    for next in ("//evil.example", "https://evil.example", "/\\evil.example", "", "/a\r\nb: c"):
        assert enter(reading, next).headers["location"] == "/"
    reply = enter(reading, "/c/c?like=7&against=1")
    assert (reply.status, reply.headers["location"]) == (303, "/c/c?like=7&against=1")
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    fields = {"like": "7", "id": "8", "up": "1", "against": "0"}
    sent = cookie.partition(";")[0]
    assert server.request("GET", "/c/c?like=7", cookie=sent).status == 200
    refused = post(server, "/c/c/thumb", fields, cookie=sent, hx_request="true")
    assert refused.status == 403 and "role" in refused.json["message"]
    sent = re.split(r";(?= \w+)", enter(writing, "/").headers["set-cookie"])[0]
    assert post(server, "/c/c/thumb", fields, cookie=sent).status == 200
    assert 'stillhash_session=""' in post(server, "/logout", {}).headers["set-cookie"]


def test_without_keys_there_is_no_sign_in(shared: LiveServer) -> None:
    assert shared.request("GET", "/login").headers["location"] == "/"


@pytest.mark.medium
def test_votes_on_few_items_count_at_once(tmp_path: Path) -> None:
    collection = stillhash.open(tmp_path / "c", 8, 16)
    collection.add(range(20), np.random.default_rng(0).standard_normal((20, 8)))
    with live_server({"c": collection}) as server:
        page = server.request("GET", "/c/c?like=3").data.decode()
        assert 'class="thumb up"' in page and 'class="why"' not in page
        last = collection.search(collection.reconstruct([3])[0], 20).hits[-1].id
        form = urlencode({"like": 3, "id": last, "up": "1"})
        headers = {"content-type": "application/x-www-form-urlencoded", "hx-request": "true"}
        reply = server.pool.request("POST", f"{server.url}/c/c/thumb", body=form, headers=headers)
        assert reply.status == 200 and "is learnt later" in reply.data.decode()
        assert collection.search(collection.reconstruct([3])[0], 1).hits[0].id == last
        for path in ("?like=3", "/votes", "/learning", "/collection"):
            assert server.request("GET", f"/c/c{path}").status == 200, path
