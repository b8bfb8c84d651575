"""A collection: items that are stored for good, searched exactly, and ranked by a similarity that keeps learning.

One process writes, any number of others read the same folder and see what is committed. Within a process threads may
search while one writes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from sqlite3 import Connection
from typing import Any

from stillhash.collection.encoder_alignment import EncoderInfo, build_alignment, identify
from stillhash.collection.feedback import Vote
from stillhash.collection.reader import Reader, as_array
from stillhash.collection.storage.repair import RepairReport, repair
from stillhash.collection.storage.store import Store
from stillhash.collection.trainer import Trainer, kept
from stillhash.collection.types import Id, Item, check_ids, check_labels, check_metadata, check_pictures, check_thumbs
from stillhash.errors import Conflict, InvalidInput, NotFitted, StillhashError
from stillhash.numeric.validation import Codes, Floats, check_integer
from stillhash.search import Index

SEAL = 131_072  # rows of the tail that become a segment


class Collection(Reader):
    """Made by `stillhash.open`. All verbs may be called from any thread."""

    def __init__(self, store: Store, searcher: Callable[[int], Any] = Index) -> None:
        self._changing = threading.RLock()  # one writes at a time
        super().__init__(store, searcher)

    def _use(self, store: Store) -> None:
        super()._use(store)
        self._teacher = Trainer(store)

    def close(self) -> None:
        """Lets another process write. What was acknowledged is on disk long since."""
        with self._changing:
            super().close()

    # ---- items ----

    def add(
        self,
        ids: Any,
        features: Any,
        labels: Any = None,
        metadata: Any = None,
        *,
        pictures: Any = None,
        learn: bool = True,
    ) -> int:
        """Adds items, and says how many. When it returns they are on disk.

        ids: texts or integers, new ones. labels: as for `partial_fit`; texts and numbers. metadata: a dictionary, or
        None, for each. pictures: the bytes of a small image (PNG, JPEG, WebP, GIF), or None, for each. Labelled items
        are learnt from, unless `learn` is false: once `learn_rows` of them wait.
        """
        return self._put(ids, features, labels, metadata, pictures, learn, replace=False)

    def upsert(
        self,
        ids: Any,
        features: Any,
        labels: Any = None,
        metadata: Any = None,
        *,
        pictures: Any = None,
        learn: bool = True,
    ) -> int:
        """As `add`; items whose ids are there already are replaced."""
        return self._put(ids, features, labels, metadata, pictures, learn, replace=True)

    def delete(self, ids: Any) -> int:
        """Deletes these items, and says how many were there."""
        names = check_ids(ids)
        with self._changing, self._store.writing() as connection:
            return self._store.remove(connection, names)

    def relabel(self, ids: Any, labels: Any, *, learn: bool = True) -> int:
        """Gives items other labels, and learns from them unless `learn` is false; says how many.

        Items whose features are not kept any more are learnt by features that stand for them, by `reconstruct`.
        What was learnt from their earlier labels stays.
        """
        names = check_ids(ids)
        told = check_labels(labels, len(names))
        with self._changing:
            X = self.reconstruct(names)
            with self._teacher.writing() as connection:
                rows = self._rows(connection, names).tolist()
                self._store.relabel(connection, rows, told)
                if learn:
                    self._teacher.add_lessons(connection, rows, self._store.lessons_of(connection, rows, X), told)
                    if self._store.fitted(connection):
                        self._teacher.lessons(connection, self._store.settings["learn_rows"])
        return len(names)

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
        asked = self._features(as_array(query)[None], "query")
        likes = check_thumbs(id, relevant, weight, source)
        with self._changing:
            self._store.db.check_writer()
            items, codes = self._view.at_one_moment(lambda connection: self._coded(connection, list(likes)))
            votes = (float(weight) if liked else -float(weight) for liked in likes.values())
            thumbs = [
                Vote(asked.tobytes(), json.dumps(item.id), code.tobytes(), item.labels, vote, source)
                for item, code, vote in zip(items, codes, votes, strict=True)
            ]
            with self._teacher.writing() as connection:
                return self._teacher.feedback(connection, thumbs)

    def flush(self) -> int:
        """Learns the labelled items that wait for a full step; the version that is then current."""
        with self._changing, self._teacher.writing() as connection:
            if self._store.fitted(connection):
                self._teacher.lessons(connection)
            return int(self._store.meta(connection, "version"))

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

    def align(self, encoder: EncoderInfo, theirs: Any, ours: Any) -> dict[str, Any]:
        """Lets features of another encoder in: fits a bridge, by the same things described by it and by our own.

        A few hundred pairs do. Codes stay, and learning goes on. Says what share of the variance of our features it
        explains, of things that it has not seen.
        """
        told = identify(encoder)
        with self._changing, self._store.writing() as connection:
            return build_alignment(self._store, connection, told, (theirs, ours))

    # ---- upkeep ----

    def seal(self) -> bool:
        """Moves the tail of codes into a segment now; False if there is none."""
        with self._changing:
            return self._store.seal()

    def compact(self) -> None:
        """Rewrites the codes without deleted rows, which frees their disk and memory."""
        with self._changing:
            self._store.compact()

    def repair(self) -> RepairReport:
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

    # ---- inside ----

    def _coded(self, connection: Connection, names: list[Id]) -> tuple[list[Item], Codes]:
        """Items by their ids, and their codes."""
        if self._view.functions is None:
            raise NotFitted("feedback wants hash functions: add more rows, or call fit")
        numbers = self._rows(connection, names)
        items = self._store.items(connection, numbers.tolist())
        return [items[row] for row in numbers.tolist()], self._view.index.codes(numbers)

    def _put(
        self, ids: Any, features: Any, labels: Any, metadata: Any, pictures: Any, learn: bool, *, replace: bool
    ) -> int:
        names = check_ids(ids)
        X = self._features(features, "features")
        if len(X) != len(names):
            raise InvalidInput(f"features has {len(X)} rows for {len(names)} ids; one each is wanted")
        told, data = check_labels(labels, len(X)), check_metadata(metadata, len(X))
        images = check_pictures(pictures, len(X))
        if not names:
            return 0
        with self._changing:
            with self._teacher.writing() as connection:
                rows = self._insert(connection, names, X, told, data, images, learn, replace)
            if rows.stop // SEAL > rows.start // SEAL:
                with suppress(StillhashError, OSError):  # the rows are on disk; the tail is only longer than usual
                    self._store.seal()
        return len(names)

    def _insert(
        self,
        connection: Connection,
        ids: list[Id],
        X: Floats,
        labels: Any,
        metadata: Any,
        pictures: list[bytes | None] | None,
        learn: bool,
        replace: bool,
    ) -> range:
        if replace:
            self._store.remove(connection, ids)
        fitted = self._store.fitted(connection)
        codes = self._teacher.functions(connection).encode_checked(X) if fitted else None
        rows = self._store.insert(connection, ids, labels, metadata, codes, None if fitted else X)
        if pictures is not None:
            self._store.add_pictures(connection, rows, pictures)
        if learn:
            self._teacher.add_lessons(connection, rows, X, labels)
        if fitted:
            self._teacher.lessons(connection, self._store.settings["learn_rows"])
        elif self._store.meta(connection, "items") >= self._store.settings["init_rows"]:
            self._teacher.fit(connection)
        return rows
