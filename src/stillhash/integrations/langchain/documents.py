"""Convert documents of LangChain to items of a collection, and back.

The text of a document is the field "text" of the item's metadata. A document whose own metadata has that key keeps it:
it is stored as "text_", a key "text_" as "text__", and so on, so that all metadata comes back as it was.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from langchain_core.documents import Document

from stillhash.collection.types import TEXT_FIELD, Hit, Id, Item
from stillhash.errors import InvalidInput, WrongType
from stillhash.numeric.validation import check_integer

RENAMED_FIELD = re.compile(r"text_*")
INTEGER_ID = re.compile(r"0|-?[1-9][0-9]{0,17}")  # texts that may stand for an integer id

ScoredDocument = tuple[Document, float]


class DocumentRow(NamedTuple):
    """A document to store."""

    id: str
    text: str
    metadata: dict[str, Any]  # as it is stored, with the text
    labels: Any


def to_rows(
    texts: Iterable[str],
    metadatas: Sequence[dict[str, Any] | None] | None,
    ids: Sequence[str | None] | None,
    labels: Sequence[Any] | None,
    label_key: str | None,
) -> list[DocumentRow]:
    """Validate new documents. Those without an id get one; labels are those passed, or else in their metadata."""
    if isinstance(texts, (str, bytes)):
        raise WrongType(f"texts: expected a list of texts, got {type(texts).__name__}")
    contents = list(texts)
    columns: dict[str, Sequence[Any]] = {}
    for name, values in (("metadatas", metadatas), ("ids", ids), ("labels", labels)):
        columns[name] = [None] * len(contents) if values is None else list(values)
        if len(columns[name]) != len(contents):
            raise InvalidInput(f"{name}: expected one for each of {len(contents)} texts, got {len(columns[name])}")
    rows = []
    for at, (text, metadata, id_, own) in enumerate(zip(contents, *columns.values(), strict=True)):
        if not isinstance(text, str):
            raise WrongType(f"texts[{at}]: expected a text, got {type(text).__name__}")
        fields = stored_metadata(text, {} if metadata is None else metadata, f"metadatas[{at}]")
        if labels is None and label_key is not None:
            own = None if metadata is None else metadata.get(label_key)
        rows.append(DocumentRow(str(uuid4()) if id_ is None else id_, text, fields, own))
    return rows


def stored_metadata(text: str, metadata: Any, name: str = "metadata") -> dict[str, Any]:
    """Return the metadata of an item for the text and the metadata of a document."""
    if not isinstance(metadata, dict) or not all(isinstance(key, str) for key in metadata):
        raise WrongType(f"{name}: expected a dictionary with strings as keys, got {type(metadata).__name__}")
    renamed = {f"{key}_" if RENAMED_FIELD.fullmatch(key) else key: value for key, value in metadata.items()}
    return {**renamed, TEXT_FIELD: text}


def to_document(item: Item) -> Document:
    """Return an item as a document; one that came without a text has an empty one."""
    fields = dict(item.metadata or {})
    text = fields.pop(TEXT_FIELD, "")
    metadata = {key[:-1] if RENAMED_FIELD.fullmatch(key) else key: value for key, value in fields.items()}
    return Document(id=str(item.id), page_content=text if isinstance(text, str) else str(text), metadata=metadata)


def to_scored(hits: list[Hit]) -> list[ScoredDocument]:
    """Return hits as documents with their scores."""
    return [(to_document(hit), hit.score) for hit in hits]


def stored_ids(collection: Any, ids: Iterable[str]) -> list[Id]:
    """Return ids as the collection has them: documents have texts as ids, items may have integers."""
    names: list[Id] = list(ids)
    numbers = {name: int(name) for name in names if isinstance(name, str) and INTEGER_ID.fullmatch(name)}
    if not numbers:
        return names
    texts, integers = collection.get(list(numbers)), collection.get(list(numbers.values()))
    pairs = zip(numbers.items(), texts, integers, strict=True)
    replaced: dict[Id, Id] = {name: number for (name, number), text, integer in pairs if integer and not text}
    return [replaced.get(name, name) for name in names]


def batches(rows: list[DocumentRow], size: int | None) -> list[list[DocumentRow]]:
    """Divide rows into batches; None: all in one."""
    step = max(1, len(rows)) if size is None else check_integer(size, "batch_size", 1)
    return [rows[start : start + step] for start in range(0, len(rows), step)]


def refuse_unknown(arguments: dict[str, Any], verb: str) -> None:
    """Raise WrongType if there is an argument that a verb does not have."""
    for name in arguments:
        raise WrongType(f"{name}: expected an argument of {verb}, got an unknown one")
