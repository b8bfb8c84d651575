"""Reading a collection: what any process may do, while one writes.

An answer is of one moment: its hits, their metadata and the model's version belong together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.encoder_alignment import (
    EncoderIdentity,
    EncoderInfo,
    align_features,
    collection_encoder,
    identify,
    list_alignments,
)
from stillhash.collection.explain import explained
from stillhash.collection.filters import compile_filter
from stillhash.collection.prequential import told_so_far
from stillhash.collection.read_view import View
from stillhash.collection.storage.snapshot import snapshot
from stillhash.collection.storage.store import Store
from stillhash.collection.trainer import earliest
from stillhash.collection.types import Answer, Hit, Id, Item, check_ids, check_path
from stillhash.errors import InvalidInput, NotFitted, TooLarge
from stillhash.numeric.alignment import unit_rows
from stillhash.numeric.validation import Floats, check_features, check_integer
from stillhash.search import Index

Scored = Iterable[tuple[NDArray[np.float32], NDArray[np.int64]]]  # for each query scores and rows


class Reader:
    """The verbs of a collection that change nothing."""

    def __init__(self, store: Store, searcher: Callable[[int], Any] = Index) -> None:
        self._searcher = searcher
        self._use(store)
        self.dim, self.bits = store.settings["dim"], store.settings["bits"]

    def _use(self, store: Store) -> None:
        self._store, self._view = store, View(store, self._searcher)

    def __repr__(self) -> str:
        return f"Collection({self._store.path.name!r}, dim={self.dim}, bits={self.bits}, rows={self.count()})"

    def __len__(self) -> int:
        return self.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets another process write. What was acknowledged is on disk long since."""
        self._store.close()
        self._view.index.close()

    # ---- items ----

    def get(self, ids: Any) -> list[Item | None]:
        """One entry for each id, None where there is no such item."""
        names = check_ids(ids, distinct=False)
        with self._store.reading() as connection:
            rows = self._store.rows_of(connection, names)
            items = self._store.items(connection, rows.values())
        return [items[rows[name]] if name in rows else None for name in names]

    def picture(self, id: Any) -> bytes | None:
        """The small image that an item came with, if it did."""
        (name,) = check_ids([id])
        with self._store.reading() as connection:
            row = self._store.rows_of(connection, [name]).get(name)
            return None if row is None else self._store.picture(connection, row)

    def reconstruct(self, ids: Any) -> Floats:
        """Features (n, D) that stand for these items, to ask for more like them.

        The features that an item came with are not kept, only its code; these have that code, or nearly so. While rows
        wait for hash functions, they are the items' own.
        """
        names = check_ids(ids, distinct=False)

        def found(connection: Connection) -> Floats:
            rows, places = np.unique(self._rows(connection, names), return_inverse=True)
            if self._view.functions is None:
                return self._store.features(connection, rows)[places]
            return self._view.functions.decode(self._view.index.codes(rows))[places]

        return self._view.at_one_moment(found)

    def sample(self, count: int = 1) -> list[Item]:
        """Some items at random, at most so many."""
        check_integer(count, "count", 1, 10_000)
        with self._store.reading() as connection:
            rows = self._store.some_rows(connection, count)
            items = self._store.items(connection, rows)
        return [items[row] for row in rows]

    def count(self) -> int:
        with self._store.reading() as connection:
            return int(self._store.meta(connection, "items"))

    # ---- search ----

    def search(
        self, query: Any, k: int = 10, *, where: Any = None, version: int | None = None, explain: bool | int = False
    ) -> Any:
        """The k best items for a query (D,), as an Answer; for queries (m, D), a list of Answers.

        where: only items that meet this condition (filters.py); min(k, matching) hits come back. version: ranked by an
        earlier version of the model; 0 is Hamming distance, before anything was learnt. explain: each hit says what
        each bit adds to its score, and how the version of this number ranks it; True compares with the earliest kept.
        """
        check_integer(k, "k", 1)

        def found(connection: Connection, Q: Floats, allowed: Any) -> list[Answer]:
            named, model = self._view.model_of(connection, version)
            if self._view.functions is None:
                return self._by_cosine(connection, Q, k, allowed)
            most = min(k, max(1, len(self._view.index)))
            hits = self._view.index.search(self._view.functions.weigh_by(model, Q), most, allowed=allowed)
            answers = self._answers(connection, zip(*hits, strict=True), named, _ranking(model.learnt), hits.missing)
            if explain is False:
                return answers
            other = earliest(connection) if explain is True else explain
            models = model, self._view.model_of(connection, other)[1]
            rows = [some[some >= 0] for some in hits.ids]
            told = explained(self._view, Q, models, other, rows, allowed)
            return [answer.explained(some) for answer, some in zip(answers, told, strict=True)]

        return self._asked(query, where, found)

    def range_search(
        self, query: Any, threshold: float, *, where: Any = None, version: int | None = None, most: int | None = None
    ) -> Any:
        """All items of at least this score, best first; otherwise as `search`. More than `most` of them are refused."""
        if most is not None:
            check_integer(most, "most", 1)

        def found(connection: Connection, Q: Floats, allowed: Any) -> list[Answer]:
            if self._view.functions is None:
                raise NotFitted("range_search wants hash functions: add more rows, or call fit")
            named, model = self._view.model_of(connection, version)
            weights = self._view.functions.weigh_by(model, Q)
            hits = self._view.index.range_search(weights, threshold, allowed=allowed)
            if most is not None and (many := sum(len(some.ids) for some in hits)) > most:
                raise TooLarge(f"threshold is {threshold}, which {many} items reach; at most {most} are given at once")
            missing = max((some.missing for some in hits), default=0.0)
            return self._answers(connection, hits, named, _ranking(model.learnt), missing)

        return self._asked(query, where, found)

    # ---- encoders ----

    @property
    def encoder(self) -> EncoderIdentity | None:
        """What made the features: its name, fingerprint and dim; None if they came as ready vectors."""
        return collection_encoder(self._store)

    def translate(self, features: Any, encoder: EncoderInfo) -> Floats:
        """Features that an encoder made, in this collection's space: as they are, or over a bridge."""
        with self._store.reading() as connection:
            return align_features(self._store, connection, identify(encoder), features)

    def alignments(self) -> list[dict[str, Any]]:
        """The encoders, beside its own, whose features it takes."""
        with self._store.reading() as connection:
            return list_alignments(self._store, connection)

    # ---- how it stands ----

    def versions(self) -> list[dict[str, Any]]:
        """The versions of the model that are kept, the latest last.

        `quality` is how well the version before did on the rows that this one then learnt from; `drift` is true where
        that was a fall.
        """
        columns = "version", "made", "kind", "rows", "tag"
        with self._store.reading() as connection:
            current = self._store.meta(connection, "version")
            rows = connection.execute(f"SELECT {', '.join(columns)}, notes FROM versions ORDER BY version").fetchall()
        return [
            {**dict(zip(columns, row, strict=False)), "current": row[0] == current, **json.loads(row[-1])}
            for row in rows
        ]

    def quality(self) -> dict[str, Any]:
        """How well it did over the stream: each chunk of labelled rows is asked before it is learnt.

        `curve` has for each version its mean average precision, `map`, that of Hamming ranking on the same codes, and
        whether it was a fall; of long streams every second earlier point is left out. `alarms` are versions of falls.
        """
        with self._store.reading() as connection:
            told = told_so_far(self._store, connection)
        return {"curve": told.get("curve", []), "alarms": told.get("alarms", [])}

    def stats(self) -> dict[str, Any]:
        """How it stands.

        `quality` is of the last rows that were learnt, before they were; `drift_alarms` are the versions that began
        with a fall of it.
        """

        def told(connection: Connection) -> dict[str, Any]:
            quality = told_so_far(self._store, connection)
            return {
                **self._store.settings,
                "fitted": self._view.functions is not None,
                "version": self._view.version,
                **self._store.counts(connection),
                "index_bytes": self._view.index.nbytes,
                "plan": self._view.index.plan,
                "quality": quality.get("quality"),
                "drift_alarms": quality.get("alarms", []),
            }

        return self._view.at_one_moment(told)

    def verify(self) -> list[str]:
        """Looks at all that is stored and says what is wrong; an empty list means nothing is."""
        return self._store.verify()

    def snapshot(self, path: str | Path) -> int:
        """Copies the collection, as it stands at one commit, to a new folder; the bytes that takes.

        Others may search and write meanwhile. The copy is a collection of its own.
        """
        return snapshot(self._store, check_path(path))

    # ---- inside ----

    def _rows(self, connection: Connection, names: list[Id]) -> NDArray[np.int64]:
        """The rows of items by their ids."""
        rows = self._store.rows_of(connection, names)
        if absent := [name for name in names if name not in rows]:
            raise InvalidInput(f"id is {absent[0]!r}; there is no such item")
        return np.array([rows[name] for name in names], np.int64)

    def _features(self, value: Any, name: str, least: int = 0) -> Floats:
        return check_features(value, name, columns=self.dim, whose="this collection", least=least)

    def _asked(self, query: Any, where: Any, found: Any) -> Any:
        """Answers one query or many, at one moment, among the rows that meet the condition."""
        array = as_array(query)
        Q = self._features(array[None] if array.ndim == 1 else array, "query")
        condition = None if where is None else compile_filter(where)

        def work(connection: Connection) -> list[Answer]:
            allowed = None if condition is None else self._store.matching(connection, condition)
            answers: list[Answer] = found(connection, Q, allowed)
            return answers

        answers = self._view.at_one_moment(work)
        return answers[0] if array.ndim == 1 else answers

    def _answers(
        self, connection: Connection, found: Scored, version: int, ranking: str, missing: float = 0.0
    ) -> list[Answer]:
        scored = [
            [(s, r) for s, r in zip(scores.tolist(), rows.tolist(), strict=True) if r >= 0] for scores, rows in found
        ]
        items = self._store.items(connection, {row for some in scored for _, row in some})
        hits = [[Hit(items[r].id, items[r].labels, items[r].metadata, s, version) for s, r in some] for some in scored]
        return [Answer(some, version, ranking, missing) for some in hits]

    def _by_cosine(self, connection: Connection, Q: Floats, k: int, allowed: Any) -> list[Answer]:
        """The rows that wait, by the cosine of their features: higher, then earlier."""
        rows, X = self._store.waiting(connection)
        if allowed is not None:
            may = np.unpackbits(allowed, bitorder="little")[rows].astype(bool)
            rows, X = rows[may], X[may]
        scores: NDArray[np.float32] = unit_rows(Q) @ unit_rows(X).T
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        ranking = f"cosine of raw features: hash functions are fitted at {self._store.settings['init_rows']} rows"
        best = [(some[places], rows[places]) for some, places in zip(scores, order, strict=True)]
        return self._answers(connection, best, 0, ranking)


def as_array(query: Any) -> NDArray[Any]:
    try:
        return np.asarray(query)
    except ValueError as error:
        raise InvalidInput(f"query is not a vector, or rows of equal length: {error}") from None


def _ranking(learnt: bool) -> str:
    return "learnt similarity" if learnt else "Hamming distance: before anything is learnt"
