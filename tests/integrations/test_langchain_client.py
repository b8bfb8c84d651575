from __future__ import annotations

from pathlib import Path

import pytest

import stillhash

pytest.importorskip("langchain_core", reason="langchain-core is an extra")
pytest.importorskip("fastapi", reason="the server is an extra")
pytest.importorskip("urllib3", reason="the client is an extra")
from stillhash.integrations.langchain import StillhashVectorStore
from tests.integrations.word_embeddings import WordVectors, labelled_texts
from tests.server.live_server import live_server

pytestmark = pytest.mark.integrations


def test_a_served_collection_answers_as_a_local_one(tmp_path: Path) -> None:
    texts, labels = labelled_texts(300)
    ids = [f"text-{row}" for row in range(300)]
    local = StillhashVectorStore.from_texts(
        texts, WordVectors(), ids=ids, labels=labels, path=tmp_path / "local", init_rows=300
    )
    collection = stillhash.open(tmp_path / "served", dim=24, init_rows=300)
    with local, live_server({"texts": collection}) as server, stillhash.Client(server.url) as client:
        store = StillhashVectorStore(WordVectors(), collection=client)
        assert store.add_texts(texts, ids=ids, labels=labels) == ids
        assert store.get_by_ids(["text-3", "x"]) == local.get_by_ids(["text-3"])
        assert store.similarity_search("apple") == local.similarity_search("apple")
        relevance = [
            [score for _, score in one.similarity_search_with_relevance_scores("apple")] for one in (store, local)
        ]
        assert relevance[0] == pytest.approx(relevance[1])
        assert store.max_marginal_relevance_search("apple") == local.max_marginal_relevance_search("apple")
        store.feedback("apple", "text-9", "up")
        assert store.similarity_search("apple", k=1)[0].id == "text-9"
        store.delete(["text-9"])
        assert client.count() == 299
