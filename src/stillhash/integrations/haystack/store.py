"""The document store of Haystack, in a folder of this machine."""

import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from haystack import Document, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError

from stillhash.collection import Collection
from stillhash.collection.types import TEXT_FIELD, Filter, Hit, Item, VersionName
from stillhash.errors import Closed, InvalidInput, report_shortages
from stillhash.integrations.haystack.async_methods import AsyncMethods
from stillhash.integrations.haystack.documents import check_documents, in_order, labels_of, to_document, to_metadata
from stillhash.integrations.haystack.filters import translate
from stillhash.integrations.haystack.folder import EMBEDDED, UNEMBEDDED, DocumentFolder, Step, leave_folder, use_folder
from stillhash.integrations.haystack.metadata_queries import MetadataMethods
from stillhash.numeric.validation import check_integer

_first_use = threading.Lock()  # when a store opens its folder
FilterDict = dict[str, Any]
Conditions = tuple[Filter | None, Filter | None]  # for documents with an embedding, and without one


@report_shortages
class StillhashDocumentStore(MetadataMethods, AsyncMethods):
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

    def _embeddings(self, items: Sequence[Item]) -> dict[str, list[float]]:
        """Return the embeddings of documents that have one, as they are stored; none where they are not kept."""
        collection = self.collection
        if not self.folder.keeps_embeddings:
            return {}
        ids = [str(item.id) for item in items]
        if self.read_only:  # another process may have deleted some
            ids = [str(item.id) for item in collection.get(ids) if item is not None]
        return dict(zip(ids, collection.reconstruct(ids).tolist(), strict=True)) if ids else {}


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
