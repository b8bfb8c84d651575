"""The methods of the document store for asyncio: each runs the method of the same name in a thread."""

import asyncio
from typing import Any

from haystack import Document
from haystack.document_stores.types import DuplicatePolicy


class AsyncMethods:
    """What a store does, without blocking the event loop. A store is used from any number of threads."""

    async def _run(self, name: str, *args: Any, **options: Any) -> Any:
        return await asyncio.to_thread(getattr(self, name), *args, **options)

    async def count_documents_async(self) -> int:
        """Return how many documents there are."""
        return int(await self._run("count_documents"))

    async def filter_documents_async(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Return the documents that match."""
        return list(await self._run("filter_documents", filters))

    async def write_documents_async(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Write documents and return how many."""
        return int(await self._run("write_documents", documents, policy))

    async def delete_documents_async(self, document_ids: list[str]) -> None:
        """Delete these documents."""
        await self._run("delete_documents", document_ids)

    async def delete_all_documents_async(self, recreate_index: bool = False) -> None:
        """Delete all documents."""
        await self._run("delete_all_documents", recreate_index)

    async def delete_by_filter_async(self, filters: dict[str, Any]) -> int:
        """Delete the documents that match, and return how many."""
        return int(await self._run("delete_by_filter", filters))

    async def update_by_filter_async(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Merge fields into the meta of the documents that match, and return how many."""
        return int(await self._run("update_by_filter", filters, meta))

    async def count_documents_by_filter_async(self, filters: dict[str, Any]) -> int:
        """Return how many documents match."""
        return int(await self._run("count_documents_by_filter", filters))

    async def count_unique_metadata_by_filter_async(
        self, filters: dict[str, Any], metadata_fields: list[str]
    ) -> dict[str, int]:
        """Return how many different values fields have."""
        return dict(await self._run("count_unique_metadata_by_filter", filters, metadata_fields))

    async def get_metadata_fields_info_async(self) -> dict[str, dict[str, str]]:
        """Return the fields and their types."""
        return dict(await self._run("get_metadata_fields_info"))

    async def get_metadata_field_min_max_async(self, metadata_field: str) -> dict[str, Any]:
        """Return the least and the greatest value of a field."""
        return dict(await self._run("get_metadata_field_min_max", metadata_field))

    async def get_metadata_field_unique_values_async(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: dict[str, Any] | None = None,
    ) -> tuple[list[Any], int]:
        """Return a page of the different values of a field, and how many there are."""
        values, total = await self._run(
            "get_metadata_field_unique_values", metadata_field, search_term, from_, size, filters
        )
        return values, total

    async def embedding_retrieval_async(self, query_embedding: list[float], **options: Any) -> list[Document]:
        """Return the documents that are most similar to a query."""
        return list(await self._run("embedding_retrieval", query_embedding, **options))

    async def hybrid_retrieval_async(self, query_embedding: list[float], query: str, **options: Any) -> list[Document]:
        """Return the documents that are best for an embedding and words."""
        return list(await self._run("hybrid_retrieval", query_embedding, query, **options))

    async def feedback_async(
        self, query_embedding: list[float], document_ids: list[str], votes: Any, **options: Any
    ) -> int:
        """Vote on documents as answers to a query."""
        return int(await self._run("feedback", query_embedding, document_ids, votes, **options))
