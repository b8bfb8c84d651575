"""A collection in LangChain: a vector store, its retriever and document index, and embeddings of our encoders.

Each verb is there for threads that may wait, and for an event loop.
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.indexing.base import DeleteResponse, DocumentIndex, UpsertResponse
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever
from pydantic import ConfigDict, Field

from stillhash.encoders import Encoder, open_encoder
from stillhash.errors import InvalidInput
from stillhash.integrations.collection_threads import CollectionThreads
from stillhash.integrations.langchain.document_collection import DocumentCollection, search_settings
from stillhash.integrations.langchain.documents import (
    ScoredDocument,
    batches,
    refuse_unknown,
    to_document,
    to_rows,
    to_scored,
)

HITS, FETCHED_HITS = 4, 20  # as other vector stores return and compare, by default


class StillhashEmbeddings(Embeddings):
    """Embed texts by an encoder, named as for `open_encoder`; no service is called.

    A new collection of a `StillhashVectorStore` remembers the encoder, so that the command line, the server and
    `stillhash mcp` can search it by text too.
    """

    def __init__(self, encoder: str) -> None:
        self.encoder: Encoder = open_encoder(encoder)
        if not self.encoder.has_text:
            raise InvalidInput(f"encoder: expected one of texts, got {encoder!r}")

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return one vector for each text."""
        return [row.tolist() for row in self.encoder.encode_texts(texts)] if texts else []

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a text."""
        return self.embed_documents([text])[0]


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


class StillhashVectorStore(VectorStore):
    """Documents in a collection, whose ranking learns from labels and votes.

    embedding : of texts and queries. Its dim is that of the collection; another one is a Conflict.
    path : folder of the collection. A new one is created with the first documents.
    collection : in place of a path, an open `Collection`, or a `Client` of a served one; it is not closed here.
    label_key : key of the metadata that has the labels of a document: one, or a list. None: labels are only those that
        are passed to `add_texts` and `add_documents`.
    learn_at_once : learn from the labels of each call when it is stored, however few. Otherwise they wait for
        `learn_rows` of them, which is quicker for many small calls.
    read_only : search beside a process that writes.
    settings : those of `stillhash.open`, for a new collection.
    """

    def __init__(
        self,
        embedding: Embeddings,
        path: str | Path | None = None,
        *,
        collection: Any = None,
        label_key: str | None = "labels",
        learn_at_once: bool = True,
        read_only: bool = False,
        **settings: Any,
    ) -> None:
        self._embedding, self._label_key, self._learn_at_once = embedding, label_key, learn_at_once
        if isinstance(embedding, StillhashEmbeddings) and collection is None:
            settings = {"encoder": embedding.encoder, **settings}
        self._documents = DocumentCollection(path, collection, read_only, settings)
        self._threads = CollectionThreads(self._documents.name)

    @property
    def embeddings(self) -> Embeddings:
        """The embedding of texts and queries."""
        return self._embedding

    @property
    def collection(self) -> Any:
        """The collection, with all its verbs; None before the first document is added."""
        return self._documents.opened

    def close(self) -> None:
        """Wait for calls that run, and close the collection if it was opened here."""
        self._threads.close()
        self._documents.close()

    async def aclose(self) -> None:
        """Do the same as `close`."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: Sequence[dict[str, Any] | None] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        labels: Sequence[Any] | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Embed and store texts, replacing those whose ids exist; return their ids.

        labels: a label or a list of labels, or None, for each text. batch_size: texts that are embedded and stored at a
        time, each time in one transaction; None: all.
        """
        refuse_unknown(kwargs, "add_texts")
        rows = to_rows(texts, metadatas, ids, labels, self._label_key)
        for batch in batches(rows, batch_size):
            vectors = self._embedding.embed_documents([row.text for row in batch])
            self._documents.put(batch, vectors, self._learn_at_once)
        return [row.id for row in rows]

    async def aadd_texts(
        self,
        texts: Iterable[str],
        metadatas: Sequence[dict[str, Any] | None] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        labels: Sequence[Any] | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Do the same as `add_texts`."""
        refuse_unknown(kwargs, "add_texts")
        rows = to_rows(texts, metadatas, ids, labels, self._label_key)
        for batch in batches(rows, batch_size):
            vectors = await self._embedding.aembed_documents([row.text for row in batch])
            await self._threads.write(self._documents.put, batch, vectors, self._learn_at_once)
        return [row.id for row in rows]

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents by their ids, or those that meet a condition; ids that do not exist are no error.

        where: in place of ids, as in `Collection.delete`; "all" is every document.
        """
        self.delete_existing(ids, **kwargs)
        return True

    async def adelete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Do the same as `delete`."""
        await self.adelete_existing(ids, **kwargs)
        return True

    def delete_existing(self, ids: list[str] | None = None, *, where: Any = None) -> list[str]:
        """Delete as `delete` does, and return the ids that existed."""
        return self._documents.delete(ids, where)

    async def adelete_existing(self, ids: list[str] | None = None, *, where: Any = None) -> list[str]:
        """Do the same as `delete_existing`."""
        return await self._threads.write(self._documents.delete, ids, where)

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents with these ids, in their order, without those that do not exist."""
        return self._documents.get(ids)

    async def aget_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Do the same as `get_by_ids`."""
        return await self._threads.read(self._documents.get, ids)

    def similarity_search(self, query: str, k: int = HITS, **kwargs: Any) -> list[Document]:
        """Return the k best documents for a query.

        filter: a condition as in `Collection.search`, on metadata and on labels. hybrid: rank by the words of the query
        too, where the collection has a lexical index. version, balance: as in `Collection.search`.
        """
        return [document for document, _ in self.similarity_search_with_score(query, k, **kwargs)]

    async def asimilarity_search(self, query: str, k: int = HITS, **kwargs: Any) -> list[Document]:
        """Do the same as `similarity_search`."""
        return [document for document, _ in await self.asimilarity_search_with_score(query, k, **kwargs)]

    def similarity_search_with_score(self, query: str, k: int = HITS, **kwargs: Any) -> list[ScoredDocument]:
        """Return the k best documents with their scores; the greater, the better."""
        how = search_settings(kwargs)
        return to_scored(self._documents.search(self._embedding.embed_query(query), query, k, how))

    async def asimilarity_search_with_score(self, query: str, k: int = HITS, **kwargs: Any) -> list[ScoredDocument]:
        """Do the same as `similarity_search_with_score`."""
        how, vector = search_settings(kwargs), await self._embedding.aembed_query(query)
        return to_scored(await self._threads.read(self._documents.search, vector, query, k, how))

    def similarity_search_by_vector(self, embedding: list[float], k: int = HITS, **kwargs: Any) -> list[Document]:
        """Return the k best documents for the embedding of a query."""
        return [to_document(hit) for hit in self._documents.search(embedding, None, k, search_settings(kwargs))]

    async def asimilarity_search_by_vector(
        self, embedding: list[float], k: int = HITS, **kwargs: Any
    ) -> list[Document]:
        """Do the same as `similarity_search_by_vector`."""
        hits = await self._threads.read(self._documents.search, embedding, None, k, search_settings(kwargs))
        return [to_document(hit) for hit in hits]

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = HITS, **kwargs: Any
    ) -> list[ScoredDocument]:
        return self._documents.relevant(self._embedding.embed_query(query), query, k, search_settings(kwargs))

    async def _asimilarity_search_with_relevance_scores(
        self, query: str, k: int = HITS, **kwargs: Any
    ) -> list[ScoredDocument]:
        how, vector = search_settings(kwargs), await self._embedding.aembed_query(query)
        return await self._threads.read(self._documents.relevant, vector, query, k, how)

    def max_marginal_relevance_search(
        self, query: str, k: int = HITS, fetch_k: int = FETCHED_HITS, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Return k of the `fetch_k` best documents that differ from each other, by their embeddings.

        The embeddings are the documents' own while they wait for hash functions, and with `keep_features`, as float16;
        otherwise they are rebuilt from codes. lambda_mult: from 0, as different as can be, to 1, only by relevance.
        """
        vector = self._embedding.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(vector, k, fetch_k, lambda_mult, **kwargs)

    async def amax_marginal_relevance_search(
        self, query: str, k: int = HITS, fetch_k: int = FETCHED_HITS, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Do the same as `max_marginal_relevance_search`."""
        vector = await self._embedding.aembed_query(query)
        return await self.amax_marginal_relevance_search_by_vector(vector, k, fetch_k, lambda_mult, **kwargs)

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = HITS,
        fetch_k: int = FETCHED_HITS,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """Do the same as `max_marginal_relevance_search`, for the embedding of a query."""
        hits = self._documents.diverse(embedding, k, fetch_k, lambda_mult, search_settings(kwargs))
        return [to_document(hit) for hit in hits]

    async def amax_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = HITS,
        fetch_k: int = FETCHED_HITS,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """Do the same as `max_marginal_relevance_search_by_vector`."""
        work = partial(self.max_marginal_relevance_search_by_vector, **kwargs)
        return await self._threads.read(work, embedding, k, fetch_k, lambda_mult)

    def feedback(
        self, query: str, id: str | list[str], vote: Any, *, source: str = "", position: int | list[int] | None = None
    ) -> int:
        """Vote on a document, or on a list of them, as hits of a query; return the version of the model.

        vote: "up", "down", or a number in [-1, 1]; 0 takes it back. All else is as in `Collection.feedback`.
        """
        return self._documents.vote(self._embedding.embed_query(query), id, vote, source, position)

    async def afeedback(
        self, query: str, id: str | list[str], vote: Any, *, source: str = "", position: int | list[int] | None = None
    ) -> int:
        """Do the same as `feedback`."""
        vector = await self._embedding.aembed_query(query)
        return await self._threads.write(self._documents.vote, vector, id, vote, source, position)

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: Sequence[dict[str, Any] | None] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        labels: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Return a store with these texts. `kwargs` are those of the constructor."""
        store = cls(embedding, **kwargs)
        try:
            store.add_texts(texts, metadatas, ids=ids, labels=labels)
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    async def afrom_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: Sequence[dict[str, Any] | None] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        labels: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Do the same as `from_texts`."""
        store = await asyncio.to_thread(cls, embedding, **kwargs)
        try:
            await store.aadd_texts(texts, metadatas, ids=ids, labels=labels)
        except BaseException:
            await store.aclose()
            raise
        return store

    def as_retriever(self, **kwargs: Any) -> StillhashRetriever:
        """Return a retriever, which takes feedback too; `kwargs` are its fields."""
        tags = kwargs.pop("tags", None) or self._get_retriever_tags()
        return StillhashRetriever(vectorstore=self, tags=tags, **kwargs)


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
