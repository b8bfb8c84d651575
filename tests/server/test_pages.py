"""The page over HTTP: views, what is given, thumbs, and what a visitor sees when something is wrong."""

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
from tests.server.process import Reply, Served, served
from tests.server.test_query_cache import as_npy
from tests.server.test_thumbnails import DOT, inside

FORM = "application/x-www-form-urlencoded"


def post(server: Served, path: str, fields: dict[str, str], **headers: str) -> Reply:
    return server.ask("POST", path, urlencode(fields).encode(), content_type=FORM, **headers)


def give(server: Served, data: bytes = b"", numbers: str = "", name: str = "a file") -> Reply:
    """Sends the form of the search view."""
    parts = [
        f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode() + data,
        b'Content-Disposition: form-data; name="numbers"\r\n\r\n' + numbers.encode(),
    ]
    body = b"".join(b"--edge\r\n" + part + b"\r\n" for part in parts) + b"--edge--\r\n"
    return server.ask("POST", "/c/c/ask", body, content_type="multipart/form-data; boundary=edge")


def hits(page: Reply, side: str = "now") -> list[str]:
    """The items of a column, best first."""
    column = page.data.decode().partition(f'class="column {side}"')[2].partition("</ol>")[0]
    return [json.loads(told) for told in re.findall(r'hx-vals=\'{"id": ("[^\']*?"), "left"', column)]


def pressed(page: Reply) -> list[tuple[str, str]]:
    """The thumbs that are pressed: up or down, and the item."""
    found = re.findall(r'class="thumb (\w+)"[^>]*item (\S+) is[^>]*aria-pressed="true"', page.data.decode())
    return [(way, item) for way, item in found]


# ---- views ----


def test_the_start_leads_to_the_first_collection(shared: Served) -> None:
    reply = shared.ask("GET", "/")
    assert (reply.status, reply.headers["location"]) == (307, "/c/c")


@pytest.mark.parametrize("path", ["/c/c", "/c/c?like=7", "/c/c?like=7&against=1", "/c/c/learning", "/c/c/collection"])
def test_views_are_documents_without_inline_scripts(shared: Served, path: str) -> None:
    reply = shared.ask("GET", path)
    text = reply.data.decode()
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/html")
    assert text.count("<h1") == 1 and text.count('aria-current="page"') == 1
    assert all(' src="/static/' in tag for tag in re.findall("<script[^>]*>", text))
    assert " onclick" not in text and "http://" not in text and "https://" not in text


def test_what_views_need_is_served_here(shared: Served) -> None:
    text = shared.ask("GET", "/c/c/learning").data.decode()
    for path in set(re.findall(r'(?:src|href)="(/static/[^"]+)"', text)):
        assert shared.ask("GET", path).status == 200, path
    assert shared.ask("GET", "/static/../app.py").status == 404
    assert shared.ask("GET", "/static/%2e%2e/app.py").status == 404


def test_routes_of_the_page_are_not_in_the_api(shared: Served) -> None:
    assert all(path.startswith("/v1/") for path in shared.ask("GET", "/v1/openapi.json").json["paths"])


def test_both_columns_are_what_the_collection_answers(shared: Served) -> None:
    page = shared.ask("GET", "/c/c?like=7")
    collection = shared.app.state.room.desks["c"].collection
    query = collection.reconstruct([7])[0]
    for side, version in (("then", 0), ("now", None)):
        wanted = [str(hit.id) for hit in collection.search(query, 13, version=version).hits if hit.id != 7]
        assert hits(page, side) == wanted[:12]


def test_a_random_item_and_the_version_to_compare_with(shared: Served) -> None:
    reply = shared.ask("GET", "/c/c?random=1&against=1")
    assert reply.status == 303 and re.fullmatch(r"/c/c\?like=\d+&against=1", reply.headers["location"])


def test_ids_are_texts_or_numbers(tmp_path: Path) -> None:
    collection = stillhash.open(tmp_path / "c", 8, 16)
    ids: list[Any] = [7, "7", "seven", '"', "a&b=c#d", "-1"]
    collection.add(ids, np.random.default_rng(0).standard_normal((len(ids), 8)))
    with served({"c": collection}) as server:
        for typed in ("7", '"7"', "seven", '"seven"', '"', "a&b=c#d", "-1", '"-1"'):
            reply = server.ask("GET", f"/c/c?{urlencode({'like': typed})}")
            assert reply.status == 200 and "cosine of raw features" in reply.data.decode(), typed
        for typed in ("8", "[7]", "true", "7.0", "9" * 30, "9" * 5000, "[" * 5000, "\n", "\0"):
            assert server.ask("GET", f"/c/c?{urlencode({'like': typed})}").status == 404, typed


def test_an_empty_collection_says_so(tmp_path: Path) -> None:
    with served({"c": stillhash.open(tmp_path / "c", 8, 16)}) as server:
        for path, words in (("", "Nothing is stored"), ("?random=1", "Nothing is stored"), ("/learning", "No version")):
            reply = server.ask("GET", f"/c/c{path}")
            assert reply.status == 200 and words in reply.data.decode()
        assert "empty" in server.ask("GET", "/c/c/collection").data.decode()


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/c/nope", 404, "there are c"),
        ("/c/nope/learning", 404, "there are c"),
        ("/c/c?like=zzz", 404, "There is no item"),
        ("/c/c?q=zzz", 404, "not remembered"),
        ("/c/c?like=7&against=99", 422, "it is not kept"),
        ("/c/c?like=7&against=x", 422, "a whole number is wanted"),
        ("/c/c?like=7&against=-1", 422, "a whole number is wanted"),
        ("/c/c/explain", 422, "id"),
    ],
)
def test_what_is_wrong_is_drawn(shared: Served, path: str, status: int, words: str) -> None:
    reply = shared.ask("GET", path)
    assert reply.status == status and reply.headers["content-type"].startswith("text/html")
    assert words in reply.data.decode().replace("&#39;", "'")
    told = shared.ask("GET", path, hx_request="true")
    if "?" not in path:
        assert told.status == status and told.json["status"] == status  # for the script, which shows its message


def test_texts_from_items_are_escaped(tmp_path: Path) -> None:
    bad = "<script>alert('1')</script>"
    collection = stillhash.open(tmp_path / "c", 8, 16)
    features = np.random.default_rng(0).standard_normal((5, 8))
    collection.add([bad, *range(4)], features, [[bad]] * 5, [{"image": bad}] * 5)
    with served({"<script>c": collection}) as server:
        asked = [f"?{urlencode({'like': id})}" for id in (bad, bad * 2, 1)]
        for path in ("", "/learning", "/collection", *asked):
            reply = server.ask("GET", f"/c/%3Cscript%3Ec{path}")
            assert b"&lt;script&gt;c" in reply.data and b"<script>" not in reply.data


# ---- what is given ----


@pytest.mark.parametrize("form", ["npy", "json", "csv", "pasted"])
def test_a_vector_may_be_given(shared: Served, form: str) -> None:
    vector = np.linspace(1, 4, 8)
    row = ", ".join(map(str, vector))
    data = {"npy": as_npy(vector), "json": f"[{row}]".encode(), "csv": row.encode(), "pasted": b""}[form]
    reply = give(shared, data, f"[{row}]" if form == "pasted" else "", "q.txt")
    assert reply.status == 303
    page = shared.ask("GET", reply.headers["location"])
    collection = shared.app.state.room.desks["c"].collection
    assert hits(page) == [str(hit.id) for hit in collection.search(vector, 12).hits]
    token = reply.headers["location"].partition("q=")[2]
    assert shared.ask("GET", f"/c/c/picture?q={token}").headers["content-type"] == "image/svg+xml"
    assert shared.ask("GET", f"/c/c/explain?q={token}&id={hits(page)[0]}").status == 200


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "nothing was given"),
        (b"[1, 2]", "has 2 features"),
        (b"[NaN, 1, 1, 1, 1, 1, 1, 1]", "NaN"),
        (b"nonsense", "not a row of numbers"),
        (DOT, "no encoder here"),
        (bytes(9 << 20), "at most"),
    ],
    ids=["nothing", "short", "not a number", "text", "image", "large"],
)
def test_what_cannot_be_taken_is_told_in_the_view(shared: Served, data: bytes, words: str) -> None:
    reply = give(shared, data)
    assert reply.status in (413, 422) and words.lower() in reply.data.decode().lower()
    assert 'id="like"' in reply.data.decode()  # the view is there to try again


def test_an_image_goes_through_the_encoder(serving: Callable[..., Served]) -> None:
    class Eyes:
        has_text = False

        def image(self, data: bytes) -> Any:
            if data != DOT:
                raise InvalidInput("this is no picture")
            return np.ones(8, np.float32)

    server = serving(Eyes())
    reply = give(server, DOT, name="<dot>.png")
    assert reply.status == 303
    page = server.ask("GET", reply.headers["location"])
    assert b"&lt;dot&gt;.png" in page.data and len(hits(page)) == 12
    token = reply.headers["location"].partition("q=")[2]
    assert server.ask("GET", f"/c/c/picture?q={token}").data == DOT
    assert "This is no picture." in give(server, DOT + b"x").data.decode()


# ---- thumbs, versions, upkeep ----


def test_a_thumb_is_learnt_shown_and_forgotten_by_a_rollback(serving: Callable[..., Served]) -> None:
    server = serving()
    collection = server.app.state.room.desks["c"].collection
    page, version = server.ask("GET", "/c/c?like=7"), collection.stats()["version"]
    before = hits(page)
    assert pressed(page) == []
    for up, way in (("0", "down"), ("1", "up"), ("0", "down")):  # the last word counts
        reply = post(server, "/c/c/thumb", {"like": "7", "id": before[0], "up": up, "against": "0"}, hx_request="true")
        assert reply.status == 200 and b"Learnt as version" in reply.data
        page = server.ask("GET", "/c/c?like=7")
        assert hits(page) == hits(reply)
        assert pressed(page) in ([(way, before[0])], [])  # none, if it is no hit any more
    assert hits(page) != before
    assert collection.stats()["feedback"] == 1
    reply = post(server, "/c/c/rollback", {"version": str(version)}, hx_request="true")
    assert reply.status == 200 and b"to the byte" in reply.data
    page = server.ask("GET", "/c/c?like=7")
    assert hits(page) == before and pressed(page) == []


def test_a_thumb_that_cannot_be_learnt(serving: Callable[..., Served]) -> None:
    server = serving()
    fields = {"like": "7", "id": "8", "up": "1", "against": "0"}
    for wrong, status in (({"id": "999"}, 404), ({"like": "zzz"}, 404), ({"against": "x"}, 422)):
        assert post(server, "/c/c/thumb", {**fields, **wrong}, hx_request="true").status == status
    assert post(server, "/c/c/thumb", fields, origin="http://elsewhere.example").status == 403
    assert post(server, "/c/c/thumb", {**fields, "id": "x" * 100_000}).status == 413
    assert server.app.state.room.desks["c"].collection.stats()["feedback"] == 0


def test_versions_can_be_tagged(serving: Callable[..., Served]) -> None:
    server = serving()
    reply = post(server, "/c/c/tag", {"version": "1", "tag": "<first>"}, hx_request="true")
    assert reply.status == 200 and b"&lt;first&gt;" in reply.data
    assert b"&lt;first&gt;" in server.ask("GET", "/c/c/versions").data
    assert post(server, "/c/c/tag", {"version": "1", "tag": " "}, hx_request="true").status == 422
    assert post(server, "/c/c/tag", {"version": "9", "tag": "a"}, hx_request="true").status == 422
    assert post(server, "/c/c/rollback", {"version": "9"}, hx_request="true").status == 422


def test_verify_says_what_it_found(serving: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    server = serving()
    assert b"all is well" in server.ask("POST", "/c/c/verify").data
    collection = server.app.state.room.desks["c"].collection
    monkeypatch.setattr(type(collection), "verify", lambda _: ["a <bad> byte"])
    assert b"a &lt;bad&gt; byte" in server.ask("POST", "/c/c/verify").data


def test_pictures_are_sent_once(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(DOT)
    collection = stillhash.open(tmp_path / "c", 8, 16)
    images = ["a.png", inside(DOT), None, "../c/store.db", None]
    stored = [None, None, DOT, None, None]
    collection.add([*range(5)], np.eye(5, 8), None, [{"image": image} for image in images], pictures=stored)
    with served({"c": collection}, Settings(images=tmp_path / "images")) as server:
        replies = [server.ask("GET", f"/c/c/picture?id={number}") for number in range(5)]
        assert [reply.headers["content-type"] for reply in replies] == ["image/png"] * 3 + ["image/svg+xml"] * 2
        assert [reply.data for reply in replies[:3]] == [DOT] * 3
        again = server.ask("GET", "/c/c/picture?id=0", if_none_match=replies[0].headers["etag"])
        assert (again.status, again.data) == (304, b"")
        assert server.ask("GET", "/c/c/picture?id=9").status == 404


def test_events_tell_what_is_new(serving: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stillhash.server.pages.learning.LOOKS", 1)
    server = serving()

    def told(seen: str = "") -> dict[str, Any]:
        text = server.ask("GET", "/c/c/events", last_event_id=seen).data.decode()
        news: dict[str, Any] = json.loads(re.findall("^data: (.*)$", text, re.MULTILINE)[0])
        assert f"id: {news['version']}\n" in text
        return news

    first = told()
    assert first["fresh"] and first["items"] == 320 and first["points"]
    assert not told(str(first["version"]))["fresh"] and told(str(first["version"]))["points"] == []
    collection = server.app.state.room.desks["c"].collection
    collection.learn(np.random.default_rng(0).standard_normal((30, 8)), [["a"], ["b"]] * 15)
    news = told(str(first["version"]))
    assert [point["version"] for point in news["points"]] == [first["version"] + 1]
    assert told("999")["fresh"] and told("x")["fresh"]  # as after a restart, with another collection


# ---- keys ----


def test_the_door(serving: Callable[..., Served]) -> None:
    reading, writing = "r" * 16, 'w;"\\, =' + "w" * 16
    server = serving(keys=stillhash.server.Keys((reading,), (writing,)))
    reply = server.ask("GET", "/c/c?like=7&against=1")
    assert (reply.status, reply.headers["location"]) == (303, "/login?then=%2Fc%2Fc%3Flike%3D7%26against%3D1")
    assert server.ask("GET", "/c/c/versions", hx_request="true").status == 401
    assert server.ask("GET", "/c/c/picture?id=7").status == 401
    assert server.ask("GET", "/static/style.css").status == 200
    assert b"wants a key" in server.ask("GET", reply.headers["location"]).data
    reply = post(server, "/login", {"key": "wrong", "then": "/c/c"})
    assert reply.status == 401 and b"The key is unknown." in reply.data and "set-cookie" not in reply.headers

    def enter(key: str, then: str) -> Reply:
        return post(server, "/login", {"key": key, "then": then})

    for then in ("//evil.example", "https://evil.example", "/\\evil.example", "", "/a\r\nb: c"):
        assert enter(reading, then).headers["location"] == "/"
    reply = enter(reading, "/c/c?like=7&against=1")
    assert (reply.status, reply.headers["location"]) == (303, "/c/c?like=7&against=1")
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    fields = {"like": "7", "id": "8", "up": "1", "against": "0"}
    sent = cookie.partition(";")[0]
    assert server.ask("GET", "/c/c?like=7", cookie=sent).status == 200
    refused = post(server, "/c/c/thumb", fields, cookie=sent, hx_request="true")
    assert refused.status == 403 and "may read, not write" in refused.json["message"]
    sent = re.split(r";(?= \w+)", enter(writing, "/").headers["set-cookie"])[0]
    assert post(server, "/c/c/thumb", fields, cookie=sent).status == 200
    assert 'stillhash_key=""' in post(server, "/logout", {}).headers["set-cookie"]


def test_without_keys_there_is_no_door(shared: Served) -> None:
    assert shared.ask("GET", "/login").headers["location"] == "/"
