"""Documents of Haystack as items of a collection, and its filters as conditions.

Everything but the embedding is in the metadata of the item:

    {"id": ..., "text": content, "meta": {...}, "order": number, "blob": {...}, "sparse_embedding": {...}, "score": ...}

`order` grows with each document that is written, so that documents are listed in the order in which they came. Only
what a document has is there, but `meta` and `order` always are.

So in a condition `meta.year` keeps its name, and `content` is the field `text`. A missing field is None, as in
Haystack. True equals 1, and False 0, as there.
"""

import base64
import binascii
from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from operator import ge, gt, le, lt
from typing import Any

from haystack import Document
from haystack.dataclasses import ByteStream, SparseEmbedding
from haystack.errors import FilterError

from stillhash.collection.filters.language import MAX_FILTER_DEPTH, compile_filter
from stillhash.collection.types import Filter, Item
from stillhash.errors import BadState, InvalidInput

ORDERINGS = {">": ("$gt", gt), ">=": ("$gte", ge), "<": ("$lt", lt), "<=": ("$lte", le)}
DOCUMENT_FIELDS = {"id": "id", "content": "text", "score": "score"}
WHOLE_FIELDS = ("meta", "blob", "sparse_embedding")  # objects, which are compared with None only
ALWAYS: Filter = {"$and": []}
NEVER: Filter = {"$or": []}


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


def translate(filters: Any, *, embedded: bool) -> Filter | None:
    """Return the condition for the documents that have an embedding, or for those that have none; None without one.

    FilterError, where the filter is malformed, or compares what a collection cannot.
    """
    if filters is None or filters == {}:
        return None
    where = _translate(filters, embedded, 0)
    try:
        compile_filter(where)
    except InvalidInput as error:
        raise FilterError(f"filters: {error}") from error
    return where


def _translate(filters: Any, embedded: bool, depth: int) -> Filter:
    if not isinstance(filters, dict):
        raise FilterError(f"filters: expected a dictionary, got a value of type {type(filters).__name__}")
    if depth > MAX_FILTER_DEPTH:
        raise FilterError(f"filters: expected conditions nested at most {MAX_FILTER_DEPTH} deep, got more")
    for key in ("operator", "value") if "field" in filters else ("operator", "conditions"):
        if key not in filters:
            raise FilterError(f"filters: expected the key {key!r}, got {sorted(map(str, filters))}")
    if "field" in filters:
        return _compare(filters["field"], filters["operator"], filters["value"], embedded)
    operator, conditions = filters["operator"], filters["conditions"]
    if not isinstance(conditions, list):
        raise FilterError(f"filters: conditions: expected a list, got a value of type {type(conditions).__name__}")
    parts = [_translate(condition, embedded, depth + 1) for condition in conditions]
    match operator:
        case "AND":
            return {"$and": parts}
        case "OR":
            return {"$or": parts}
        case "NOT":
            return {"$not": {"$and": parts}}
    raise FilterError(f"filters: operator: expected AND, OR or NOT, got {operator!r}")


def _compare(field: Any, operator: Any, value: Any, embedded: bool) -> Filter:
    if not isinstance(field, str):
        raise FilterError(f"filters: field: expected text, got a value of type {type(field).__name__}")
    if field == "embedding" or field in WHOLE_FIELDS:
        return _compare_with_none(field, operator, value, embedded)
    path = DOCUMENT_FIELDS.get(field, field if "." in field else f"meta.{field}")
    match operator:
        case "==":
            return _equals_one(path, [value])
        case "!=":
            return {"$not": _equals_one(path, [value])}
        case "in" | "not in":
            if not isinstance(value, list):
                raise FilterError(f"filters: {field}: {operator}: expected a list, got {type(value).__name__}")
            within = _equals_one(path, value)
            return within if operator == "in" else {"$not": within}
        case ">" | ">=" | "<" | "<=":
            return _order(path, operator, value)
    expected = ", ".join(["==", "!=", "in", "not in", *ORDERINGS])
    raise FilterError(f"filters: {field}: expected an operator of {expected}, got {operator!r}")


def _compare_with_none(field: str, operator: Any, value: Any, embedded: bool) -> Filter:
    if operator not in ("==", "!=") or value is not None:
        raise FilterError(f"filters: {field}: expected == or != with None, got {operator!r}")
    if field == "embedding":
        return ALWAYS if embedded == (operator == "!=") else NEVER
    return {field: {"$exists": operator == "!="}}


def _equals_one(path: str, values: list[Any]) -> Filter:
    """Return the condition that a field equals one of these values; None is a missing field too."""
    numbers = [value for value in values if isinstance(value, int | float) and value in (0, 1)]
    same = [other for number in numbers for other in (int(number), bool(number))]
    equal: Filter = {path: {"$in": [*values, *same]}}
    return {"$or": [equal, {path: {"$exists": False}}]} if any(value is None for value in values) else equal


def _order(path: str, operator: str, value: Any) -> Filter:
    """Return the condition that a field is more, or less, than a number or a date; texts are compared as dates are."""
    if value is None:
        return NEVER
    name, holds = ORDERINGS[operator]
    if isinstance(value, str):
        _check_date(path, value)
    elif isinstance(value, int | float | Decimal):
        value = int(value) if isinstance(value, bool) else value
        flags = [flag for flag in (False, True) if holds(flag, value)]
        return {"$or": [{path: {name: value}}, {path: {"$in": flags}}]}
    elif not isinstance(value, date):
        raise FilterError(f"filters: {path}: {operator}: expected a number or a date, got {type(value).__name__}")
    return {path: {name: value}}


def _check_date(path: str, text: str) -> None:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise FilterError(f"filters: {path}: expected a number, or a date in ISO 8601, got {text!r:.100}") from None
