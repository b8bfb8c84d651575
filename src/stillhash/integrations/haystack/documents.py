"""Documents of Haystack as items: everything but the embedding is in the metadata of the item.

    {"id": ..., "text": content, "meta": {...}, "order": number, "blob": {...}, "sparse_embedding": {...}, "score": ...}

`order` grows with each document that is written, so that documents are listed in the order in which they came. Only
what a document has is there, but `meta` and `order` always are.
"""

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from haystack import Document
from haystack.dataclasses import ByteStream, SparseEmbedding

from stillhash.collection.types import Item
from stillhash.errors import BadState, InvalidInput


def check_documents(documents: Any) -> list[Document]:
    """Return documents as a list, if that is what they are."""
    if not isinstance(documents, list) or not all(isinstance(document, Document) for document in documents):
        raise InvalidInput(f"documents: expected a list of Document, got {_kinds(documents)}")
    return documents


def _kinds(documents: Any) -> str:
    if not isinstance(documents, list):
        return f"a value of type {type(documents).__name__}"
    return "a list with " + ", ".join(sorted({type(document).__name__ for document in documents}))


def to_metadata(document: Document, order: int) -> dict[str, Any]:
    """Return what is stored of a document besides its embedding."""
    metadata: dict[str, Any] = {"id": document.id, "order": order, "meta": document.meta}
    if document.content is not None:
        metadata["text"] = document.content
    if document.score is not None:
        metadata["score"] = document.score
    if document.sparse_embedding is not None:
        metadata["sparse_embedding"] = document.sparse_embedding.to_dict()
    if (blob := document.blob) is not None:
        data = base64.b64encode(blob.data).decode("ascii")
        metadata["blob"] = {"data": data, "mime_type": blob.mime_type, "meta": blob.meta}
    return metadata


def to_document(item: Item, embedding: list[float] | None = None, score: float | None = None) -> Document:
    """Return the document of an item, with the score of a hit if it is one."""
    metadata = item.metadata
    if metadata is None or not isinstance(item.id, str):
        raise BadState(f"item {item.id!r}: expected a document, got an item of another program")
    blob, sparse = metadata.get("blob"), metadata.get("sparse_embedding")
    try:
        return Document(
            id=item.id,
            content=metadata.get("text"),
            meta=metadata.get("meta", {}),
            score=metadata.get("score") if score is None else score,
            embedding=embedding,
            blob=None if blob is None else _to_blob(blob),
            sparse_embedding=None if sparse is None else SparseEmbedding.from_dict(sparse),
        )
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise BadState(f"item {item.id!r}: expected a document, got something else: {error}") from error


def _to_blob(stored: dict[str, Any]) -> ByteStream:
    return ByteStream(base64.b64decode(stored["data"]), meta=stored["meta"], mime_type=stored["mime_type"])


def labels_of(metas: Iterable[dict[str, Any]], label_field: str | None) -> list[Any] | None:
    """Return the labels of documents: what is in this field of their meta; None where nothing is learnt from meta."""
    if label_field is None:
        return None
    return [meta.get(label_field) for meta in metas]


def in_order(items: Iterable[Item]) -> list[Item]:
    """Return items in the order in which their documents were written."""
    return sorted(items, key=lambda item: (item.metadata or {}).get("order", 0))
