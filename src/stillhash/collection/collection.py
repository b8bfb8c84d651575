"""A collection: items that are stored for good, searched exactly, and ranked by a similarity that keeps learning.

One process writes, any number of others read the same folder and see what is committed. Within a process threads may
search while one writes. An answer is of one moment: its hits, their metadata and the model's version belong together.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.explain import explained
from stillhash.collection.feedback import Thumb
from stillhash.collection.filters import compiled
from stillhash.collection.items import Answer, Hit, Id, Item, check_ids, check_labels, check_metadata, check_path
from stillhash.collection.proof import Connection
from stillhash.collection.quality import told_so_far
from stillhash.collection.repair import Repaired, repair
from stillhash.collection.snapshot import snapshot
from stillhash.collection.store import Store
from stillhash.collection.teacher import Teacher, earliest, kept
from stillhash.collection.view import View
from stillhash.errors import Conflict, InvalidInput, NotFitted, StillhashError, WrongType
from stillhash.numeric.checks import Codes, Floats, check_features, check_integer, check_number

SEAL = 131_072  # rows of the tail that become a segment

Scored = Iterable[tuple[NDArray[np.float32], NDArray[np.int64]]]  # for each query scores and rows


class Collection:
    """Made by `stillhash.open`. All verbs may be called from any thread."""

    def __init__(self, store: Store) -> None:
        self._changing = threading.RLock()  # one writes at a time
        self._use(store)
        self.dim, self.bits = store.settings["dim"], store.settings["bits"]

    def _use(self, store: Store) -> None:
        self._store, self._view, self._teacher = store, View(store), Teacher(store)

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
        with self._changing:
            self._store.close()

    # ---- items ----

    def add(self, ids: Any, features: Any, labels: Any = None, metadata: Any = None, *, learn: bool = True) -> int:
        """Adds items, and says how many. When it returns they are on disk.

        ids: texts or integers, new ones. labels: as for `partial_fit`; texts and numbers. metadata: a dictionary, or
        None, for each. Labelled items are learnt from, unless `learn` is false: once `learn_rows` of them wait.
        """
        return self._put(ids, features, labels, metadata, learn, replace=False)

    def upsert(self, ids: Any, features: Any, labels: Any = None, metadata: Any = None, *, learn: bool = True) -> int:
        """As `add`; items whose ids are there already are replaced."""
        return self._put(ids, features, labels, metadata, learn, replace=True)

    def delete(self, ids: Any) -> int:
        """Deletes these items, and says how many were there."""
        names = check_ids(ids)
        with self._changing, self._store.writing() as connection:
            return self._store.remove(connection, names)

    def get(self, ids: Any) -> list[Item | None]:
        """One entry for each id, None where there is no such item."""
        names = check_ids(ids, distinct=False)
        with self._store.reading() as connection:
            rows = self._store.rows_of(connection, names)
            items = self._store.items(connection, rows.values())
        return [items[rows[name]] if name in rows else None for name in names]

    def recall(self, ids: Any) -> Floats:
        """Features (n, D) that stand for these items, to ask for more like them.

        The features that an item came with are not kept, only its code; these have that code, or nearly so. While rows
        wait for hash functions, they are the items' own.
        """
        names = check_ids(ids, distinct=False)

        def found(connection: Connection) -> Floats:
            rows = self._rows(connection, names)
            if self._view.functions is None:
                return self._store.features(connection, rows)
            return self._view.functions.decode(self._view.index.codes(rows))

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
            answers = self._answers(connection, zip(*hits, strict=True), named, _ranking(model.learnt))
            if explain is False:
                return answers
            other = earliest(connection) if explain is True else explain
            models = model, self._view.model_of(connection, other)[1]
            rows = [some[some >= 0] for some in hits.ids]
            told = explained(self._view, Q, models, other, rows, allowed)
            return [answer.explained(some) for answer, some in zip(answers, told, strict=True)]

        return self._asked(query, where, found)

    def search_range(self, query: Any, threshold: float, *, where: Any = None, version: int | None = None) -> Any:
        """All items of at least this score, best first; otherwise as `search`."""

        def found(connection: Connection, Q: Floats, allowed: Any) -> list[Answer]:
            if self._view.functions is None:
                raise NotFitted("search_range wants hash functions: add more rows, or call fit")
            named, model = self._view.model_of(connection, version)
            weights = self._view.functions.weigh_by(model, Q)
            hits = self._view.index.search_range(weights, threshold, allowed=allowed)
            return self._answers(connection, hits, named, _ranking(model.learnt))

        return self._asked(query, where, found)

    # ---- learning ----

    def fit(self, features: Any = None, labels: Any = None) -> None:
        """Fixes the hash functions now, for ever: by a sample, or by the rows that wait."""
        sample = None
        if features is None and labels is not None:
            raise InvalidInput("labels is given without features; rows that wait have their own labels")
        if features is not None:
            X = self._features(features, "features", least=2)
            sample = X, check_labels(labels, len(X))
        with self._changing, self._teacher.writing() as connection:
            if self._store.fitted(connection):
                raise Conflict("the hash functions are fitted already, and never change")
            self._teacher.fit(connection, sample)

    def learn(self, features: Any, labels: Any) -> int:
        """Learns from labelled rows that are no items, and publishes a version: its number."""
        X = self._features(features, "features")
        told = check_labels(labels, len(X))
        with self._changing, self._teacher.writing() as connection:
            return self._teacher.learn(connection, X, told)

    def feedback(self, query: Any, id: Any, relevant: Any, *, weight: float = 1.0, source: str = "") -> int:
        """Learns from a thumb up (`relevant`) or down on an item, or on a list of items, for a query (D,).

        Publishes a version, and says its number. The last word of a source on a query and an item counts; the sources'
        votes add up. weight: how much of a full vote, up to 1. A source never counts for more than `source_cap` thumbs.
        """
        asked = self._features(_array(query)[None], "query")
        names = check_ids([id] if isinstance(id, (str, int, np.generic)) else id)
        if not names:
            raise InvalidInput("id holds no ids; at least one is wanted")
        likes = list(relevant) if isinstance(relevant, (list, tuple, np.ndarray)) else [relevant] * len(names)
        if len(likes) != len(names) or not all(isinstance(liked, (bool, np.bool_)) for liked in likes):
            raise InvalidInput(f"relevant is {relevant!r}; true or false is wanted for each of {len(names)} ids")
        if not 0 < check_number(weight, "weight") <= 1:
            raise InvalidInput(f"weight is {weight}; more than 0 and at most 1 is wanted")
        if not isinstance(source, str) or not source.isprintable():
            raise WrongType(f"source is {source!r}; a text that can be printed is wanted")
        with self._changing:
            self._store.db.check_writer()
            items, codes = self._view.at_one_moment(lambda connection: self._coded(connection, names))
            thumbs = [
                Thumb(asked.tobytes(), json.dumps(item.id), code.tobytes(), item.labels, sign * float(weight), source)
                for item, code, sign in zip(items, codes, (1 if liked else -1 for liked in likes), strict=True)
            ]
            with self._teacher.writing() as connection:
                return self._teacher.feedback(connection, thumbs)

    def _coded(self, connection: Connection, names: list[Id]) -> tuple[list[Item], Codes]:
        """Items by their ids, and their codes."""
        if self._view.functions is None:
            raise NotFitted("feedback wants hash functions: add more rows, or call fit")
        numbers = self._rows(connection, names)
        items = self._store.items(connection, numbers.tolist())
        return [items[row] for row in numbers.tolist()], self._view.index.codes(numbers)

    def _rows(self, connection: Connection, names: list[Id]) -> NDArray[np.int64]:
        """The rows of items by their ids."""
        rows = self._store.rows_of(connection, names)
        if absent := [name for name in names if name not in rows]:
            raise InvalidInput(f"id is {absent[0]!r}; there is no such item")
        return np.array([rows[name] for name in names], np.int64)

    def flush(self) -> int:
        """Learns the labelled items that wait for a full step; the version that is then current."""
        with self._changing, self._teacher.writing() as connection:
            if self._store.fitted(connection):
                self._teacher.lessons(connection)
            return int(self._store.meta(connection, "version"))

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

    def tag(self, version: int, name: str) -> None:
        """Names a version; one that has a name is kept."""
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise InvalidInput(f"name is {name!r}; a text that can be printed is wanted")
        version = check_integer(version, "version", 1, 2**63 - 1)
        with self._changing, self._store.writing() as connection:
            kept(connection, version)
            if connection.execute("SELECT 1 FROM versions WHERE tag = ? AND version != ?", [name, version]).fetchone():
                raise Conflict(f"name is {name!r}, which another version has")
            connection.execute("UPDATE versions SET tag = ? WHERE version = ?", [name, version])

    def rollback(self, version: int) -> int:
        """Publishes an earlier version anew, with the same answers to the byte, and says under which number.

        Learning goes on from what that version had learnt where that is kept, as it is for the latest two versions and
        for those with a tag, and from the present otherwise. Thumbs that came after the version are forgotten, and a
        later rollback does not bring them back.
        """
        with self._changing, self._teacher.writing() as connection:
            return self._teacher.rollback(connection, version)

    # ---- upkeep ----

    def seal(self) -> bool:
        """Moves the tail of codes into a segment now; False if there is none."""
        with self._changing:
            return self._store.seal()

    def compact(self) -> None:
        """Rewrites the codes without deleted rows, which frees their disk and memory."""
        with self._changing:
            self._store.compact()

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

    def repair(self) -> Repaired:
        """Brings back what is not damaged, as `stillhash.repair` does, which also works where nothing can be opened.

        Nobody else may have the collection open.
        """
        with self._changing:
            self._store.db.check_writer()
            self._store.close()
            try:
                return repair(self._store.path)
            finally:
                self._use(Store(self._store.path, writer=True))

    def snapshot(self, path: str | Path) -> int:
        """Copies the collection, as it stands at one commit, to a new folder; the bytes that takes.

        Others may search and write meanwhile. The copy is a collection of its own.
        """
        return snapshot(self._store, check_path(path))

    # ---- inside ----

    def _put(self, ids: Any, features: Any, labels: Any, metadata: Any, learn: bool, *, replace: bool) -> int:
        names = check_ids(ids)
        X = self._features(features, "features")
        if len(X) != len(names):
            raise InvalidInput(f"features has {len(X)} rows for {len(names)} ids; one each is wanted")
        told, data = check_labels(labels, len(X)), check_metadata(metadata, len(X))
        if not names:
            return 0
        with self._changing:
            with self._teacher.writing() as connection:
                rows = self._insert(connection, names, X, told, data, learn, replace)
            if rows.stop // SEAL > rows.start // SEAL:
                with suppress(StillhashError, OSError):  # the rows are on disk; the tail is only longer than usual
                    self._store.seal()
        return len(names)

    def _insert(
        self, connection: Connection, ids: list[Id], X: Floats, labels: Any, metadata: Any, learn: bool, replace: bool
    ) -> range:
        if replace:
            self._store.remove(connection, ids)
        fitted = self._store.fitted(connection)
        codes = self._teacher.functions(connection).encode_checked(X) if fitted else None
        rows = self._store.insert(connection, ids, labels, metadata, codes, None if fitted else X)
        if learn:
            self._teacher.add_lessons(connection, rows, X, labels)
        if fitted:
            self._teacher.lessons(connection, self._store.settings["learn_rows"])
        elif self._store.meta(connection, "items") >= self._store.settings["init_rows"]:
            self._teacher.fit(connection)
        return rows

    def _features(self, value: Any, name: str, least: int = 0) -> Floats:
        return check_features(value, name, columns=self.dim, whose="this collection", least=least)

    def _asked(self, query: Any, where: Any, found: Any) -> Any:
        """Answers one query or many, at one moment, among the rows that meet the condition."""
        array = _array(query)
        Q = self._features(array[None] if array.ndim == 1 else array, "query")
        condition = None if where is None else compiled(where)

        def work(connection: Connection) -> list[Answer]:
            allowed = None if condition is None else self._store.matching(connection, condition)
            answers: list[Answer] = found(connection, Q, allowed)
            return answers

        answers = self._view.at_one_moment(work)
        return answers[0] if array.ndim == 1 else answers

    def _answers(self, connection: Connection, found: Scored, version: int, ranking: str) -> list[Answer]:
        scored = [
            [(s, r) for s, r in zip(scores.tolist(), rows.tolist(), strict=True) if r >= 0] for scores, rows in found
        ]
        items = self._store.items(connection, {row for some in scored for _, row in some})
        hits = [[Hit(items[r].id, items[r].labels, items[r].metadata, s, version) for s, r in some] for some in scored]
        return [Answer(some, version, ranking) for some in hits]

    def _by_cosine(self, connection: Connection, Q: Floats, k: int, allowed: Any) -> list[Answer]:
        """The rows that wait, by the cosine of their features: higher, then earlier."""
        rows, X = self._store.waiting(connection)
        if allowed is not None:
            may = np.unpackbits(allowed, bitorder="little")[rows].astype(bool)
            rows, X = rows[may], X[may]
        scores: NDArray[np.float32] = _unit(Q) @ _unit(X).T
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        ranking = f"cosine of raw features: hash functions are fitted at {self._store.settings['init_rows']} rows"
        best = [(some[places], rows[places]) for some, places in zip(scores, order, strict=True)]
        return self._answers(connection, best, 0, ranking)


def _array(query: Any) -> NDArray[Any]:
    try:
        return np.asarray(query)
    except ValueError as error:
        raise InvalidInput(f"query is not a vector, or rows of equal length: {error}") from None


def _ranking(learnt: bool) -> str:
    return "learnt similarity" if learnt else "Hamming distance: nothing is learnt yet"


def _unit(X: Floats) -> Floats:
    norms = np.sqrt(np.einsum("ij,ij->i", X, X))[:, None]
    return np.divide(X, np.where(norms > 0, norms, np.float32(1)))
