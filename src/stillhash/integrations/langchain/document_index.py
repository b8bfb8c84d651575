"""A document index of LangChain: a retriever that documents can be added to, and deleted from."""

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.indexing.base import DeleteResponse, DocumentIndex, UpsertResponse
from pydantic import ConfigDict, Field

from stillhash.integrations.langchain.vector_store import StillhashVectorStore


class StillhashDocumentIndex(DocumentIndex):
    """The documents of a `StillhashVectorStore` as a document index, an interface that LangChain calls beta.

    store : the vector store. search_kwargs : arguments of its `similarity_search`.
    """

    store: StillhashVectorStore
    search_kwargs: dict[str, Any] = Field(default_factory=dict)
    model_config = ConfigDict(arbitrary_types_allowed=True)

    def upsert(self, items: Sequence[Document], /, **kwargs: Any) -> UpsertResponse:
        """Store documents, replacing those whose ids exist. All are stored, or none."""
        return {"succeeded": self.store.add_documents(list(items), **kwargs), "failed": []}

    async def aupsert(self, items: Sequence[Document], /, **kwargs: Any) -> UpsertResponse:
        """Do the same as `upsert`."""
        return {"succeeded": await self.store.aadd_documents(list(items), **kwargs), "failed": []}

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> DeleteResponse:
        """Delete documents by their ids, and return those that existed."""
        return _deleted(self.store.delete_existing(ids, **kwargs))

    async def adelete(self, ids: list[str] | None = None, **kwargs: Any) -> DeleteResponse:
        """Do the same as `delete`."""
        return _deleted(await self.store.adelete_existing(ids, **kwargs))

    def get(self, ids: Sequence[str], /, **kwargs: Any) -> list[Document]:
        """Return the documents with these ids, without those that do not exist."""
        return self.store.get_by_ids(ids)

    async def aget(self, ids: Sequence[str], /, **kwargs: Any) -> list[Document]:
        """Do the same as `get`."""
        return await self.store.aget_by_ids(ids)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return self.store.similarity_search(query, **self.search_kwargs | kwargs)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return await self.store.asimilarity_search(query, **self.search_kwargs | kwargs)


def _deleted(ids: list[str]) -> DeleteResponse:
    return {"num_deleted": len(ids), "succeeded": ids, "failed": [], "num_failed": 0}
