"""The search page over HTTP: what a text means, filters with counts, lists of items, suggestions and misses."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus, urlencode

import numpy as np
import pytest

import stillhash
from stillhash import Collection
from stillhash.server.pages.search import describe_condition
from tests.server.live_server import LiveServer, Reply, live_server

CITIES = ["Kyoto", "New York", "Oslo"]


def fill(path: Path, **options: Any) -> Collection:
    """Return a collection of 320 items: ids a0, a1, ... but one, which is `temple`, as a label is."""
    rng = np.random.default_rng(0)
    collection = stillhash.open(path, 8, 16, init_rows=300, learn_rows=100, **options)
    ids = ["temple" if row == 9 else f"a{row}" for row in range(320)]
    labels = [
        ["temple"] if row % 4 == 0 else ["tree", f"rare {row}"] if row % 4 == 1 else ["tree"] for row in range(320)
    ]
    metadata = [
        {"city": CITIES[row % 3], "year": 1900 + row % 50, "night": row % 2 == 0, "text": f"a scene of {row}"}
        for row in range(320)
    ]
    collection.add(ids, rng.standard_normal((320, 8)), labels, metadata)
    return collection


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("search")
    with live_server({"c": fill(folder / "c"), "words": fill(folder / "w", lexical_field="text")}) as server:
        yield server


def visit(server: LiveServer, name: str = "c", filters: Any = (), **params: str) -> Reply:
    texts = [json.dumps(one) for one in filters]
    return server.request("GET", f"/c/{name}?{urlencode({**params, 'filter': texts}, doseq=True)}")


def text_of(reply: Reply) -> str:
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", reply.data.decode())).split())


def items_of(reply: Reply, kind: str = "listed") -> list[str]:
    """Return the ids that the cards of a page lead to, those of a list or the hits."""
    addresses = re.findall(rf'class="look" id="{kind}-[^"]+" href="[^"]*?like=([^"&]+)', reply.data.decode())
    return [json.loads(unquote_plus(one)) for one in addresses]


def chips_of(reply: Reply) -> dict[str, int]:
    """Return the filters that a page offers, with their counts."""
    page = reply.data.decode()
    chips = re.findall(r'class="filter-chip" href="[^"]+"><bdi>([^<]+)</bdi> <span class="count">([\d,]+)<', page)
    return {html.unescape(text): int(count.replace(",", "")) for text, count in chips}


def links(reply: Reply, text: str) -> list[str]:
    """Return the addresses of the links that have this text in them."""
    anchors = re.findall(r'<a [^>]*?href="([^"]+)"[^>]*>(.*?)</a>', reply.data.decode(), re.DOTALL)
    return [html.unescape(address) for address, inner in anchors if text in re.sub("<[^>]+>", "", inner)]


# ---- what a text means ----


def test_an_id_is_an_item(server: LiveServer) -> None:
    reply = visit(server, search="a7")
    assert reply.status == 200 and "Similar to item a7" in text_of(reply)
    assert text_of(visit(server, like='"a7"')).count("Similar to item a7") == 1


def test_an_id_comes_before_a_label(server: LiveServer) -> None:
    reply = visit(server, search="temple")
    assert "Similar to item temple" in text_of(reply)
    (address,) = links(reply, "label temple")
    assert "Items with this filter · 80" in text_of(server.request("GET", address))


@pytest.mark.parametrize("typed", ["tree", "TREE", "  Tree "])
def test_a_label_is_a_list_of_its_items(server: LiveServer, typed: str) -> None:
    reply = visit(server, search=typed)
    expected = server.executor().collection.ids({"labels": "tree"}, limit=48)
    assert "Items with the label tree · 240" in text_of(reply)
    assert items_of(reply) == expected
    assert chips_of(reply)["Oslo"] == server.executor().collection.count({"labels": "tree", "city": "Oslo"})


def test_a_value_of_a_field_is_a_list_of_its_items(server: LiveServer) -> None:
    reply = visit(server, search="new york")
    assert f"Items with the city: New York · {len(range(1, 320, 3))}" in text_of(reply)
    assert "Items with the year: 1907 · 7" in text_of(visit(server, search="1907"))


def test_words_where_there_is_an_index(server: LiveServer) -> None:
    assert "Items with these words" in text_of(visit(server, "words", search="a scene of 17"))
    reply = visit(server, "words", search="tree")
    (address,) = links(reply, "Search the words instead")
    assert address == "/c/words?words=tree"
    reply = visit(server, "words", search="Oslo")  # no item has the word, but a value is the same
    assert "Items with the city: Oslo · 106" in text_of(reply)


def test_a_list_has_pages(server: LiveServer) -> None:
    seen: list[str] = []
    address = f"/c/c?{urlencode({'search': 'tree'})}"
    while True:
        reply = server.request("GET", address)
        seen += items_of(reply)
        following = links(reply, "Next page")
        if not following:
            break
        (address,) = following
    assert seen == server.executor().collection.ids({"labels": "tree"}) and len(seen) == 240
    (first,) = links(reply, "First page")
    assert items_of(server.request("GET", first)) == seen[:48]
    assert visit(server, search="tree", after="[1]").status == 422


# ---- misses ----


@pytest.mark.parametrize(
    ("name", "params", "status", "near"),
    [
        ("c", {"search": "tempel"}, 200, "temple"),
        ("c", {"search": "aa7"}, 200, "a7"),
        ("c", {"search": "rare"}, 200, "rare 1"),
        ("c", {"like": "a77777"}, 404, "a77"),
        ("words", {"search": "tempel"}, 200, "temple"),
        ("words", {"words": "zzz"}, 200, None),
        ("c", {"search": "zzzzzzzz"}, 200, None),
        ("c", {"q": "gone"}, 404, None),
    ],
)
def test_a_miss_is_no_error(server: LiveServer, name: str, params: dict[str, str], status: int, near: Any) -> None:
    reply = visit(server, name, **params)
    page = reply.data.decode()
    assert reply.status == status and 'class="state miss"' in page
    assert "state error" not in page and 'role="alert" hidden' in page
    if near:
        assert any(text_of(server.request("GET", address)) for address in links(reply, near))
    typed = next(iter(params.values()))
    assert "q" in params or f'value="{typed}"' in page  # to correct it


def test_texts_without_meaning_are_harmless(server: LiveServer) -> None:
    for typed in ("\0", "%00", "'; DROP TABLE items", "<script>x</script>", "[" * 900, '"', "\\"):
        reply = visit(server, search=typed)
        assert reply.status == 200 and b"<script>x" not in reply.data, typed
    assert visit(server, search="x" * 1001).status == 422


def test_a_miss_of_words_with_filters(server: LiveServer) -> None:
    reply = visit(server, "words", filters=[{"city": "Oslo"}], words="zzz")
    assert "No item has these words and meets this filter" in text_of(reply)
    assert links(reply, "Search without the filters") == ["/c/words?words=zzz"]


# ---- filters ----


def test_filters_are_offered_with_their_counts(server: LiveServer) -> None:
    chips, facets = chips_of(visit(server)), server.executor().collection.facets()
    for one in facets.labels.values[:10]:
        assert chips[one.value] == one.count
    assert [chips[city] for city in CITIES] == [107, 107, 106]
    assert {"yes", "no"} <= set(chips) and "a scene of 7" not in chips  # which is a text to read
    assert 'placeholder="1900"' in visit(server).data.decode()  # a range


def test_filters_are_added_and_removed(server: LiveServer) -> None:
    (address,) = links(visit(server), "Oslo")
    reply = server.request("GET", address)
    assert "Items with this filter · 106" in text_of(reply)
    (address,) = links(reply, "tree")
    reply = server.request("GET", address)
    where = {"$and": [{"city": "Oslo"}, {"labels": "tree"}]}
    collection = server.executor().collection
    assert items_of(reply) == collection.ids(where, limit=48)
    assert f"Items with these filters · {collection.count(where)}" in text_of(reply)
    assert "Remove the filter city: Oslo" in reply.data.decode()
    (address,) = links(reply, "city: Oslo")
    assert "Items with this filter · 240" in text_of(server.request("GET", address))
    (address,) = links(reply, "Remove all")
    assert address == "/c/c"


def test_filters_apply_to_hits(server: LiveServer) -> None:
    reply = visit(server, filters=[{"city": "Oslo"}], search="a7")
    collection = server.executor().collection
    query = collection.reconstruct(["a7"])[0]
    hits = [hit.id for hit in collection.search(query, 13, where={"city": "Oslo"}).hits if hit.id != "a7"][:12]
    assert items_of(reply, "now") == hits
    assert all("like=" in one or "search=a7" in one for one in links(reply, "tree"))  # a filter keeps the query


def test_a_range_of_numbers(server: LiveServer) -> None:
    reply = server.request("GET", "/c/c?range=year&from=1905&to=1910")
    assert reply.status == 303
    page = server.request("GET", reply.headers["location"])
    assert "year: 1905 to 1910" in text_of(page)
    count = server.executor().collection.count({"year": {"$gte": 1905, "$lte": 1910}})
    assert f"Items with this filter · {count}" in text_of(page)
    for bad in ("from=&to=", "from=x", "to=nan", "from=inf"):
        assert server.request("GET", f"/c/c?range=year&{bad}").status == 422, bad


def test_filters_that_nothing_meets(server: LiveServer) -> None:
    reply = visit(server, filters=[{"city": "Oslo"}, {"city": "Kyoto"}])
    assert reply.status == 200 and "No item meets all of these" in text_of(reply)
    for bad in ("{", "[]", '{"a": {}}', '{"$x": 1}'):
        assert server.request("GET", f"/c/c?{urlencode({'filter': bad})}").status == 422


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        ({"labels": "cat"}, "cat"),
        ({"year": 7}, "year: 7"),
        ({"night": True}, "night: yes"),
        ({"year": {"$gte": 1, "$lte": 2.5}}, "year: 1 to 2.5"),
        ({"year": {"$gte": 1}}, "year: from 1"),
        ({"year": {"$lte": 2}}, "year: up to 2"),
        ({"year": {"$in": [1]}}, '{"year": {"$in": [1]}}'),
        ({"$not": {"a": 1}}, '{"$not": {"a": 1}}'),
        ({"a": 1, "b": 2}, '{"a": 1, "b": 2}'),
        ({}, "{}"),
    ],
)
def test_conditions_are_described(condition: dict[str, Any], text: str) -> None:
    assert describe_condition(condition) == text


# ---- suggestions ----


def test_suggestions_are_options_with_addresses(server: LiveServer) -> None:
    reply = server.request("GET", f"/c/c/suggest?{urlencode({'search': 'te', 'filter': json.dumps({'night': True})})}")
    page = reply.data.decode()
    addresses = [html.unescape(one) for one in re.findall(r'role="option"[^>]*data-visit="([^"]+)"', page)]
    assert len(addresses) == 2 and all("filter=%7B%22night" in address for address in addresses)
    assert "label · 80" in text_of(reply) and text_of(reply).endswith("item")
    assert "Items with these filters" in text_of(server.request("GET", addresses[0]))
    assert "Similar to item temple" in text_of(server.request("GET", addresses[1]))


def test_words_are_suggested_where_they_can_be_searched(server: LiveServer) -> None:
    assert "Search the words te" in text_of(server.request("GET", "/c/words/suggest?search=te"))
    assert text_of(server.request("GET", "/c/c/suggest?search=zzzzzz")) == ""
    assert text_of(server.request("GET", "/c/c/suggest")) == ""
    assert server.request("GET", f"/c/c/suggest?search={'x' * 1001}", hx_request="true").status == 422


def test_the_page_says_what_it_is(server: LiveServer) -> None:
    for params in ({}, {"search": "a7"}, {"search": "tree"}, {"search": "zzz"}):
        page = text_of(visit(server, **params))
        assert "320 items. Find what belongs together" in page
        assert page.count("Random item") == 1
