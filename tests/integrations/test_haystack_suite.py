"""Haystack's own suites for document stores, with and without asyncio.

Three tests are overridden, as the suites ask every store to do:

- `test_write_documents` and its async twin: what happens without a policy is for the store to say. Here NONE is FAIL.
- `assert_documents_are_equal`: embeddings are kept as float16, so they are compared with a tolerance. All else, and the
  order, is compared exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("haystack", reason="haystack-ai is not installed")
pytest.importorskip("pytest_asyncio", reason="pytest-asyncio is not installed, and Haystack's suite needs it")

from haystack import Document
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.testing import document_store as suite
from haystack.testing import document_store_async as async_suite

from stillhash.integrations.haystack import StillhashDocumentStore

pytestmark = pytest.mark.integrations
DIM = 768  # of the embeddings of the suites


@pytest.fixture
def document_store(tmp_path: Path) -> Iterator[StillhashDocumentStore]:
    store = StillhashDocumentStore(tmp_path / "documents", DIM)
    yield store
    store.close()


class RoundedEmbeddings:
    @staticmethod
    def assert_documents_are_equal(received: list[Document], expected: list[Document]) -> None:
        assert [replace(one, embedding=None) for one in received] == [replace(one, embedding=None) for one in expected]
        for one, other in zip(received, expected, strict=True):
            assert (one.embedding is None) == (other.embedding is None)
            if one.embedding is not None:
                assert one.embedding == np.array(other.embedding, np.float32).astype(np.float16).tolist()


class TestDocumentStore(
    RoundedEmbeddings,
    suite.DocumentStoreBaseExtendedTests,
    suite.CountDocumentsByFilterTest,
    suite.CountUniqueMetadataByFilterTest,
    suite.GetMetadataFieldsInfoTest,
    suite.GetMetadataFieldMinMaxTest,
    suite.GetMetadataFieldUniqueValuesTest,
):
    @pytest.fixture
    def document_store(self, tmp_path: Path) -> Iterator[StillhashDocumentStore]:
        store = StillhashDocumentStore(tmp_path / "documents", DIM)
        yield store
        store.close()

    def test_write_documents(self, document_store: Any) -> None:
        document = Document(content="test doc")
        assert document_store.write_documents([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([document], policy=DuplicatePolicy.NONE)
        assert document_store.filter_documents() == [document]


class TestDocumentStoreAsync(
    RoundedEmbeddings,
    async_suite.CountDocumentsAsyncTest,
    async_suite.CountDocumentsByFilterAsyncTest,
    async_suite.CountUniqueMetadataByFilterAsyncTest,
    async_suite.DeleteAllAsyncTest,
    async_suite.DeleteByFilterAsyncTest,
    async_suite.DeleteDocumentsAsyncTest,
    async_suite.FilterDocumentsAsyncTest,
    async_suite.GetMetadataFieldMinMaxAsyncTest,
    async_suite.GetMetadataFieldUniqueValuesAsyncTest,
    async_suite.GetMetadataFieldsInfoAsyncTest,
    async_suite.UpdateByFilterAsyncTest,
    async_suite.WriteDocumentsAsyncTest,
):
    @pytest.mark.asyncio
    async def test_write_documents_async(self, document_store: Any) -> None:
        document = Document(content="test doc")
        assert await document_store.write_documents_async([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async([document], policy=DuplicatePolicy.NONE)
        assert await document_store.filter_documents_async() == [document]


def test_every_class_of_the_suites_is_used() -> None:
    for module, used in ((suite, TestDocumentStore), (async_suite, TestDocumentStoreAsync)):
        classes = [each for name, each in vars(module).items() if isinstance(each, type) and name.endswith("Test")]
        assert len(classes) >= 10 and [each.__name__ for each in classes if not issubclass(used, each)] == []
