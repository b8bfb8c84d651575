"""The document store of Haystack, in a folder of this machine."""

import asyncio
import json
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from haystack import Document, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError

from stillhash.collection import Collection
from stillhash.collection.types import TEXT_FIELD, Filter, Hit, Item, VersionName
from stillhash.errors import Closed, InvalidInput, report_shortages
from stillhash.integrations.haystack.documents import (
    check_documents,
    in_order,
    labels_of,
    to_document,
    to_metadata,
    translate,
)
from stillhash.integrations.haystack.folder import EMBEDDED, UNEMBEDDED, DocumentFolder, Step, leave_folder, use_folder
from stillhash.numeric.validation import check_integer

_first_use = threading.Lock()  # when a store opens its folder
FilterDict = dict[str, Any]
Conditions = tuple[Filter | None, Filter | None]  # for documents with an embedding, and without one
META_PREFIX = "meta."
TYPE_NAMES = {bool: "boolean", int: "int", float: "float"}

Returned = TypeVar("Returned")


def _in_thread(method: Callable[..., Returned]) -> Callable[..., Coroutine[Any, Any, Returned]]:
    """Return the method for asyncio: it runs in a thread, so that the event loop goes on."""

    @wraps(method)
    async def run(self: "StillhashDocumentStore", *args: Any, **options: Any) -> Returned:
        work: Callable[..., Returned] = getattr(self, method.__name__)
        return await asyncio.to_thread(work, *args, **options)

    run.__name__ += "_async"
    return run


@report_shortages
class StillhashDocumentStore:
    """Documents in a folder, searched by fixed binary codes and ranked by a similarity that learns."""

    def __init__(
        self,
        path: str | Path,
        embedding_dim: int,
        *,
        label_field: str | None = None,
        keep_embeddings: bool = True,
        read_only: bool = False,
        settings: dict[str, Any] | None = None,
    ) -> None:
        """Describe the store; its folder is opened, or created, at the first use.

        path : the folder. All stores of a process with the same path share it; one process writes at a time.
        embedding_dim : the length of the embeddings.
        label_field : the field of `meta` with the labels of a document, one or a list, that the ranking learns from.
        keep_embeddings : return embeddings with documents, rounded to float16. Without it documents come back without
            their embeddings, which saves 2 bytes per number. It holds for a new folder.
        read_only : search beside a process that writes.
        settings : further arguments of `stillhash.open`, for a new folder: `bits`, `init_rows`, `learn_rows`, ... The
            words of contents are indexed, for hybrid retrieval, unless `lexical_field` is None here.
        """
        self.path, self.embedding_dim = str(path), check_integer(embedding_dim, "embedding_dim", 1)
        self.label_field, self.keep_embeddings, self.read_only = label_field, keep_embeddings, read_only
        self.settings = settings
        self._folder: DocumentFolder | None = None
        self._leave: weakref.finalize[Any, Any] | None = None
        self._closed = False

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of this store, not its documents."""
        names = ("path", "embedding_dim", "label_field", "keep_embeddings", "read_only", "settings")
        data: dict[str, Any] = default_to_dict(self, **{name: getattr(self, name) for name in names})
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "StillhashDocumentStore":
        """Return the store of these arguments."""
        store: StillhashDocumentStore = default_from_dict(cls, data)
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_dict, (self.to_dict(),)

    @property
    def folder(self) -> DocumentFolder:
        """Return the open folder."""
        if self._closed:
            raise Closed("the document store is closed")
        with _first_use:
            if self._folder is None:
                options = {"keep_features": self.keep_embeddings, "lexical_field": TEXT_FIELD, **(self.settings or {})}
                self._folder = use_folder(self.path, self.embedding_dim, options, self.read_only)
                self._leave = weakref.finalize(self, leave_folder, self._folder)
            return self._folder

    @property
    def collection(self) -> Collection:
        """Return the collection of documents with an embedding, for all that Haystack has no name for."""
        return self.folder.embedded

    def close(self) -> None:
        """Close the folder, unless another store of this process uses it."""
        self._closed, self._folder = True, None
        if self._leave is not None:
            self._leave()

    def count_documents(self) -> int:
        """Return how many documents there are."""
        return self._count((None, None))

    def count_documents_by_filter(self, filters: FilterDict) -> int:
        """Return how many documents match."""
        return self._count(_conditions(filters))

    def _count(self, conditions: Conditions) -> int:
        folder = self.folder
        with folder.lock:
            return folder.embedded.count(conditions[0]) + folder.unembedded.count(conditions[1])

    def filter_documents(self, filters: FilterDict | None = None) -> list[Document]:
        """Return the documents that match, all of them without filters, in the order in which they were written."""
        folder, conditions = self.folder, _conditions(filters)
        with folder.lock:
            embedded, plain = folder.items(conditions)
            embeddings = self._embeddings(embedded)
        return [to_document(item, embeddings.get(str(item.id))) for item in in_order(embedded + plain)]

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """Write documents and return how many; on error nothing is written. NONE is FAIL."""
        by_id: dict[str, Document] = {}
        folder = self.folder
        with folder.lock:
            stored, stored_plain = folder.existing([document.id for document in check_documents(documents)])
            taken = set() if policy == DuplicatePolicy.OVERWRITE else stored | stored_plain
            for document in documents:
                if document.id in taken:
                    if policy != DuplicatePolicy.SKIP:
                        raise DuplicateDocumentError(f"documents: expected new ids, got {document.id!r}, which exists")
                    continue
                by_id[document.id] = document
                if policy != DuplicatePolicy.OVERWRITE:
                    taken.add(document.id)
            orders = folder.next_orders(len(by_id))
            rows = [(each, to_metadata(each, order)) for each, order in zip(by_id.values(), orders, strict=True)]
            embedded = [row for row in rows if row[0].embedding is not None]
            plain = [row for row in rows if row[0].embedding is None]
            folder.apply(
                [
                    self._write_step(embedded),
                    Step(UNEMBEDDED, "write", [each.id for each, _ in plain], metadata=[stored for _, stored in plain]),
                    Step(EMBEDDED, "delete", [each.id for each, _ in plain if each.id in stored]),
                    Step(UNEMBEDDED, "delete", [each.id for each, _ in embedded if each.id in stored_plain]),
                ]
            )
        return len(by_id)

    def _write_step(self, rows: list[tuple[Document, dict[str, Any]]]) -> Step:
        return Step(
            EMBEDDED,
            "write",
            [document.id for document, _ in rows],
            [document.embedding or [] for document, _ in rows],
            labels_of((document.meta for document, _ in rows), self.label_field),
            [metadata for _, metadata in rows],
        )

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete these documents; ids that do not exist are ignored."""
        folder = self.folder
        with folder.lock:
            stored, stored_plain = folder.existing(document_ids)
            folder.apply([Step(EMBEDDED, "delete", sorted(stored)), Step(UNEMBEDDED, "delete", sorted(stored_plain))])

    def delete_all_documents(self, recreate_index: bool = False) -> None:
        """Delete all documents. What was learnt stays; with `recreate_index` the folder starts again, with nothing."""
        folder = self.folder
        if recreate_index:
            folder.recreate()
            return
        with folder.lock:
            folder.embedded.delete(where="all")
            folder.unembedded.delete(where="all")

    def delete_by_filter(self, filters: FilterDict) -> int:
        """Delete the documents that match, and return how many."""
        folder, conditions = self.folder, _conditions(filters, some=True)
        with folder.lock:
            embedded, plain = folder.matching_ids(conditions)
            folder.apply([Step(EMBEDDED, "delete", embedded), Step(UNEMBEDDED, "delete", plain)])
        return len(embedded) + len(plain)

    def update_by_filter(self, filters: FilterDict, meta: dict[str, Any]) -> int:
        """Merge fields into the meta of the documents that match, and return how many; new labels are learnt."""
        if not isinstance(meta, dict):
            raise InvalidInput(f"meta: expected a dictionary, got a value of type {type(meta).__name__}")
        folder, conditions = self.folder, _conditions(filters, some=True)
        steps = []
        with folder.lock:
            for name, items in zip((EMBEDDED, UNEMBEDDED), folder.items(conditions), strict=True):
                changed = [{**(item.metadata or {}), "meta": _merged(item, meta)} for item in items]
                relabelled = name == EMBEDDED and self.label_field in meta
                labels = labels_of((each["meta"] for each in changed), self.label_field) if relabelled else None
                steps.append(Step(name, "update", [str(item.id) for item in items], None, labels, changed))
            folder.apply(steps)
        return sum(len(step.ids) for step in steps)

    def matching_items(self, filters: FilterDict | None = None) -> list[Item]:
        """Return the items of the documents that match."""
        embedded, plain = self.folder.items(_conditions(filters))
        return embedded + plain

    def embedding_retrieval(
        self,
        query_embedding: list[float],
        *,
        filters: FilterDict | None = None,
        top_k: int = 10,
        labels: list[Any] | None = None,
        balance: float | None = None,
        version: VersionName | None = None,
        return_embedding: bool = False,
    ) -> list[Document]:
        """Return the documents that are most similar to a query, best first, with their scores.

        labels : only documents with one of these labels. balance, version : as in `Collection.search`.
        """
        if check_integer(top_k, "top_k", 0) == 0:
            return []
        search: dict[str, Any] = {"where": _labelled(filters, labels), "balance": balance, "version": version}
        answer = self.collection.search(query_embedding, top_k, **search)
        return self._documents(answer.hits, return_embedding)

    def hybrid_retrieval(
        self,
        query_embedding: list[float],
        query: str,
        *,
        filters: FilterDict | None = None,
        top_k: int = 10,
        labels: list[Any] | None = None,
        balance: float | None = None,
        version: VersionName | None = None,
        word_weight: float = 1.0,
        return_embedding: bool = False,
    ) -> list[Document]:
        """Return the documents that are best for an embedding and words, as `Collection.hybrid_search`."""
        if check_integer(top_k, "top_k", 0) == 0:
            return []
        search: dict[str, Any] = {"where": _labelled(filters, labels), "balance": balance, "version": version}
        answer = self.collection.hybrid_search(query_embedding, query, top_k, word_weight=word_weight, **search)
        return self._documents(answer.hits, return_embedding)

    def _documents(self, hits: list[Hit], return_embedding: bool) -> list[Document]:
        embeddings = self._embeddings(hits) if return_embedding else {}
        return [to_document(hit, embeddings.get(str(hit.id)), hit.score) for hit in hits]

    def feedback(
        self,
        query_embedding: list[float],
        document_ids: list[str],
        votes: Any,
        *,
        source: str = "",
        position: Any = None,
    ) -> int:
        """Vote on documents as answers to a query, as `Collection.feedback`; return the version of the model."""
        return self.collection.feedback(query_embedding, document_ids, votes, source=source, position=position)

    def count_unique_metadata_by_filter(self, filters: dict[str, Any], metadata_fields: list[str]) -> dict[str, int]:
        """Return how many different values fields of the meta have, in the documents that match."""
        items, names = self.matching_items(filters), map(meta_field, metadata_fields)
        return {name: len(distinct_values(meta_values(items, name))) for name in names}

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """Return the fields of the meta of all documents, and their types."""
        return field_types(self.matching_items())

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """Return the least and the greatest value of a field of the meta."""
        return value_range(meta_values(self.matching_items(), meta_field(metadata_field)))

    def get_metadata_field_unique_values(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: dict[str, Any] | None = None,
    ) -> tuple[list[Any], int]:
        """Return a page of the different values of a field, and how many there are; those that hold a term, if any."""
        values = distinct_values(meta_values(self.matching_items(filters), meta_field(metadata_field)))
        term = (search_term or "").lower()
        values = [value for value in values if term in str(value).lower()]
        return values[from_ : from_ + size], len(values)

    # A store is used from any number of threads.
    count_documents_async = _in_thread(count_documents)
    filter_documents_async = _in_thread(filter_documents)
    write_documents_async = _in_thread(write_documents)
    delete_documents_async = _in_thread(delete_documents)
    delete_all_documents_async = _in_thread(delete_all_documents)
    delete_by_filter_async = _in_thread(delete_by_filter)
    update_by_filter_async = _in_thread(update_by_filter)
    count_documents_by_filter_async = _in_thread(count_documents_by_filter)
    count_unique_metadata_by_filter_async = _in_thread(count_unique_metadata_by_filter)
    get_metadata_fields_info_async = _in_thread(get_metadata_fields_info)
    get_metadata_field_min_max_async = _in_thread(get_metadata_field_min_max)
    get_metadata_field_unique_values_async = _in_thread(get_metadata_field_unique_values)
    embedding_retrieval_async = _in_thread(embedding_retrieval)
    hybrid_retrieval_async = _in_thread(hybrid_retrieval)
    feedback_async = _in_thread(feedback)

    def _embeddings(self, items: Sequence[Item]) -> dict[str, list[float]]:
        """Return the embeddings of documents that have one, as they are stored; none where they are not kept."""
        collection = self.collection
        if not self.folder.keeps_embeddings:
            return {}
        ids = [str(item.id) for item in items]
        if self.read_only:  # another process may have deleted some
            ids = [str(item.id) for item in collection.get(ids) if item is not None]
        return dict(zip(ids, collection.reconstruct(ids).tolist(), strict=True)) if ids else {}


def meta_field(field: str) -> str:
    """Return the name of a field without the prefix that filters have."""
    return field.removeprefix(META_PREFIX)


def meta_values(items: Iterable[Item], field: str) -> list[Any]:
    """Return the values of a field, of the documents that have it."""
    values = ((item.metadata or {}).get("meta", {}).get(field) for item in items)
    return [value for value in values if value is not None]


def distinct_values(values: Iterable[Any]) -> list[Any]:
    """Return values without repetitions, sorted as texts; 1, 1.0, True and "1" are different."""
    distinct = {(type(value).__name__, json.dumps(value, sort_keys=True)): value for value in values}
    return [distinct[key] for key in sorted(distinct, key=lambda key: (str(distinct[key]), key))]


def field_types(items: Iterable[Item]) -> dict[str, dict[str, str]]:
    """Return the fields, and the type of a value of each; "keyword" for texts and all others."""
    metas = ((item.metadata or {}).get("meta", {}) for item in items)
    types = {key: type(value) for meta in metas for key, value in meta.items() if value is not None}
    return {key: {"type": TYPE_NAMES.get(kind, "keyword")} for key, kind in types.items()}


def value_range(values: Iterable[Any]) -> dict[str, Any]:
    """Return the least and the greatest value; None of what cannot be compared."""
    comparable = [value for value in values if isinstance(value, int | float | str)]
    try:
        return {"min": min(comparable, default=None), "max": max(comparable, default=None)}
    except TypeError:
        return {"min": None, "max": None}


def _conditions(filters: Any, *, some: bool = False) -> Conditions:
    """Return a filter for each of the two collections; some: refuse an empty one."""
    conditions = translate(filters, embedded=True), translate(filters, embedded=False)
    if some and conditions[0] is None:
        raise FilterError("filters: expected conditions, got none. delete_all_documents deletes all.")
    return conditions


def _labelled(filters: Any, labels: list[Any] | None) -> Filter | None:
    """Return the condition of a search: the filters, and one of these labels."""
    where = translate(filters, embedded=True)
    if labels is None:
        return where
    labelled: Filter = {"labels": {"$in": labels}}
    return labelled if where is None else {"$and": [where, labelled]}


def _merged(item: Item, meta: dict[str, Any]) -> dict[str, Any]:
    return {**(item.metadata or {}).get("meta", {}), **meta}
