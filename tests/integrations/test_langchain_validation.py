"""Documents, vectors and settings that a store refuses, after which nothing has changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash.errors import Conflict, InvalidInput, StillhashError, WrongType

pytest.importorskip("langchain_core", reason="langchain-core is an extra")
from stillhash.integrations.langchain import StillhashVectorStore
from tests.integrations.word_embeddings import WordVectors

pytestmark = pytest.mark.integrations


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StillhashVectorStore]:
    with StillhashVectorStore(WordVectors(), tmp_path / "documents") as opened:
        yield opened


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"metadatas": [{}, {"a": float("nan")}]}, "metadata"),
        ({"metadatas": [{}, {"a": {1, 2}}]}, "metadata"),
        ({"metadatas": [{}, {1: 2}]}, "metadatas"),
        ({"metadatas": [{}]}, "metadatas"),
        ({"metadatas": [{}, {"labels": {"a": 1}}]}, "labels"),
        ({"ids": ["a"]}, "ids"),
        ({"ids": ["a", "a"]}, "ids"),
        ({"ids": ["a", 1.5]}, "ids"),
        ({"labels": [["x"]]}, "labels"),
        ({"batch_size": 0}, "batch_size"),
        ({"other": 1}, "other"),
    ],
)
def test_invalid_documents_change_nothing(store: StillhashVectorStore, arguments: dict[str, Any], name: str) -> None:
    store.add_texts(["plum"], ids=["p"])
    with pytest.raises(InvalidInput, match=name):
        store.add_texts(["apple", "pear"], **arguments)
    assert [document.id for document in store.similarity_search("apple", k=9)] == ["p"]


class FixedVectors(WordVectors):
    """Return the same for all texts, whatever it is."""

    def __init__(self, vectors: Any) -> None:
        self.vectors = vectors

    def embed_documents(self, texts: list[str]) -> Any:
        return self.vectors

    def embed_query(self, text: str) -> Any:
        return self.vectors


@pytest.mark.parametrize(
    "vectors", [[[1.0, float("nan")]], [[1.0], [2.0]], [[]], [1.0, 2.0], [[1.0, 2.0], [3.0]], "ab", None, [["a", "b"]]]
)
def test_invalid_vectors_create_nothing(tmp_path: Path, vectors: Any) -> None:
    with StillhashVectorStore(FixedVectors(vectors), tmp_path / "documents") as store, pytest.raises(InvalidInput):
        store.add_texts(["apple"])
    assert not (tmp_path / "documents").exists()
    with stillhash.open(tmp_path / "other", dim=2) as collection:
        collection.add([1], [[1.0, 2.0]])
        other = StillhashVectorStore(FixedVectors(vectors), collection=collection)
        if vectors != [1.0, 2.0]:
            with pytest.raises((InvalidInput, Conflict)):
                other.similarity_search("apple")


def test_texts_and_settings_are_validated(store: StillhashVectorStore, tmp_path: Path) -> None:
    with pytest.raises(WrongType, match="texts"):
        store.add_texts("apple")
    with pytest.raises(WrongType, match=r"texts\[1\]"):
        store.add_texts(["apple", 7])  # type: ignore[list-item]
    with pytest.raises(WrongType, match="lenght"):
        StillhashVectorStore(WordVectors(), tmp_path / "other", lenght=7)
    with pytest.raises(InvalidInput, match="path"):
        StillhashVectorStore(WordVectors())
    with pytest.raises(StillhashError):
        StillhashVectorStore(WordVectors(), tmp_path / "other", read_only=True)
    with stillhash.open(tmp_path / "codes", bits=64, codes_only=True) as codes, pytest.raises(Conflict, match="codes"):
        StillhashVectorStore(WordVectors(), collection=codes)
    with pytest.raises(InvalidInput, match="metadata"):
        store.add_texts(["apple"], [{"a": float("inf")}])
    assert store.collection is None and not (tmp_path / "documents").exists()


def test_an_embedding_of_another_dim_is_a_conflict(store: StillhashVectorStore) -> None:
    store.add_texts(["apple"], ids=["a"])
    other = StillhashVectorStore(WordVectors(7), collection=store.collection)
    for call in (
        lambda: other.add_texts(["pear"]),
        lambda: other.similarity_search("pear"),
        lambda: other.max_marginal_relevance_search("pear"),
        lambda: other.feedback("pear", "a", "up"),
    ):
        with pytest.raises(Conflict, match="embedding"):
            call()
    assert store.collection.count() == 1
