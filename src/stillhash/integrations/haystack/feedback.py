"""A component for pipelines, by which votes on documents teach the store."""

from typing import Any

from haystack import Document, component, default_from_dict

from stillhash.errors import InvalidInput
from stillhash.integrations.haystack.retrievers import check_store, serialised, with_store
from stillhash.integrations.haystack.store import StillhashDocumentStore


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
