"""Search by text: by vectors of an encoder, by words, and by both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash.encoders import open_encoder
from stillhash.errors import InvalidInput

pytest.importorskip("mcp", reason="mcp is an extra")
from mcp.client import Client

from stillhash.integrations.mcp import open_text_encoder
from tests.integrations.test_mcp import error_of, plain_hits, result_of, run_over_stdio

pytestmark = [pytest.mark.integrations, pytest.mark.slow]

TEXTS = {"casino": "A heist in a casino", "dog": "A dog finds its way home", "bank": "A bank is robbed at noon"}


def create(path: Path, *, vectors: bool, words: bool) -> None:
    """Store the texts, with an encoder that the collection remembers, a lexical index, or both."""
    encoder = open_encoder("words")
    options: dict[str, Any] = {"encoder": encoder} if vectors else {"dim": encoder.dim}
    with stillhash.open(path, **options, lexical_field="text" if words else None) as collection:
        metadata = [{"text": text} for text in TEXTS.values()]
        collection.add(list(TEXTS), encoder.encode_texts(list(TEXTS.values())), metadata=metadata)
        collection.fit()


@pytest.mark.parametrize(
    ("vectors", "words", "kind"),
    [(True, False, "vectors"), (False, True, "words"), (True, True, "vectors and words")],
)
def test_text_searches_by_what_there_is(tmp_path: Path, vectors: bool, words: bool, kind: str) -> None:
    create(tmp_path / "films", vectors=vectors, words=words)
    query = open_encoder("words").encode_texts(["robbed dog"])[0]

    async def calls(client: Client) -> None:
        assert (await result_of(client, "stats"))["text_search"] == kind
        result = await result_of(client, "search", text="robbed dog", k=3)
        with stillhash.open(tmp_path / "films", read_only=True) as collection:
            expected = {
                "vectors": lambda: collection.search(query, 3),
                "words": lambda: collection.lexical_search("robbed dog", 3),
                "vectors and words": lambda: collection.hybrid_search(query, "robbed dog", 3),
            }[kind]()
        assert result["hits"] == plain_hits(expected) and result["ranking"] == expected.ranking
        assert {hit["id"] for hit in result["hits"][:2]} == {"bank", "dog"}
        if vectors:
            explained = await result_of(client, "explain", text="robbed dog", k=2)
            assert len(explained["hits"]) == 2
        else:
            assert "InvalidInput: text" in await error_of(client, "explain", text="robbed dog")

    run_over_stdio(tmp_path / "films", calls)


def test_the_encoder_of_texts_is_that_of_the_collection(tmp_path: Path) -> None:
    create(tmp_path / "films", vectors=True, words=False)
    with stillhash.open(tmp_path / "films", read_only=True) as collection:
        encoder = open_text_encoder(collection)
        assert encoder is not None and encoder.name == "words"
        with pytest.raises(InvalidInput, match="encoder"):
            open_text_encoder(collection, "vectors:16")
    create(tmp_path / "vectors", vectors=False, words=False)
    with stillhash.open(tmp_path / "vectors", read_only=True) as collection:
        assert open_text_encoder(collection) is None
