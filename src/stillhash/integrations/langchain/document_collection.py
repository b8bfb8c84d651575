"""Documents in a collection: what the vector store does, without embeddings and without an event loop."""

import inspect
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from langchain_core.documents import Document
from numpy.typing import ArrayLike

from stillhash.collection import open as open_collection
from stillhash.collection.types import Filter, Hit, Id, VersionName
from stillhash.collection.validation import check_items
from stillhash.errors import Conflict, InvalidInput, WrongType
from stillhash.integrations.langchain.documents import DocumentRow, ScoredDocument, stored_ids, to_document
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.validation import Floats, check_integer, check_number

MAX_DIVERSE_HITS = 10_000  # whose vectors are compared with each other
NEW_COLLECTION_SETTINGS = frozenset(inspect.signature(open_collection).parameters) - {"path", "read_only"}


def select_diverse(relevance: ArrayLike, vectors: ArrayLike, k: int, lambda_mult: float) -> list[int]:
    """Return the places of k rows: each time the one with the greatest lambda r - (1 - lambda) c.

    r is its relevance, and c the largest cosine of its vector with those chosen before. Ties are broken by place; the
    first one is the most relevant.
    """
    scores, X = np.asarray(relevance, np.float64), unit_rows(np.asarray(vectors, np.float64))
    redundancy = np.full(len(scores), -np.inf)
    places: list[int] = []
    while len(places) < min(k, len(scores)):
        gain = scores if not places else lambda_mult * scores - (1 - lambda_mult) * redundancy
        left = np.ones(len(scores), bool)
        left[places] = False
        places.append(int(np.flatnonzero(left)[np.argmax(gain[left])]))
        redundancy = np.maximum(redundancy, X @ X[places[-1]])
    return places


class SearchSettings(NamedTuple):
    """How to search: a filter, and what `Collection.search` takes."""

    where: Filter | None = None
    version: VersionName | None = None
    balance: float | None = None
    hybrid: bool = False  # by the words of the query too


def search_settings(arguments: dict[str, Any]) -> SearchSettings:
    """Return the arguments of a search of LangChain as settings; `filter` is what it calls a condition."""
    known = {**arguments, "where": arguments["filter"]} if "filter" in arguments else dict(arguments)
    known.pop("filter", None)
    if unknown := sorted(known.keys() - set(SearchSettings._fields)):
        raise WrongType(f"{unknown[0]}: expected filter, version, balance or hybrid, got an unknown argument")
    return SearchSettings(**known)


def to_floats(vectors: Any, ndim: int, expected: str) -> Floats:
    """Return what an embedding returned as an array with so many dimensions."""
    try:
        features: Floats = np.asarray(vectors, np.float32)
    except (TypeError, ValueError) as error:
        raise WrongType(f"embedding: expected {expected}, got {error}") from None
    if features.ndim != ndim or not features.size:
        shape = " x ".join(map(str, features.shape)) or "no"
        raise InvalidInput(f"embedding: expected {expected}, got {shape} numbers")
    return features


class DocumentCollection:
    """A collection of documents, which is created when the first ones come, since only then its dim is known."""

    def __init__(self, path: str | Path | None, collection: Any, read_only: bool, settings: dict[str, Any]) -> None:
        if (path is None) == (collection is None):
            raise InvalidInput("path: expected either path or collection, got " + ("none" if path is None else "both"))
        if unknown := sorted(settings.keys() - NEW_COLLECTION_SETTINGS):
            raise WrongType(f"{unknown[0]}: expected a setting of stillhash.open, got an unknown one")
        if collection is not None and (settings or read_only):
            raise InvalidInput("collection: expected no settings with an open collection, got some")
        self._path, self._settings, self._lock = path, settings, threading.Lock()
        self._opened: Any = collection
        self._owned = collection is None
        if path is not None and (read_only or "dim" in settings or (Path(path) / "store.db").is_file()):
            self._opened = open_collection(path, read_only=read_only, **settings)
        self._check_features()

    def _check_features(self) -> None:
        if self._opened is not None and getattr(self._opened, "codes_only", False):
            self.close()
            raise Conflict("collection: expected one of features, got one of ready codes")

    @property
    def opened(self) -> Any:
        """The collection, None before the first document."""
        return self._opened

    @property
    def name(self) -> str:
        """A short name, for messages and threads."""
        return "collection" if self._path is None else Path(self._path).name

    def close(self) -> None:
        """Close the collection, if it was opened here."""
        if self._owned and self._opened is not None:
            self._opened.close()

    def put(self, rows: list[DocumentRow], vectors: Any, learn_at_once: bool) -> None:
        """Store documents, replacing those whose ids exist, and learn from their labels."""
        features = to_floats(vectors, 2, f"a vector for each of {len(rows)} texts")
        if len(features) != len(rows):
            raise InvalidInput(f"embedding: expected a vector for each of {len(rows)} texts, got {len(features)}")
        labelled = any(row.labels is not None for row in rows)
        labels = [row.labels for row in rows] if labelled else None
        metadata = [row.metadata for row in rows]
        with self._lock:
            if self._opened is None:  # nothing is created for what would be refused
                check_items([row.id for row in rows], features, labels, metadata, None, features.shape[1])
                self._opened = open_collection(self._path or "", **{**self._settings, "dim": features.shape[1]})
        self._check_dim(features)
        self._opened.upsert(stored_ids(self._opened, (row.id for row in rows)), features, labels, metadata)
        if labelled and learn_at_once:
            self._opened.flush()

    def _check_dim(self, features: Floats) -> None:
        if features.shape[-1] != self._opened.dim:
            own = f"vectors of {self._opened.dim} numbers, as {self.name} has"
            raise Conflict(f"embedding: expected {own}, got {features.shape[-1]}")

    def _query(self, vector: Any) -> Floats:
        query = to_floats(vector, 1, "the vector of a query")
        self._check_dim(query)
        return query

    def get(self, ids: Any) -> list[Document]:
        """Return the documents with these ids, in their order, without those that do not exist."""
        if isinstance(ids, str):
            raise WrongType("ids: expected a list of ids, got one text")
        if self._opened is None:
            return []
        items = self._opened.get(stored_ids(self._opened, ids))
        return [to_document(item) for item in items if item is not None]

    def delete(self, ids: Any, where: Any) -> list[str]:
        """Delete documents, by their ids or by a condition; return the ids that existed, none for a condition."""
        if (ids is None) == (where is None):
            raise InvalidInput("ids: expected either ids or where, got " + ("none" if ids is None else "both"))
        if isinstance(ids, str):
            raise WrongType("ids: expected a list of ids, got one text")
        if self._opened is None:
            return []
        if where is not None:
            self._opened.delete(where=where)
            return []
        names = list(dict.fromkeys(stored_ids(self._opened, ids)))
        existing = [str(item.id) for item in self._opened.get(names) if item is not None]
        self._opened.delete(names)
        return existing

    def search(self, vector: Any, words: str | None, k: int, how: SearchSettings) -> list[Hit]:
        """Return the k best hits for a vector, and for the words of the query with a hybrid search."""
        check_integer(k, "k", 1)
        if self._opened is None:
            return []
        query = self._query(vector)
        options = {"where": how.where, "version": how.version, "balance": how.balance}
        if not how.hybrid:
            answer = self._opened.search(query, k, **options)
        elif words is None:
            raise InvalidInput("hybrid: expected a search by the text of a query, got one by a vector")
        else:
            answer = self._opened.hybrid_search(query, words, k, **options)
        return list(answer.hits)

    def similarities(self, vector: Any, hits: list[Hit], how: SearchSettings) -> list[float]:
        """Return scores in [-1, 1]: cosines of features, or of the weights of the query with the signs of codes.

        Votes on this very query count for more: liked hits have 1, disliked ones -1.
        """
        if not hits:
            return []
        if how.hybrid:
            raise InvalidInput("hybrid: expected a search without relevance scores, since ranks have none")
        options = {"version": how.version, "balance": how.balance}
        best = self._opened.search(self._query(vector), 1, explain=True, **options).hits
        length = 1.0
        if best and best[0].explanation is not None:  # what each bit adds is its weight, or minus its weight
            bits = np.asarray(best[0].explanation.bits)
            length = float(np.linalg.norm(bits) * np.sqrt(len(bits))) or 1.0
        by_votes = {"liked": 1.0, "disliked": -1.0}
        return [by_votes.get(hit.placed, float(np.clip(hit.score / length, -1, 1))) for hit in hits]

    def relevant(self, vector: Any, words: str, k: int, how: SearchSettings) -> list[ScoredDocument]:
        """Return the k best documents with their relevance, from 0 to 1."""
        hits = self.search(vector, words, k, how)
        similarities = self.similarities(vector, hits, how)
        return [(to_document(hit), (1 + one) / 2) for hit, one in zip(hits, similarities, strict=True)]

    def diverse(self, vector: Any, k: int, fetch_k: int, lambda_mult: float, how: SearchSettings) -> list[Hit]:
        """Return k of the first `fetch_k` hits, by maximal marginal relevance."""
        check_integer(k, "k", 1, MAX_DIVERSE_HITS)
        check_integer(fetch_k, "fetch_k", 1, MAX_DIVERSE_HITS)
        check_number(lambda_mult, "lambda_mult", low=0, high=1)
        hits = self.search(vector, None, max(k, fetch_k), how)
        if not hits:
            return []
        vectors = self._opened.reconstruct([hit.id for hit in hits])
        return [hits[at] for at in select_diverse(self.similarities(vector, hits, how), vectors, k, lambda_mult)]

    def vote(self, vector: Any, id: str | list[str], vote: Any, source: str, position: Any) -> int:
        """Vote on a document, or on several, as hits of a query; return the version of the model with it."""
        if self._opened is None:
            raise InvalidInput("id: expected a document of the collection, got one before the first was added")
        query = self._query(vector)
        ids: list[Id] = stored_ids(self._opened, [id] if isinstance(id, str) else id)
        return int(self._opened.feedback(query, ids, vote, source=source, position=position))
