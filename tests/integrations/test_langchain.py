"""The suites of langchain-tests, whole, over a collection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_tests", reason="langchain-tests is not installed")
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_tests.integration_tests import RetrieversIntegrationTests, VectorStoreIntegrationTests
from langchain_tests.integration_tests.indexer import (
    AsyncDocumentIndexTestSuite,
    DocumentIndexerTestSuite,
)

from stillhash.integrations.langchain import (
    StillhashDocumentIndex,
    StillhashRetriever,
    StillhashVectorStore,
)

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.asyncio,  # for coroutines of the suites, so that pytest needs no option; it warns of plain functions
    pytest.mark.filterwarnings("ignore:.*is marked with '@pytest.mark.asyncio' but it is not an async function"),
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StillhashVectorStore]:
    with StillhashVectorStore(DeterministicFakeEmbedding(size=6), tmp_path / "documents") as opened:
        yield opened


class TestVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, store: StillhashVectorStore) -> StillhashVectorStore:  # type: ignore[override]
        return store


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")  # what LangChain says of the interface
class TestDocumentIndex(DocumentIndexerTestSuite):
    @pytest.fixture
    def index(self, store: StillhashVectorStore) -> StillhashDocumentIndex:  # type: ignore[override]
        return StillhashDocumentIndex(store=store)


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")
class TestAsyncDocumentIndex(AsyncDocumentIndexTestSuite):
    @pytest.fixture
    def index(self, store: StillhashVectorStore) -> StillhashDocumentIndex:  # type: ignore[override]
        return StillhashDocumentIndex(store=store)


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def filled(self, store: StillhashVectorStore) -> None:
        store.add_texts([f"text {number}" for number in range(6)])
        self.store = store

    @property
    def retriever_constructor(self) -> type[StillhashRetriever]:
        return StillhashRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"vectorstore": self.store}

    @property
    def retriever_query_example(self) -> str:
        return "text 3"
