"""The arguments of components, among them the store, as Haystack saves and loads them."""

from typing import Any

from haystack import default_to_dict

from stillhash.errors import WrongType
from stillhash.integrations.haystack.store import StillhashDocumentStore


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
