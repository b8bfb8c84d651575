"""Words over HTTP and on the page: the answers of the library, limits, and texts that are shown and never run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stillhash
from stillhash import Collection, Item
from stillhash.encoders import QueryEncoder, open_encoder
from stillhash.server import Settings
from stillhash.server.pages.passages import LEAD_LENGTH, PASSAGE_LENGTH, cut_passage, text_hit
from tests.server.live_server import LiveServer, live_server
from tests.server.test_pages import post, thumbs

PATH = "/v1/collections/c"
SCRIPT = "<script>alert(1)</script> \"><img src=x onerror=alert('y')> blue"
TEXTS = [
    "The Blue hour begins after the sun has set",
    "a red wine and " + "many other words " * 40 + "before blue nights",
    SCRIPT,
    "invoices and refunds",
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveServer, Collection]]:
    """Serve texts under c, with an encoder of texts, and under words, without one."""
    folder, encoder = tmp_path_factory.mktemp("served"), open_encoder("words")
    both = {}
    for name, options in {"c": {"encoder": encoder}, "words": {"dim": encoder.dim}}.items():
        both[name] = stillhash.open(folder / name, init_rows=300, lexical_field="text", **options)  # type: ignore[arg-type]
        texts = [f"{TEXTS[n % 4]} {n}" for n in range(310)]
        metadata = [{"text": text, "document": "<b>book</b>", "chunk": n} for n, text in enumerate(texts)]
        both[name].add([f"<i>{n}" for n in range(310)], encoder.encode_texts(texts), metadata=metadata)
    with live_server(both, Settings(max_hits=50), {"c": QueryEncoder(both["c"], encoder)}) as server:
        yield server, both["c"]
    for collection in both.values():
        collection.close()


def page(server: LiveServer, name: str = "c", **params: str) -> str:
    reply = server.request("GET", f"/c/{name}?{urlencode(params)}")
    assert reply.status == 200, reply.data
    return reply.data.decode()


def column_ids(text: str, side: str = "now") -> list[str]:
    column = text.partition(f'class="column {side}"')[2].partition("</ol>")[0]
    return re.findall(r'class="hidden">\d+: item &lt;i&gt;(\d+)\.', column)


def test_the_routes_answer_as_the_library(served: tuple[LiveServer, Collection]) -> None:
    server, collection = served
    query = collection.reconstruct(["<i>5"])[0]
    calls: dict[str, Any] = {
        "lexical_search": ({"words": 'blue "red wine"', "k": 3, "where": {"chunk": {"$lt": 50}}}, {}),
        "hybrid_search": ({"words": "blue 7", "k": 4, "depth": 20, "word_weight": 0.5}, {"query": query.tolist()}),
    }
    for verb, (options, sent) in calls.items():
        arguments = options | ({"query": query} if sent else {})
        expected = json.loads(json.dumps([getattr(collection, verb)(**arguments)], default=vars))
        assert server.request("POST", f"{PATH}/{verb}", options | sent).json["answers"] == expected


@pytest.mark.parametrize(
    ("body", "status", "name"),
    [
        ({"words": "x" * 10_001}, 413, "words"),
        ({"words": " ".join(map(str, range(300)))}, 413, "words"),
        ({"words": "a", "k": 51}, 413, "k"),
        ({"words": "a", "k": 0}, 422, "k"),
        ({"words": 3}, 422, "words"),
        ({"k": 3}, 422, "words"),
        ({"words": "a", "more": 1}, 422, "more"),
    ],
)
def test_what_is_too_much_or_no_words_is_refused(
    served: tuple[LiveServer, Collection], body: dict[str, Any], status: int, name: str
) -> None:
    reply = served[0].request("POST", f"{PATH}/lexical_search", body)
    assert reply.status == status and reply.json["message"].startswith(name)


def test_depth_and_queries_have_limits(served: tuple[LiveServer, Collection]) -> None:
    server, collection = served
    body = {"words": "a", "query": [0.5] * collection.dim}
    assert server.request("POST", f"{PATH}/hybrid_search", body | {"depth": 50}).status == 200
    for wrong, status in ({"depth": 51}, 413), ({"query": [body["query"]] * 2, "depth": 9}, 422), ({"query": []}, 422):
        assert server.request("POST", f"{PATH}/hybrid_search", body | {"depth": 9} | wrong).status == status


def test_without_a_lexical_field_it_is_a_conflict(shared: LiveServer) -> None:
    reply = shared.request("POST", f"{PATH}/lexical_search", {"words": "a"})
    assert reply.status == 409 and "lexical_field" in reply.json["message"]
    assert "Words, a label or an id" not in page(shared)
    assert shared.request("GET", "/c/c?words=blue").status == 422


def test_words_on_the_page_are_hybrid_where_there_is_an_encoder(served: tuple[LiveServer, Collection]) -> None:
    server, collection = served
    text = page(server, words="blue 8")
    expected = collection.hybrid_search(open_encoder("words").encode_texts(["blue 8"])[0], "blue 8", 12)
    assert [f"<i>{name}" for name in column_ids(text)] == [hit.id for hit in expected.hits]
    assert len(column_ids(text, "then")) == 12 and 'value="blue 8"' in text
    assert "similar " in text and "words 1" in text
    like = page(server, like='"<i>8"')
    assert "<mark>" not in like and "The Blue hour" in like


def test_words_on_the_page_without_an_encoder(served: tuple[LiveServer, Collection]) -> None:
    text = page(served[0], "words", words='"red wine" 8 Blué')
    assert column_ids(text)[0] == "8" and 'class="column then"' not in text
    assert "<mark>Blue</mark>" in text and 'class="thumb' not in text and "BM25" in text
    assert "No item has these words" in page(served[0], "words", words="nosuchword")
    many = served[0].request("GET", f"/c/words?{urlencode({'words': ' '.join(map(str, range(300)))})}")
    assert many.status == 413
    assert post(served[0], "/c/words/thumb", {"words": "blue", "id": '"<i>8"', "up": "1", "against": "0"}).status == 422


def test_the_page_of_the_collection_names_the_field(served: tuple[LiveServer, Collection]) -> None:
    assert "<bdi>text</bdi> are indexed" in served[0].request("GET", "/c/c/collection").data.decode()


def test_texts_are_shown_and_never_run(served: tuple[LiveServer, Collection]) -> None:
    for name in ("c", "words"):
        for params in ({"words": SCRIPT}, {"words": '"><script>x'}, {"like": '"<i>2"'}, {}):
            text = page(served[0], name, **params)
            assert text.count("<script") == text.count('<script src="/static/') > 0  # the page's own
            assert "<img src=x" not in text and "<b>" not in text and "<i>" not in text
    text = page(served[0], words="script")
    assert "&lt;<mark>script</mark>&gt;" in text and "&lt;b&gt;book&lt;/b&gt;" in text and "chunk 2" in text


@pytest.mark.medium
def test_a_thumb_on_a_hit_of_words_is_learnt(tmp_path: Path) -> None:
    encoder = open_encoder("words")
    with stillhash.open(tmp_path / "c", encoder=encoder, init_rows=300, lexical_field="text") as collection:
        texts = [f"{TEXTS[n % 4]} {n}" for n in range(310)]
        collection.add(range(310), encoder.encode_texts(texts), metadata=[{"text": text} for text in texts])
        with live_server({"c": collection}, Settings(), {"c": QueryEncoder(collection, encoder)}) as server:
            before = collection.versions()[-1]["version"]
            fields = {"words": "blue", "id": "7", "up": "1", "against": "0"}
            reply = post(server, "/c/c/thumb", fields, hx_request="true")
            assert reply.status == 200 and collection.versions()[-1]["version"] == before + 1
            assert ("up", "7") in thumbs(reply) or ">Show it<" in reply.data.decode()


@given(text=st.text(max_size=900), words=st.text(max_size=30))
def test_a_passage_is_a_bounded_part_of_the_text(text: str, words: str) -> None:
    parts = cut_passage(text, words)
    whole = "".join(part.text for part in parts)
    plain = " ".join(text.split())
    assert whole.removeprefix("… ").removesuffix("…") in plain and len(whole) <= PASSAGE_LENGTH + 3
    assert not any(part.marked for part in parts) or words
    if len(plain) <= PASSAGE_LENGTH and not words:
        assert whole == plain


def test_a_passage_begins_near_the_first_match() -> None:
    text = "word " * 1000 + "Näive end" + " more" * 1000
    parts = cut_passage(text, "naive")
    assert [part.text for part in parts if part.marked] == ["Näive"]
    before = "".join(part.text for part in parts).partition("Näive")[0]
    assert before.startswith("… word") and len(before) <= LEAD_LENGTH + 2


@given(st.lists(st.sampled_from(["wheat", "corn", "oil", "the", "of", "ship" * 9]), max_size=300))
def test_a_passage_has_most_of_the_words(tokens: list[str]) -> None:
    known, text = {"wheat", "corn", "oil"}, " ".join(tokens)
    starts = [match.start() for match in re.finditer(r"wheat|corn|oil", text)]
    reach = PASSAGE_LENGTH - LEAD_LENGTH
    held = [known & set(text[start : start + reach].rpartition(" ")[0].split()) for start in starts]  # at least
    marked = {part.text for part in cut_passage(text, "oil wheat corn") if part.marked}
    assert len(marked) >= max(map(len, held), default=0)


def test_only_texts_are_text_hits() -> None:
    assert text_hit(Item(1, [], None)) is None and text_hit(Item(1, [], {"text": 3})) is None
    shown = text_hit(Item(1, [], {"text": "a", "body": "b", "document": 7, "chunk": True}), None, "body")
    assert shown is not None and (shown.parts[0].text, shown.document, shown.chunk) == ("b", "7", None)
    empty = text_hit(Item(1, [], {"text": ""}))
    assert empty is not None and empty.parts == []
