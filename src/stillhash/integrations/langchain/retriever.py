"""Retrieve documents, and take feedback on them."""

from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStoreRetriever


class StillhashRetriever(VectorStoreRetriever):
    """Retrieve documents of a `StillhashVectorStore`, which learns from votes on them.

    vectorstore : the store. k : documents, at most; `search_kwargs` and arguments of `invoke` come before it.
    search_type : "similarity", "mmr" or "similarity_score_threshold". search_kwargs : arguments of that search.
    """

    k: int | None = None

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return list(super()._get_relevant_documents(query, run_manager=run_manager, **self._arguments(kwargs)))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return list(await super()._aget_relevant_documents(query, run_manager=run_manager, **self._arguments(kwargs)))

    def _arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        number = {} if self.k is None or "k" in self.search_kwargs else {"k": self.k}
        return number | kwargs

    def feedback(
        self, query: str, id: str | list[str], vote: Any, *, source: str = "", position: int | list[int] | None = None
    ) -> int:
        """Vote on a document as a hit of a query, as `StillhashVectorStore.feedback` does."""
        store: Any = self.vectorstore
        return int(store.feedback(query, id, vote, source=source, position=position))

    async def afeedback(
        self, query: str, id: str | list[str], vote: Any, *, source: str = "", position: int | list[int] | None = None
    ) -> int:
        """Do the same as `feedback`."""
        store: Any = self.vectorstore
        return int(await store.afeedback(query, id, vote, source=source, position=position))
