"""Writes of the document store of Haystack happen as a whole or not at all."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("haystack", reason="haystack-ai is not installed")

from haystack import Document
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy

from stillhash.errors import BadState, Closed, InvalidInput
from stillhash.integrations.haystack import StillhashDocumentStore
from stillhash.integrations.haystack.folder import EMBEDDED, UNEMBEDDED, Step

pytestmark = pytest.mark.integrations
DIM = 16


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StillhashDocumentStore]:
    store = StillhashDocumentStore(tmp_path / "documents", DIM, label_field="topic", settings={"bits": 32})
    yield store
    store.close()


@pytest.mark.parametrize(
    "bad",
    [
        Document(id="bad", content="x", meta={"x": float("nan")}),
        Document(id="bad", content="x", meta={"x": b"bytes"}),
        Document(id="bad", content="x", embedding=[1.0] * (DIM + 1)),
        Document(id="bad", content="x", embedding=[float("inf")] * DIM),
        Document(id="bad", content="x", embedding=[1e6] * DIM),
        Document(id="bad", content="x", embedding=[1.0] * DIM, meta={"topic": {"no": "label"}}),
        Document(id="bad", content="zero \0"),
    ],
)
def test_a_bad_document_changes_nothing(store: StillhashDocumentStore, bad: Document) -> None:
    good = [Document(id="a", embedding=[1.0] * DIM), Document(id="b", content="x")]
    for documents in ([*good, bad], [bad, *good]):
        with pytest.raises(InvalidInput):
            store.write_documents(documents, DuplicatePolicy.OVERWRITE)
        assert store.count_documents() == 0


@pytest.mark.parametrize("policy", DuplicatePolicy)
def test_policies_hold_for_both_kinds(store: StillhashDocumentStore, policy: DuplicatePolicy) -> None:
    """A document may get an embedding, or lose it, when it is written again."""
    vector = [1.0] * DIM
    old = [Document(id="a", content="old", embedding=vector), Document(id="b", content="old")]
    new = [
        Document(id="a", content="new"),
        Document(id="b", content="new", embedding=vector),
        Document(id="c", content="new", embedding=vector),
        Document(id="c", content="last"),
    ]
    store.write_documents(old)
    if policy in (DuplicatePolicy.NONE, DuplicatePolicy.FAIL):
        with pytest.raises(DuplicateDocumentError):
            store.write_documents(new, policy)
        with pytest.raises(DuplicateDocumentError):
            store.write_documents([new[2], new[2]], policy)
        assert store.filter_documents() == old
    elif policy is DuplicatePolicy.SKIP:
        assert store.write_documents(new, policy) == 1
        assert store.filter_documents() == [*old, new[2]]
    else:
        assert store.write_documents(new, policy) == 3
        assert store.filter_documents() == [new[0], new[1], new[3]]
        assert [each.id for each in store.embedding_retrieval(vector)] == ["b"]


CHILD = """
import os, sys
from haystack import Document
from haystack.document_stores.types import DuplicatePolicy
from stillhash.integrations.haystack import StillhashDocumentStore
from stillhash.integrations.haystack.folder import DocumentFolder

left = int(sys.argv[2])

def stop(frame, event, argument):
    global left
    if frame.f_code is DocumentFolder._do.__code__ and event in ("call", "return"):
        if left == 0:
            os._exit(9)
        left -= 1

vector = [1.0] * 16
store = StillhashDocumentStore(sys.argv[1], 16, label_field="topic", settings={"bits": 32})
store.write_documents([Document(id="a", embedding=vector), Document(id="b", content="old")])
sys.setprofile(stop)
new = [Document(id="a", content="new"), Document(id="b", embedding=vector, meta={"topic": "x"}), Document(id="c")]
store.write_documents(new, DuplicatePolicy.OVERWRITE)
"""


@pytest.mark.parametrize("moment", range(8))
def test_a_write_of_both_kinds_survives_a_crash(tmp_path: Path, moment: int) -> None:
    """Four steps; the process ends before or after one of them. All of the write is there afterwards, learnt once."""
    child = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), str(moment)], env=os.environ, check=False)
    assert child.returncode == 9
    store = StillhashDocumentStore(tmp_path, DIM)
    assert [(each.id, each.embedding is None) for each in store.filter_documents()] == [
        ("a", True),
        ("b", False),
        ("c", True),
    ]
    assert store.collection.stats()["pending"] == 1
    assert store.collection.ids() == ["b"] and store.folder.unembedded.ids() == ["a", "c"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["embedded", "unembedded"]
    store.close()


@pytest.mark.parametrize("failing", [EMBEDDED, UNEMBEDDED])
def test_a_step_that_fails(store: StillhashDocumentStore, failing: str) -> None:
    """If it is the first, nothing has changed; a later one is done when the folder is opened again."""
    folder = store.folder
    dict(folder.collections())[failing].close()
    steps = [
        Step(EMBEDDED, "write", ["a"], [[1.0] * DIM], [["x"]], [{"id": "a", "order": 1, "meta": {}}]),
        Step(UNEMBEDDED, "write", ["b"], metadata=[{"id": "b", "order": 2, "meta": {}}]),
    ]
    with pytest.raises(Closed):
        folder.apply(steps)
    assert (folder.path / "journal").exists() == (failing == UNEMBEDDED)
    store.close()
    again = StillhashDocumentStore(store.path, DIM)
    assert [each.id for each in again.filter_documents()] == ([] if failing == EMBEDDED else ["a", "b"])
    again.close()


@pytest.mark.parametrize("content", [b"", b"[]" * 5000, b"{}"])
def test_a_damaged_journal_is_reported(store: StillhashDocumentStore, content: bytes) -> None:
    store.write_documents([Document(id="a")])
    journal = store.folder.path / "journal"
    store.close()
    journal.write_bytes(content)
    again = StillhashDocumentStore(store.path, DIM)
    with pytest.raises(BadState):
        again.count_documents()
    journal.unlink()
    assert again.count_documents() == 1
    again.close()


def test_many_writers_and_readers_at_once(store: StillhashDocumentStore) -> None:
    """Every batch has documents of both kinds, and is seen whole by those who count."""

    async def write(batch: int) -> int:
        vectors = ([float(batch), *[1.0] * (DIM - 1)], None)
        documents = [Document(id=f"{batch} {kind}", embedding=vector) for kind, vector in enumerate(vectors)]
        return await store.write_documents_async(documents)

    async def count() -> int:
        return await store.count_documents_async()

    async def retrieve(batch: int) -> int:
        return len(await store.embedding_retrieval_async([float(batch)] * DIM, top_k=100))

    async def all_at_once() -> list[list[int]]:
        tasks = [asyncio.gather(write(batch), count(), retrieve(batch)) for batch in range(20)]
        return await asyncio.gather(*tasks)

    results = asyncio.run(all_at_once())
    assert all(written == 2 and counted % 2 == 0 and hits <= 20 for written, counted, hits in results)
    assert store.count_documents() == 40 and len(store.embedding_retrieval([1.0] * DIM, top_k=100)) == 20
