"""The teacher: fixes the hash functions once, learns what labelled rows teach, and publishes versions.

Labelled rows wait as lessons, on disk, until there are enough for a step; a step, its version and the end of its
lessons are one transaction. What a version needs to answer is in the store, what a learner needs to learn on is a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from sqlite3 import Connection
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from stillhash.collection.feedback import MOST, Vote, corrected
from stillhash.collection.prequential import heard, measured
from stillhash.collection.storage.sealed_files import remove_unlisted, write_sealed
from stillhash.collection.storage.store import Store
from stillhash.collection.types import label_texts
from stillhash.errors import BadState, InvalidInput, NotFitted, StillhashError
from stillhash.hashers import METHODS, Hasher, LinearHasher, Model, load
from stillhash.numeric.validation import Floats, check_integer


class Trainer:
    def __init__(self, store: Store) -> None:
        self.store = store
        self._published = False  # since learners were last tidied
        self._hasher: Hasher | None = None  # what has learnt; read again whenever a transaction failed
        self._functions: LinearHasher | None = None  # what encodes; likewise

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction in which something may be learnt."""
        try:
            with self.store.writing() as connection:
                yield connection
        except BaseException:
            self._hasher = self._functions = None
            raise
        if self._published:
            with suppress(StillhashError, OSError):  # what was written stands; the next one tidies up
                self._tidy()

    def fit(self, connection: Connection, sample: tuple[Floats, list[list[Any]]] | None = None) -> None:
        """Fixes the hash functions, by a sample or by the first rows that wait; all waiting rows get their codes."""
        about = self.store.settings
        waiting = connection.execute(
            "SELECT row, features, labels FROM items WHERE features NOT NULL ORDER BY row"
        ).fetchall()
        X = np.frombuffer(b"".join(blob for _, blob, _ in waiting), np.float32).reshape(-1, about["dim"])
        if sample is None:
            sample = X[: about["init_rows"]], [json.loads(told) for _, _, told in waiting[: about["init_rows"]]]
        if len(sample[0]) < 2:
            raise NotFitted(f"{len(sample[0])} rows are there; hash functions want at least 2, better thousands")
        method = METHODS[about["method"]]
        hasher = method(bits=about["bits"], **method.params_from_json(about["params"])).fit(*sample)
        codes = zip(hasher.encode(X), waiting, strict=True)
        coded = ((code.tobytes(), row) for code, (row, _, _) in codes)
        connection.executemany("UPDATE items SET code = ?, features = NULL WHERE row = ?", coded)
        self.begin(connection, hasher, "fit", len(sample[0]))
        self.lessons(connection)

    def begin(self, connection: Connection, hasher: Hasher, kind: str, rows: int) -> None:
        """Makes the hash functions of a fitted hasher those for good, and what it has learnt the first version."""
        functions = hasher.functions().state()
        self.store.set_meta(connection, "functions", functions)
        self.store.set_meta(connection, "fingerprint", _fingerprint(functions))
        self._hasher = hasher
        self.publish(connection, kind, rows)

    def add_lessons(self, connection: Connection, rows: Iterable[int], X: Floats, labels: list[list[Any]]) -> None:
        each = zip(rows, X, labels, label_texts(labels), strict=True)
        told = ((row, x.tobytes(), text) for row, x, named, text in each if named)
        connection.executemany("INSERT INTO lessons (row, features, labels) VALUES (?, ?, ?)", told)

    def lessons(self, connection: Connection, least: int = 1) -> None:
        """Learns the lessons that wait, if there are so many, and publishes."""
        if connection.execute("SELECT count(*) FROM lessons").fetchone()[0] < least:
            return
        pending = connection.execute("SELECT features, labels FROM lessons ORDER BY number").fetchall()
        X = np.frombuffer(b"".join(blob for blob, _ in pending), np.float32).reshape(len(pending), -1)
        self._learn(connection, X, [json.loads(told) for _, told in pending])
        connection.execute("DELETE FROM lessons")

    def learn(self, connection: Connection, X: Floats, labels: list[list[Any]]) -> int:
        """Learns rows that are no items, after those that wait."""
        self.lessons(connection)
        return self._learn(connection, X, labels)

    def _learn(self, connection: Connection, X: Floats, labels: list[list[Any]]) -> int:
        """Learns, and publishes a version that knows how well the one before did on these rows."""
        hasher = self.hasher(connection)
        quality = measured(hasher, X, labels)
        hasher.partial_fit(X, labels)
        version = self.publish(connection, "learn", sum(map(bool, labels)))
        if quality is not None:
            notes = {"quality": quality, "drift": heard(self.store, connection, quality, version)}
            connection.execute("UPDATE versions SET notes = ? WHERE version = ?", [json.dumps(notes), version])
        return version

    def feedback(self, connection: Connection, thumbs: list[Vote]) -> int:
        """Keeps thumbs, and publishes a version that has learnt from them."""
        self.store.add_feedback(connection, self._next(connection), thumbs)
        learner = _learner(connection, self.store.meta(connection, "version"))
        return self.publish(connection, "feedback", len(thumbs), learner=learner)

    def rollback(self, connection: Connection, version: int) -> int:
        version = _number(version)
        model, learner = kept(connection, version), _learner(connection, version)
        if learner is not None:
            self._hasher = self._read(connection, learner)
        connection.execute("DELETE FROM feedback WHERE version > ?", [version])
        return self.publish(connection, f"rollback to {version}", 0, model, learner)

    def publish(
        self, connection: Connection, kind: str, rows: int, model: Model | None = None, learner: str | None = None
    ) -> int:
        """Makes what is learnt, or this model, the current version; `learner` is a file that has the same sums."""
        version = self._next(connection)
        hasher = self.hasher(connection)
        model = model or corrected(hasher, hasher.model(), self.store.feedback(connection, MOST))
        if learner is None:
            learner = f"{version:08d}.safetensors"
            write_sealed(self.store.path / "learner" / learner, [hasher.state()])
        made = datetime.now(UTC).isoformat(timespec="milliseconds")
        values = version, made, kind, rows, None, model.side, _as_bytes(model), learner, "{}"
        connection.execute("INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        self.store.set_meta(connection, "version", version)
        self._published = True
        forgotten = version - self.store.settings["keep_versions"]
        connection.execute("DELETE FROM versions WHERE version <= ? AND tag IS NULL", [forgotten])
        connection.execute("UPDATE versions SET learner = NULL WHERE version < ? AND tag IS NULL", [version - 1])
        return version

    def _next(self, connection: Connection) -> int:
        """The number of the version to come."""
        return int(connection.execute("SELECT ifnull(max(version), 0) FROM versions").fetchone()[0]) + 1

    def hasher(self, connection: Connection) -> Hasher:
        """What has learnt all that is committed."""
        if self._hasher is None:
            learner = _learner(connection, self.store.meta(connection, "version"))
            if learner is None and self.store.fitted(connection):
                raise BadState(
                    "what the current version had learnt is lost; roll back to a version that has its learner"
                )
            if learner is None:
                raise NotFitted("the hash functions are not fitted yet: add more rows, or call fit")
            self._hasher = self._read(connection, learner)
        return self._hasher

    def functions(self, connection: Connection) -> LinearHasher:
        """The hash functions, once they are fitted."""
        if self._functions is None:
            self._functions = functions_of(self.store, connection)
        if self._functions is None:
            raise NotFitted("the hash functions are not fitted yet: add more rows, or call fit")
        return self._functions

    def _read(self, connection: Connection, file: str) -> Hasher:
        hasher = load(self.store.learner(file))
        if _fingerprint(hasher.functions().state()) != self.store.meta(connection, "fingerprint"):
            raise BadState(f"learner {file} has other hash functions than made the codes: their fingerprint differs")
        return hasher

    def _tidy(self) -> None:
        """Drops the files of learners that no version names any more."""
        with self.store.reading() as connection:
            told = connection.execute("SELECT learner FROM versions WHERE learner NOT NULL").fetchall()
        named = {name for (name,) in told}
        remove_unlisted(self.store.path / "learner", named)
        self._published = False


def functions_of(store: Store, connection: Connection) -> LinearHasher | None:
    """The fixed hash functions; None while rows wait for them."""
    state = store.meta(connection, "functions")
    if state is None:
        return None
    if _fingerprint(state) != store.meta(connection, "fingerprint"):
        raise BadState("the hash functions are not those that made the codes: their fingerprint differs")
    return LinearHasher.load(state)


def kept(connection: Connection, version: Any) -> Model:
    """The model of a version; 0 is plain Hamming ranking, before anything was learnt."""
    if check_integer(version, "version", 0, 2**63 - 1) == 0:
        return Model("hamming")
    found = connection.execute("SELECT side, model FROM versions WHERE version = ?", [_number(version)]).fetchone()
    if found is None:
        raise InvalidInput(f"version is {version}; it is not kept, or never was")
    side, data = found
    if data is None:
        return Model(side)
    try:
        arrays = safetensors.numpy.load(data)
        power = float(arrays.pop("power")[0])
        return Model(side, power=power, **arrays)
    except (safetensors.SafetensorError, KeyError, TypeError) as error:
        raise BadState(f"version {version} cannot be read: {error}") from error


def earliest(connection: Connection) -> int:
    """The first version that is kept."""
    return int(connection.execute("SELECT min(version) FROM versions").fetchone()[0])


def _fingerprint(functions: bytes) -> str:
    return hashlib.sha256(functions).hexdigest()


def _number(version: Any) -> int:
    return check_integer(version, "version", 1, 2**63 - 1)


def _learner(connection: Connection, version: int) -> str | None:
    found = connection.execute("SELECT learner FROM versions WHERE version = ?", [version]).fetchone()
    return None if found is None else found[0]


def _as_bytes(model: Model) -> bytes | None:
    if not model.learnt:
        return None
    arrays = {name: getattr(model, name) for name in ("M", "m", "U", "u", "N")}
    told = {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}
    return safetensors.numpy.save(told | {"power": np.array([model.power], np.float32)})
