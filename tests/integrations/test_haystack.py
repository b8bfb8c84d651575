"""The document store of Haystack: what its own suite does not look at."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("haystack", reason="haystack-ai is not installed")

from haystack import Document, Pipeline
from haystack.dataclasses import ByteStream, SparseEmbedding
from haystack.document_stores.types import FilterPolicy
from haystack.errors import FilterError

import stillhash
from stillhash.errors import Closed, Conflict, InvalidInput
from stillhash.integrations.haystack import (
    StillhashDocumentStore,
    StillhashEmbeddingRetriever,
    StillhashFeedback,
    StillhashHybridRetriever,
)
from tests.support.guides import run_guide

pytestmark = pytest.mark.integrations
DIM = 16
SMALL = {"bits": 32, "init_rows": 300, "learn_rows": 100}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StillhashDocumentStore]:
    store = StillhashDocumentStore(tmp_path / "documents", DIM, label_field="topic", settings=SMALL)
    yield store
    store.close()


def labelled_documents(count: int = 400, seed: int = 0) -> list[Document]:
    """Return documents of four topics, whose embeddings tell their topic."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(4, DIM))
    topics = rng.integers(4, size=count)
    embeddings = centres[topics] + rng.normal(size=(count, DIM))
    rows = zip(topics.tolist(), embeddings.tolist(), strict=True)
    return [
        Document(id=f"{seed}-{row}", content=f"text {row}", meta={"topic": f"topic {topic}"}, embedding=embedding)
        for row, (topic, embedding) in enumerate(rows)
    ]


def plain_documents(count: int) -> list[Document]:
    return [
        Document(id=f"plain {row}", content=f"plain {row}", meta={"topic": f"topic {row % 4}"}) for row in range(count)
    ]


def test_documents_without_an_embedding_disturb_nothing(tmp_path: Path) -> None:
    """Hash functions, model and answers are the same to the byte, whatever stands between the other documents."""
    embedded, plain = labelled_documents(700), plain_documents(700)
    mixed = [each for pair in zip(embedded, plain, strict=True) for each in pair]
    answers = []
    for name, documents in (("alone", embedded), ("mixed", mixed)):
        store = StillhashDocumentStore(tmp_path / name, DIM, label_field="topic", settings=SMALL)
        for start in range(0, len(documents), len(documents) // 7):
            store.write_documents(documents[start : start + len(documents) // 7])
        stats = store.collection.stats()
        assert stats["fitted"] and stats["version"] > 1
        answers.append([store.embedding_retrieval(one.embedding or [], top_k=20) for one in embedded[:20]])
        answers[-1].append([Document(id=str(stats["version"])), *map(str, store.collection.codes(["0-5"]).tolist())])
        store.close()
    assert answers[0] == answers[1]


def test_embeddings_come_back_as_float16(store: StillhashDocumentStore) -> None:
    documents = labelled_documents(400)
    store.write_documents(documents[:10])
    for written in (10, 400):  # before and after hash functions are fitted
        store.write_documents(documents[10:written])
        for document in store.filter_documents():
            expected = next(each for each in documents if each.id == document.id)
            assert document.embedding == np.float32(expected.embedding).astype(np.float16).tolist()
    hit = store.embedding_retrieval(documents[3].embedding or [], top_k=1, return_embedding=True)[0]
    assert hit.id == "0-3" and hit.embedding == np.float32(documents[3].embedding).astype(np.float16).tolist()
    assert store.embedding_retrieval(documents[3].embedding or [], top_k=1)[0].embedding is None


def test_embeddings_that_are_not_kept_do_not_come_back(tmp_path: Path) -> None:
    store = StillhashDocumentStore(tmp_path / "documents", DIM, keep_embeddings=False, settings=SMALL)
    for documents in (labelled_documents(10), labelled_documents(300, seed=1)):  # before and after hash functions
        store.write_documents(documents)
        assert {document.embedding for document in store.filter_documents()} == {None}
    store.close()


def test_all_fields_come_back(store: StillhashDocumentStore) -> None:
    blob = ByteStream(bytes(range(256)), meta={"name": "a.bin"}, mime_type="application/octet-stream")
    meta = {"nothing": None, "deep": {"list": [1, 2.5, "x", {"y": True}]}, "labels": ["a"], "id": 3, "text": "own"}
    documents = [
        Document(content="all", blob=blob, meta=meta, score=0.5, sparse_embedding=SparseEmbedding([1, 5], [0.5, 2.0])),
        Document(blob=blob, embedding=[0.5] * DIM),
        Document(content="", meta={"when": "2024-05-06"}),
        Document(content="\u00e9\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")),
    ]
    store.write_documents(documents)
    assert store.filter_documents() == documents
    assert (
        store.filter_documents({"field": "blob.mime_type", "operator": "==", "value": blob.mime_type}) == documents[:2]
    )
    assert store.filter_documents({"field": "blob", "operator": "==", "value": None}) == documents[2:]
    assert store.filter_documents({"field": "embedding", "operator": "!=", "value": None}) == documents[1:2]
    assert store.filter_documents({"field": "id", "operator": "in", "value": [documents[2].id, "x"]}) == documents[2:3]
    assert store.filter_documents({"field": "content", "operator": "==", "value": "all"}) == documents[:1]
    assert store.filter_documents({"field": "meta", "operator": "!=", "value": None}) == documents
    assert store.filter_documents({"field": "meta.when", "operator": ">", "value": date(2024, 5, 5)}) == documents[2:3]


def test_updated_labels_are_learnt(store: StillhashDocumentStore) -> None:
    store.write_documents([*labelled_documents(20), *plain_documents(4)])
    condition = {"field": "meta.topic", "operator": "==", "value": "topic 1"}
    expected = [each.id for each in store.filter_documents(condition)]
    assert store.update_by_filter(condition, {"topic": ["topic 1", "new"], "seen": None}) == len(expected) > 2
    assert store.count_documents_by_filter(condition) == 0
    assert {str(name) for name in store.collection.ids({"labels": "new"})} == set(expected) - {"plain 1"}
    changed = store.filter_documents({"field": "meta.topic", "operator": "!=", "value": None})
    assert all(each.meta == {"topic": ["topic 1", "new"], "seen": None} for each in changed if each.id in expected)


def test_learning_and_labels(store: StillhashDocumentStore) -> None:
    documents = labelled_documents(800)
    store.write_documents(documents)
    assert store.collection.stats()["version"] > 1
    query = documents[0].embedding or []
    by_labels = store.embedding_retrieval(query, top_k=50, balance=1)
    assert [each.meta["topic"] for each in by_labels].count(documents[0].meta["topic"]) > 40
    assert {each.meta["topic"] for each in store.embedding_retrieval(query, labels=["topic 2"])} == {"topic 2"}
    year = {"field": "meta.topic", "operator": "==", "value": "topic 3"}
    assert store.embedding_retrieval(query, labels=["topic 2"], filters=year) == []
    assert store.embedding_retrieval(query, top_k=0) == []


def test_votes_teach_the_store(store: StillhashDocumentStore) -> None:
    documents = labelled_documents(400)
    feedback = StillhashFeedback(store, source="ann")
    store.write_documents(documents[:5])
    query = documents[0].embedding or []
    assert feedback.run(query, documents[:1], ["up"])["version"] == 0  # before there are hash functions
    feedback.run(query, documents[:1], [0.0])
    store.write_documents(documents[5:])
    before = store.embedding_retrieval(query, top_k=10)
    version = feedback.run(query, before, ["down", *[None] * 8, 1.0])["version"]
    after = store.embedding_retrieval(query, top_k=400)
    assert (after[0].id, after[-1].id) == (before[9].id, before[0].id)
    assert feedback.run(query, before, [None] * 10) == {"version": version}
    assert asyncio.run(feedback.run_async(query, before[:1], [0]))["version"] == version + 1
    with pytest.raises(InvalidInput):
        feedback.run(query, before, ["up"])


def test_hybrid_retrieval(store: StillhashDocumentStore) -> None:
    documents = labelled_documents(400)
    rare = Document(id="rare", content="an osprey over the lake", meta={"topic": "topic 1"}, embedding=[9.0] * DIM)
    store.write_documents([*documents, rare, *plain_documents(3)])
    query = documents[0].embedding or []
    retriever = StillhashHybridRetriever(store, top_k=5)
    assert "rare" not in [each.id for each in store.embedding_retrieval(query, top_k=5)]
    hits = retriever.run("Osprey", query)["documents"]
    answer = store.collection.hybrid_search(query, "Osprey", 5)
    assert [(each.id, each.score) for each in hits] == [(hit.id, hit.score) for hit in answer.hits]
    assert "rare" in [each.id for each in hits[:2]]
    heavy = StillhashHybridRetriever(store, word_weight=10, return_embedding=True)
    assert heavy.run("osprey", query, top_k=1)["documents"][0].embedding == [9.0] * DIM
    assert asyncio.run(heavy.run_async("osprey", query)) == heavy.run("osprey", query)
    only = {"filters": {"field": "id", "operator": "==", "value": "rare"}}
    assert [each.id for each in retriever.run("text", query, labels=["topic 1"], **only)["documents"]] == ["rare"]
    assert retriever.run("text", query, labels=["topic 2"], **only)["documents"] == []
    assert retriever.run("text", query, top_k=0)["documents"] == []
    assert StillhashHybridRetriever.from_dict(heavy.to_dict()).to_dict() == heavy.to_dict()
    with pytest.raises(InvalidInput):
        StillhashHybridRetriever(store, word_weight=0)


def test_components_are_serialised(store: StillhashDocumentStore) -> None:
    documents = labelled_documents(30)
    store.write_documents(documents)
    condition = {"field": "meta.topic", "operator": "==", "value": "topic 1"}
    retriever = StillhashEmbeddingRetriever(store, condition, 3, FilterPolicy.MERGE, ["topic 1"], 0.5, True)
    pipeline = Pipeline()
    pipeline.add_component("retriever", retriever)
    pipeline.add_component("feedback", StillhashFeedback(store, "ann"))
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["stillhash.integrations.haystack"])
    assert again.to_dict() == pipeline.to_dict()
    loaded: Any = again.get_component("retriever")
    query = documents[0].embedding or []
    hits = loaded.run(query, filters={"field": "id", "operator": "!=", "value": documents[0].id})["documents"]
    assert [each.meta["topic"] for each in hits] == ["topic 1"] * 3 and hits[0].embedding is not None
    assert asyncio.run(loaded.run_async(query, top_k=2))["documents"] == loaded.run(query, top_k=2)["documents"]
    assert loaded.document_store.folder is store.folder  # one folder in a process
    store.close()
    assert loaded.document_store.count_documents() == 30
    with pytest.raises(Closed):
        store.count_documents()
    loaded.document_store.close()


def test_stores_of_a_folder(store: StillhashDocumentStore) -> None:
    store.write_documents(labelled_documents(3))
    with pytest.raises(Conflict):
        StillhashDocumentStore(store.path, DIM + 1).count_documents()
    reader = StillhashDocumentStore(store.path, DIM, read_only=True)
    assert reader.filter_documents() == store.filter_documents()
    store.delete_documents(["0-1", "no such document"])
    assert [each.id for each in reader.filter_documents()] == ["0-0", "0-2"]
    reader.close()
    copies = [copy.deepcopy(store), pickle.loads(pickle.dumps(store))]
    assert [each.count_documents() for each in copies] == [2, 2] and copies[0].folder is store.folder
    for each in copies:
        each.close()
    dropped = StillhashDocumentStore(store.path, DIM)
    assert dropped.count_documents() == 2
    folder = dropped.folder
    assert folder.users == 2
    del dropped
    assert folder.users == 1


def test_recreate_forgets_what_was_learnt(store: StillhashDocumentStore) -> None:
    store.write_documents([*labelled_documents(400), *plain_documents(2)])
    store.delete_all_documents()
    assert store.count_documents() == 0 and store.collection.stats()["fitted"]
    store.delete_all_documents(recreate_index=True)
    assert store.count_documents() == 0 and not store.collection.stats()["fitted"]
    assert store.write_documents(labelled_documents(3)) == 3


def test_an_empty_filter_deletes_nothing(store: StillhashDocumentStore) -> None:
    store.write_documents(plain_documents(2))
    for method in (store.delete_by_filter, lambda filters: store.update_by_filter(filters, {"a": 1})):
        with pytest.raises(FilterError):
            method({})
    assert store.count_documents() == 2


def test_the_embedded_documents_are_a_collection(store: StillhashDocumentStore) -> None:
    store.write_documents([*labelled_documents(3), *plain_documents(2)])
    store.close()
    with stillhash.open(Path(store.path) / "embedded", read_only=True) as collection:
        assert collection.count() == 3 and collection.verify() == []
        item = collection.get("0-1")
        assert item is not None and item.metadata is not None and item.metadata["text"] == "text 1"
        assert item.labels == [item.metadata["meta"]["topic"]]


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "3", None, True])
def test_wrong_arguments(store: StillhashDocumentStore, wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        StillhashEmbeddingRetriever(store, top_k=wrong)
    with pytest.raises(InvalidInput):
        StillhashDocumentStore("anywhere", wrong)
    with pytest.raises(InvalidInput):
        StillhashFeedback(wrong)


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_guide("integrations/haystack.md", monkeypatch, tmp_path) >= 3
