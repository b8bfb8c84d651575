from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stillhash
from stillhash.errors import InvalidInput, StillhashError

pytest.importorskip("langchain_core", reason="langchain-core is an extra")
from langchain_core.documents import Document
from langchain_core.indexing import InMemoryRecordManager, aindex, index
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from stillhash.integrations.langchain import StillhashVectorStore
from stillhash.integrations.langchain.document_collection import select_diverse
from stillhash.integrations.langchain.documents import stored_metadata, to_document
from tests.integrations.word_embeddings import FRUIT, WordVectors, labelled_texts

pytestmark = pytest.mark.integrations

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(["text", "text_", "text__", "labels", "id", "document"]) | st.text(max_size=5)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StillhashVectorStore]:
    with StillhashVectorStore(WordVectors(), tmp_path / "documents") as opened:
        yield opened


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StillhashVectorStore]:
    """Documents with labels, enough for hash functions."""
    texts, labels = labelled_texts(300)
    path = tmp_path_factory.mktemp("fitted") / "documents"
    ids = [f"text-{row}" for row in range(300)]
    metadatas = [{"labels": names, "row": row} for row, names in enumerate(labels)]
    with StillhashVectorStore.from_texts(
        texts, WordVectors(), metadatas, ids=ids, path=path, init_rows=300, keep_features=True
    ) as opened:
        yield opened


@given(st.text(), st.dictionaries(KEYS, JSON, max_size=4))
def test_text_and_metadata_come_back_from_stored_metadata(text: str, metadata: dict[str, Any]) -> None:
    stored = stored_metadata(text, metadata)
    assert stored["text"] == text
    document = to_document(stillhash.Item("7", [], stored))
    assert document == Document(id="7", page_content=text, metadata=metadata)


def test_metadata_comes_back_from_disk(store: StillhashVectorStore, tmp_path: Path) -> None:
    metadata = {"text": "mine", "text_": ["a", 1], "labels": "fruit", "nested": {"a": [None, True, 1.5, {"b": "ü"}]}}
    store.add_documents([Document(id="a", page_content="apple", metadata=metadata)])
    store.close()
    with StillhashVectorStore(WordVectors(), tmp_path / "documents", read_only=True) as again:
        assert again.get_by_ids(["a"]) == [Document(id="a", page_content="apple", metadata=metadata)]
        assert again.similarity_search("apple", filter={"text_": "mine", "labels": "fruit"}) == again.get_by_ids(["a"])
        assert again.collection.get("a").labels == ["fruit"]
        with pytest.raises(StillhashError):
            again.add_texts(["pear"])
        with pytest.raises(StillhashError):
            again.delete(["a"])


def test_documents_of_a_small_collection_are_ranked_by_cosine(store: StillhashVectorStore) -> None:
    texts, _ = labelled_texts(40)
    store.add_texts(texts)
    embedding = WordVectors()
    X, q = np.array(embedding.embed_documents(texts)), np.array(embedding.embed_query("apple bus"))
    cosine = X @ q / np.linalg.norm(X, axis=1) / np.linalg.norm(q)
    scored = store.similarity_search_with_relevance_scores("apple bus", k=40)
    np.testing.assert_allclose([score for _, score in scored], np.sort((1 + cosine) / 2)[::-1], atol=1e-6)
    best = texts[int(np.argmax(cosine))]
    assert scored[0][0].page_content == store.similarity_search_by_vector(q.tolist(), k=1)[0].page_content == best
    chosen = [document.page_content for document in store.max_marginal_relevance_search("apple bus", k=6, fetch_k=20)]
    near = np.argsort(-cosine, kind="stable")[:20]
    assert chosen == [texts[near[at]] for at in maximal_marginal_relevance(q, X[near].tolist(), 0.5, 6)]


@given(st.integers(0, 12), st.integers(1, 14), st.floats(0, 1), st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_diverse_hits_are_those_of_langchain(rows: int, k: int, lambda_mult: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, q = rng.normal(size=(rows, 3)), rng.normal(size=3)
    relevance = X @ q / np.linalg.norm(X, axis=1) / np.linalg.norm(q)
    assert select_diverse(relevance, X, k, lambda_mult) == maximal_marginal_relevance(q, X.tolist(), lambda_mult, k)


def test_ranking_learns_from_labels_at_once(fitted: StillhashVectorStore, tmp_path: Path) -> None:
    texts, labels = labelled_texts(300)
    with StillhashVectorStore.from_texts(texts, WordVectors(), path=tmp_path / "plain", init_rows=300) as plain:
        hits = [one.similarity_search("quince", k=100) for one in (plain, fitted)]
    kind = dict(zip(texts, labels, strict=True))
    fruit = [sum(kind[document.page_content] == ["fruit"] for document in documents) for documents in hits]
    assert fruit[0] < fruit[1]
    version = fitted.collection.stats()["version"]
    fitted.add_texts(["medlar"], ids=["medlar"], labels=[["fruit"]])
    assert fitted.collection.stats()["version"] == version + 1
    assert fitted.collection.get("medlar").labels == ["fruit"] and fitted.get_by_ids(["medlar"])[0].metadata == {}
    fitted.delete(["medlar"])


def test_relevance_is_from_0_to_1_after_learning(fitted: StillhashVectorStore) -> None:
    scored = fitted.similarity_search_with_relevance_scores("apple plum", k=300)
    assert len(scored) == 300 and all(0 <= score <= 1 for _, score in scored)
    assert scored[0][1] > 0.7 > 0.5 > scored[-1][1]
    for version in (0, "hamming"):
        earlier = fitted.similarity_search_with_relevance_scores("apple plum", k=300, version=version)
        assert all(0 <= score <= 1 for _, score in earlier) and len({score for _, score in earlier}) > 5
    near = fitted.similarity_search_with_relevance_scores("apple plum", k=300, score_threshold=0.7)
    assert near == [pair for pair in scored if pair[1] >= 0.7]
    retriever = fitted.as_retriever(search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.7})
    assert retriever.invoke("apple plum") == [document for document, _ in near][:4]


def test_diverse_documents_differ_more(fitted: StillhashVectorStore) -> None:
    def mean_cosine(documents: list[Document]) -> float:
        X = fitted.collection.reconstruct([document.id for document in documents])
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        return float((X @ X.T).mean())

    near = fitted.max_marginal_relevance_search("apple", k=5, fetch_k=50, lambda_mult=1)
    diverse = fitted.as_retriever(search_type="mmr", k=5, search_kwargs={"fetch_k": 50, "lambda_mult": 0.1})
    assert mean_cosine(diverse.invoke("apple")) < mean_cosine(near)
    with pytest.raises(InvalidInput, match="lambda_mult"):
        fitted.max_marginal_relevance_search("apple", lambda_mult=2)


def test_filters_and_unknown_arguments(fitted: StillhashVectorStore) -> None:
    hits = fitted.similarity_search("bus", k=300, filter={"labels": "fruit", "row": {"$lt": 100}})
    assert hits and all(hit.metadata["labels"] == ["fruit"] and hit.metadata["row"] < 100 for hit in hits)
    assert fitted.as_retriever(search_kwargs={"filter": {"row": 7}}).invoke("bus") == fitted.get_by_ids(["text-7"])
    assert len(fitted.similarity_search("bus", k=500, filter={})) == fitted.collection.count()
    for wrong in ({"filter": {"row": {"$near": 1}}}, {"filter": print}, {"fetch": 3}, {"k": 0}, {"version": 10**6}):
        with pytest.raises(StillhashError):
            fitted.similarity_search("bus", **wrong)  # type: ignore[arg-type]


def test_votes_place_documents(fitted: StillhashVectorStore) -> None:
    retriever = fitted.as_retriever(k=3)
    last = fitted.similarity_search("plum pear", k=300)[-1]
    assert last.id is not None
    retriever.feedback("plum pear", last.id, "up", source="ann")
    assert retriever.invoke("plum pear")[0] == last
    assert fitted.similarity_search_with_relevance_scores("plum pear", k=1) == [(last, 1.0)]
    asyncio.run(retriever.afeedback("plum pear", [last.id], 0, source="ann"))
    assert fitted.similarity_search("plum pear", k=300)[-1] == last
    with pytest.raises(InvalidInput, match="vote"):
        retriever.feedback("plum pear", last.id, "sideways")
    with pytest.raises(StillhashError):
        retriever.feedback("plum pear", "no such document", "up")


def test_votes_count_before_hash_functions(store: StillhashVectorStore) -> None:
    with pytest.raises(InvalidInput, match="id"):
        store.feedback("apple", "a", "up")
    store.add_texts([*FRUIT], ids=[*FRUIT])
    store.feedback("apple", "pear", "up")
    assert store.similarity_search("apple", k=1)[0].id == "pear"
    store.collection.fit()
    assert store.similarity_search("apple", k=1)[0].id == "pear"


def test_ids_of_an_existing_collection_may_be_integers(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "numbers", dim=24) as collection:
        collection.add([1, 2, "2"], np.eye(3, 24), metadata=[{"text": "one"}, {"text": "two"}, None])
        store = StillhashVectorStore(WordVectors(), collection=collection)
        assert store.get_by_ids(["1", "2", "3", "x"]) == [
            Document(id="1", page_content="one"),
            Document(id="2", page_content=""),
        ]
        store.add_texts(["uno"], ids=["1"])
        assert collection.ids() == [1, 2, "2"] and collection.get(1).metadata == {"text": "uno"}
        store.delete(["1"])
        assert collection.ids() == [2, "2"]
        store.close()
        assert collection.count() == 2  # it is not closed with the store


def test_delete_by_a_condition(store: StillhashVectorStore) -> None:
    store.delete(where={"a": 1})
    store.add_texts(["apple", "pear", "plum"], [{"a": 1}, {"a": 2}, None])
    assert store.delete(where={"a": {"$gte": 2}}) and store.collection.count() == 2
    for wrong in ({}, {"ids": ["x"], "where": {"a": 1}}, {"where": {}}, {"ids": "apple"}):
        with pytest.raises(InvalidInput):
            store.delete(**wrong)
    assert store.delete(where="all") and store.collection.count() == 0


def test_batches_are_stored_one_by_one(store: StillhashVectorStore) -> None:
    assert len(store.add_texts(["a b", "c", "d", "e", "f"], batch_size=2)) == 5
    assert [entry.rows for entry in store.collection.audit()] == [2, 2, 1]


def test_index_keeps_what_did_not_change(store: StillhashVectorStore) -> None:
    records = InMemoryRecordManager(namespace="documents")
    records.create_schema()
    documents = [Document(page_content=f"{word} tree", metadata={"source": word}) for word in FRUIT]
    options: dict[str, Any] = {"cleanup": "full", "source_id_key": "source", "key_encoder": "sha256"}
    first = index(documents, records, store, **options)
    assert (first["num_added"], first["num_skipped"], first["num_deleted"]) == (4, 0, 0)
    again = index(documents[:3], records, store, **options)
    assert (again["num_added"], again["num_skipped"], again["num_deleted"]) == (0, 3, 1)
    changed = [Document(page_content="medlar tree", metadata={"source": "apple"})]
    options["cleanup"] = "incremental"
    third = asyncio.run(aindex(changed, records, store, **options))
    assert (third["num_added"], third["num_deleted"]) == (1, 1)
    texts = {document.page_content for document in store.similarity_search("tree", k=9)}
    assert texts == {"medlar tree", "pear tree", "plum tree"}


def test_async_calls_do_the_same(tmp_path: Path) -> None:
    texts, labels = labelled_texts(300, seed=1)
    documents = [Document(page_content=text, metadata={"row": row}) for row, text in enumerate(texts)]

    async def calls() -> None:
        path = tmp_path / "documents"
        store = await StillhashVectorStore.afrom_documents(
            documents, WordVectors(), path=path, init_rows=300, labels=labels
        )
        vector = WordVectors().embed_query("apple")
        assert await store.asimilarity_search("apple") == store.similarity_search("apple")
        assert await store.asimilarity_search_with_score("apple") == store.similarity_search_with_score("apple")
        assert await store.asimilarity_search_by_vector(vector) == store.similarity_search_by_vector(vector)
        relevant = await store.asimilarity_search_with_relevance_scores("apple")
        assert relevant == store.similarity_search_with_relevance_scores("apple")
        assert await store.amax_marginal_relevance_search("apple") == store.max_marginal_relevance_search("apple")
        many = await asyncio.gather(*(store.asimilarity_search(text, k=1) for text in texts[:30]))
        assert [hits[0].metadata["row"] for hits in many] == list(range(30))
        await asyncio.gather(*(store.aadd_texts([text], ids=[text]) for text in FRUIT))
        assert store.collection.count() == 304 and store.collection.verify() == []
        await store.aclose()

    asyncio.run(calls())
