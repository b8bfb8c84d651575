"""Components for pipelines that search: by an embedding, or by an embedding and words; and how components are saved."""

from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.types import FilterPolicy, apply_filter_policy

from stillhash.errors import WrongType
from stillhash.integrations.haystack.store import StillhashDocumentStore
from stillhash.numeric.validation import check_integer, check_number

Documents = dict[str, list[Document]]


def check_store(document_store: Any) -> StillhashDocumentStore:
    """Return the store, if it is one of these."""
    if not isinstance(document_store, StillhashDocumentStore):
        got = type(document_store).__name__
        raise WrongType(f"document_store: expected a StillhashDocumentStore, got a value of type {got}")
    return document_store


def serialised(part: Any, **arguments: Any) -> dict[str, Any]:
    """Return the arguments of a component, with those of its store."""
    data: dict[str, Any] = default_to_dict(part, document_store=part.document_store.to_dict(), **arguments)
    return data


def with_store(data: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a component with its store in the place of the store's own arguments."""
    arguments = dict(data["init_parameters"])
    if isinstance(arguments["document_store"], dict):
        arguments["document_store"] = StillhashDocumentStore.from_dict(arguments["document_store"])
    return {**data, "init_parameters": arguments}


class SearchDefaults:
    """What a search does where a call of `run` does not say."""

    def __init__(
        self,
        document_store: StillhashDocumentStore,
        filters: dict[str, Any] | None,
        top_k: int,
        filter_policy: str | FilterPolicy,
        labels: list[Any] | None,
        balance: float | None,
        return_embedding: bool,
    ) -> None:
        self.document_store, self.filters = check_store(document_store), filters
        self.top_k = check_integer(top_k, "top_k", 1)
        self.filter_policy = FilterPolicy.from_str(filter_policy) if isinstance(filter_policy, str) else filter_policy
        self.labels, self.balance, self.return_embedding = labels, balance, return_embedding

    def arguments(self) -> dict[str, Any]:
        """Return all of it but the store, as it is saved."""
        names = ("filters", "top_k", "labels", "balance", "return_embedding")
        return {**{name: getattr(self, name) for name in names}, "filter_policy": self.filter_policy.value}

    def options(
        self, filters: dict[str, Any] | None, top_k: int | None, labels: list[Any] | None, balance: float | None
    ) -> dict[str, Any]:
        """Return the options of one search."""
        return {
            "filters": apply_filter_policy(self.filter_policy, self.filters, filters),
            "top_k": self.top_k if top_k is None else top_k,
            "labels": self.labels if labels is None else labels,
            "balance": self.balance if balance is None else balance,
            "return_embedding": self.return_embedding,
        }


@component
class StillhashEmbeddingRetriever(SearchDefaults):
    """Retrieve the documents that are most similar to the embedding of a query."""

    def __init__(
        self,
        document_store: StillhashDocumentStore,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        filter_policy: str | FilterPolicy = FilterPolicy.REPLACE,
        labels: list[Any] | None = None,
        balance: float | None = None,
        return_embedding: bool = False,
    ) -> None:
        """Take the defaults of `run`.

        filter_policy : whether filters of `run` replace these, or are merged with them.
        labels : only documents with one of these labels.
        balance : from 0, texts that are alike, to 1, documents with the same labels; None follows from what was learnt.
        """
        SearchDefaults.__init__(self, document_store, filters, top_k, filter_policy, labels, balance, return_embedding)

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of this component."""
        return serialised(self, **self.arguments())

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "StillhashEmbeddingRetriever":
        """Return the component of these arguments."""
        retriever: StillhashEmbeddingRetriever = default_from_dict(cls, with_store(data))
        return retriever

    @component.output_types(documents=list[Document])
    def run(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        labels: list[Any] | None = None,
        balance: float | None = None,
    ) -> Documents:
        """Return `documents`, best first. What is None is as the component was created."""
        options = self.options(filters, top_k, labels, balance)
        return {"documents": self.document_store.embedding_retrieval(query_embedding, **options)}

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        labels: list[Any] | None = None,
        balance: float | None = None,
    ) -> Documents:
        """Return what `run` does, without blocking the event loop."""
        options = self.options(filters, top_k, labels, balance)
        return {"documents": await self.document_store.embedding_retrieval_async(query_embedding, **options)}


@component
class StillhashHybridRetriever(SearchDefaults):
    """Retrieve documents by an embedding and by words at once: by their ranks in both searches."""

    def __init__(
        self,
        document_store: StillhashDocumentStore,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        filter_policy: str | FilterPolicy = FilterPolicy.REPLACE,
        labels: list[Any] | None = None,
        balance: float | None = None,
        return_embedding: bool = False,
        word_weight: float = 1.0,
    ) -> None:
        """Take the defaults of `run`, as StillhashEmbeddingRetriever does.

        word_weight : how much the rank by words counts, where the rank by the embedding counts 1.
        """
        SearchDefaults.__init__(self, document_store, filters, top_k, filter_policy, labels, balance, return_embedding)
        self.word_weight = check_number(word_weight, "word_weight", above=0)

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of this component."""
        return serialised(self, word_weight=self.word_weight, **self.arguments())

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "StillhashHybridRetriever":
        """Return the component of these arguments."""
        retriever: StillhashHybridRetriever = default_from_dict(cls, with_store(data))
        return retriever

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        labels: list[Any] | None = None,
        balance: float | None = None,
    ) -> Documents:
        """Return `documents`, best first. query: words, and "exact phrases" in double quotes."""
        options = self.options(filters, top_k, labels, balance) | {"word_weight": self.word_weight}
        return {"documents": self.document_store.hybrid_retrieval(query_embedding, query, **options)}

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        query: str,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        labels: list[Any] | None = None,
        balance: float | None = None,
    ) -> Documents:
        """Return what `run` does, without blocking the event loop."""
        options = self.options(filters, top_k, labels, balance) | {"word_weight": self.word_weight}
        return {"documents": await self.document_store.hybrid_retrieval_async(query_embedding, query, **options)}
