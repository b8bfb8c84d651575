"""Hybrid search, and the encoders of this library as embeddings."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

import stillhash
from stillhash.errors import Conflict, InvalidInput, StillhashError

pytest.importorskip("langchain_core", reason="langchain-core is an extra")
from stillhash.integrations.langchain import StillhashEmbeddings, StillhashVectorStore
from tests.integrations.word_embeddings import WordVectors, labelled_texts

pytestmark = pytest.mark.integrations


def test_hybrid_search_is_that_of_the_collection(tmp_path: Path) -> None:
    texts, labels = labelled_texts(300)
    path, embedding = tmp_path / "documents", WordVectors()
    options = {"init_rows": 300, "lexical_field": "text"}
    with StillhashVectorStore.from_texts(texts, embedding, path=path, labels=labels, **options) as store:
        query, where = "apple 17", {"labels": "fruit"}
        vector = np.array(embedding.embed_query(query), np.float32)
        expected = [hit.id for hit in store.collection.hybrid_search(vector, query, 5, where=where).hits]
        assert [document.id for document in store.similarity_search(query, 5, filter=where, hybrid=True)] == expected
        hits = asyncio.run(store.asimilarity_search(query, 5, filter=where, hybrid=True))
        assert [document.id for document in hits] == expected
        retriever = store.as_retriever(k=5, search_kwargs={"hybrid": True, "filter": where})
        assert [document.id for document in retriever.invoke(query)] == expected
        with pytest.raises(InvalidInput, match="hybrid"):
            store.similarity_search_by_vector(vector.tolist(), hybrid=True)
        with pytest.raises(InvalidInput, match="hybrid"):
            store.similarity_search_with_relevance_scores(query, hybrid=True)


def test_hybrid_search_needs_a_lexical_index(tmp_path: Path) -> None:
    with StillhashVectorStore.from_texts(["apple"], WordVectors(), path=tmp_path / "documents") as store:
        with pytest.raises(Conflict, match="lexical_field"):
            store.similarity_search("apple", hybrid=True)
        store.collection.set_lexical_field("text")
        assert store.similarity_search("apple", hybrid=True)[0].page_content == "apple"


def test_a_collection_remembers_the_encoder(tmp_path: Path) -> None:
    embedding = StillhashEmbeddings("words")
    texts = ["a red boat", "a green car"]
    assert embedding.embed_documents(texts) == embedding.encoder.encode_texts(texts).tolist()
    assert embedding.embed_documents([]) == []
    with StillhashVectorStore.from_texts(texts, embedding, path=tmp_path / "things") as store:
        assert store.collection.encoder.name == "words"
        assert store.similarity_search("boat", k=1)[0].page_content == "a red boat"
    with StillhashVectorStore(embedding, tmp_path / "things", read_only=True) as again:
        assert again.similarity_search("car", k=1)[0].page_content == "a green car"
    with stillhash.open(tmp_path / "vectors", dim=embedding.encoder.dim):
        pass
    with pytest.raises(StillhashError):
        StillhashVectorStore(embedding, tmp_path / "vectors")
    with pytest.raises(InvalidInput, match="encoder"):
        StillhashEmbeddings("vectors:16")
