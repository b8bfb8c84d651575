"""Components for pipelines: a retriever by embedding, and feedback."""

from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.types import FilterPolicy, apply_filter_policy

from stillhash.errors import InvalidInput, WrongType
from stillhash.integrations.haystack.store import StillhashDocumentStore
from stillhash.numeric.validation import check_integer


def check_store(document_store: Any) -> StillhashDocumentStore:
    """Return the store, if it is one of these."""
    if not isinstance(document_store, StillhashDocumentStore):
        got = type(document_store).__name__
        raise WrongType(f"document_store: expected a StillhashDocumentStore, got a value of type {got}")
    return document_store


@component
class StillhashEmbeddingRetriever:
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
        self.document_store, self.filters = check_store(document_store), filters
        self.top_k = check_integer(top_k, "top_k", 1)
        self.filter_policy = FilterPolicy.from_str(filter_policy) if isinstance(filter_policy, str) else filter_policy
        self.labels, self.balance, self.return_embedding = labels, balance, return_embedding

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of this component."""
        return serialised(
            self,
            filters=self.filters,
            top_k=self.top_k,
            filter_policy=self.filter_policy.value,
            labels=self.labels,
            balance=self.balance,
            return_embedding=self.return_embedding,
        )

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
    ) -> dict[str, list[Document]]:
        """Return `documents`, best first. What is None is as the component was created."""
        options = self._options(filters, top_k, labels, balance)
        return {"documents": self.document_store.embedding_retrieval(query_embedding, **options)}

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        labels: list[Any] | None = None,
        balance: float | None = None,
    ) -> dict[str, list[Document]]:
        """Return what `run` does, without blocking the event loop."""
        options = self._options(filters, top_k, labels, balance)
        return {"documents": await self.document_store.embedding_retrieval_async(query_embedding, **options)}

    def _options(
        self, filters: dict[str, Any] | None, top_k: int | None, labels: list[Any] | None, balance: float | None
    ) -> dict[str, Any]:
        return {
            "filters": apply_filter_policy(self.filter_policy, self.filters, filters),
            "top_k": self.top_k if top_k is None else top_k,
            "labels": self.labels if labels is None else labels,
            "balance": self.balance if balance is None else balance,
            "return_embedding": self.return_embedding,
        }


@component
class StillhashFeedback:
    """Let votes on documents teach the store: what was relevant to a query, and what was not."""

    def __init__(self, document_store: StillhashDocumentStore, source: str = "") -> None:
        """Take the store, and who votes; the last vote of a source on a query and a document counts."""
        self.document_store, self.source = check_store(document_store), source

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of this component."""
        return serialised(self, source=self.source)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "StillhashFeedback":
        """Return the component of these arguments."""
        feedback: StillhashFeedback = default_from_dict(cls, with_store(data))
        return feedback

    @component.output_types(version=int)
    def run(
        self, query_embedding: list[float], documents: list[Document], votes: list[Any], source: str | None = None
    ) -> dict[str, int]:
        """Vote on each document and return the `version` of the model that has learnt it.

        votes : for each document "up", "down", or a number in [-1, 1]; 0 takes a vote back, None is no vote.
        """
        ids, values = chosen_votes(documents, votes)
        if not ids:
            return {"version": int(self.document_store.collection.stats()["version"])}
        name = self.source if source is None else source
        return {"version": self.document_store.feedback(query_embedding, ids, values, source=name)}

    @component.output_types(version=int)
    async def run_async(
        self, query_embedding: list[float], documents: list[Document], votes: list[Any], source: str | None = None
    ) -> dict[str, int]:
        """Return what `run` does, without blocking the event loop."""
        ids, values = chosen_votes(documents, votes)
        if not ids:
            return {"version": int(self.document_store.collection.stats()["version"])}
        name = self.source if source is None else source
        return {"version": await self.document_store.feedback_async(query_embedding, ids, values, source=name)}


def chosen_votes(documents: list[Document], votes: list[Any]) -> tuple[list[str], list[Any]]:
    """Return the ids of the documents that are voted on, and the votes."""
    if len(votes) != len(documents):
        raise InvalidInput(f"votes: expected one for each of {len(documents)} documents, got {len(votes)}")
    pairs = [(document.id, vote) for document, vote in zip(documents, votes, strict=True) if vote is not None]
    return [name for name, _ in pairs], [vote for _, vote in pairs]


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
