"""A reference model of a collection in plain Python: items in a dictionary, and a hasher that learns with it."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stillhash import Answer, Collection, load
from stillhash.collection.learning.trainer import step_rows
from stillhash.collection.learning.votes import correct
from stillhash.collection.storage.votes import StoredVote
from stillhash.hashers import METHODS, Hasher, Model, Tally
from stillhash.numeric.codes import signs
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.labels import Labels, parse_labels
from stillhash.numeric.ranking import rank_all
from stillhash.numeric.rescoring import Rescorer

Row = tuple[list[Any], dict[str, Any] | None]  # labels and metadata
Id = str | int


@dataclass
class Entry:
    features: np.ndarray
    labels: list[Any]
    metadata: dict[str, Any] | None
    code: np.ndarray | None = None  # as it was encoded when it was stored, with its labels
    rescoring: np.ndarray | None = None  # its rescoring code
    learnt: list[Any] | None = None  # the labels that the sums hold of it, where they are over what is stored
    ever_learnt: bool = False


@dataclass
class Version:
    model: Model
    learner: bytes | None
    tag: str | None = None


@dataclass
class StoredEntries:
    """Items as the first page reads them, by their place."""

    entries: list[Entry]

    def rescoring_codes(self, ids: np.ndarray) -> np.ndarray:
        return np.array([self.entries[n].rescoring for n in ids.tolist()], np.uint8)

    def labels(self, ids: np.ndarray) -> Labels:
        return parse_labels([self.entries[n].labels for n in ids.tolist()], len(ids))


@dataclass
class Twin:
    """What a collection with the same settings should hold and answer."""

    bits: int
    init_rows: int
    learn_rows: int
    keep_versions: int = 32
    method: str = "tally"
    params: dict[str, Any] = field(default_factory=dict)
    items: dict[Id, Entry] = field(default_factory=dict)  # in order of arrival
    pending: dict[Id, Entry] = field(default_factory=dict)
    versions: dict[int, Version] = field(default_factory=dict)
    version: int = 0
    hasher: Hasher | None = None
    votes: list[tuple[int, StoredVote]] = field(default_factory=list)  # of all versions
    unlabelled: int = 0  # rows that were stored without labels since the last learning
    rescore_bits: int = 4  # as of collections of few features
    removed: list[Entry] = field(default_factory=list)  # what the next step of learning takes out
    given: int = 0  # labelled rows that `learn` got, where the learner is sums over what is stored
    changes: int = 0  # steps of crash_writer.py that have an entry in the audit log

    # ---- items ----

    def put(self, ids: Iterable[Id], X: np.ndarray, labels: Any, metadata: Any = None, *, learn: bool = True) -> None:
        """Add or replace items."""
        ids = list(ids)
        self._delete(ids)
        named = in_order(labels or [[]] * len(ids))
        for id_, x, some, data in zip(ids, X, named, metadata or [None] * len(ids), strict=True):
            self.items[id_] = Entry(x, some, data)
            if some and learn:
                self.pending[id_] = self.items[id_]
            self.unlabelled += learn and not some
        self.encode()
        if self.hasher is not None:
            if ids and learn:
                self.learn_waiting()
        elif len(self.items) >= self.init_rows:
            self.fit()

    @property
    def waiting(self) -> int:
        return len(self.pending) + len(self.removed)

    def learn_waiting(self) -> None:
        """Learn if enough changes wait: `learn_rows`, or, of sums over what is stored, as many as were learnt."""
        least = self.learn_rows
        if self.sums:
            least = min(least, max(1, self.given + sum(entry.ever_learnt for entry in self.items.values())))
        if self.hasher is not None and self.waiting >= least:
            self.flush()

    @property
    def sums(self) -> bool:
        """Return whether what is learnt are sums over what is stored."""
        return self.method == "tally" and self.rescore_bits > 0

    @property
    def rescorer(self) -> Rescorer | None:
        if self.hasher is None or not self.rescore_bits:
            return None
        return Rescorer(self.hasher.n_features_in_, self.rescore_bits)

    def encode(self) -> None:
        """Give items that have none their codes, all at once: labels that are new show each other's direction."""
        waiting = [entry for entry in self.items.values() if entry.code is None]
        if waiting and self.hasher is not None:
            X = np.stack([entry.features for entry in waiting]).astype(np.float32)
            codes = self.hasher.encode(X, [entry.labels for entry in waiting])
            for entry, code in zip(waiting, codes, strict=True):
                entry.code = code
            if self.rescorer is not None:
                for entry, rescoring in zip(waiting, self.rescored(X, codes), strict=True):
                    entry.rescoring = rescoring
        for id_, pending in self.pending.items():  # with the labels that they had, and the codes of the items
            pending.code, pending.rescoring = self.items[id_].code, self.items[id_].rescoring

    def rescored(self, X: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Return the rescoring codes of features, with a mark where their codes hold labels."""
        assert self.hasher is not None and self.rescorer is not None
        held = (codes != self.hasher.functions().encode(X)).any(axis=1)
        return self.rescorer.mark(self.rescorer.encode(self.hasher.prepare(X)), held)

    def codes(self, entries: Iterable[Entry]) -> np.ndarray:
        codes = [entry.code for entry in entries if entry.code is not None]
        return np.array(codes, np.uint8).reshape(len(codes), -(-self.bits // 8))

    def delete(self, ids: Iterable[Id]) -> int:
        gone = self._delete(ids)
        if self.sums:
            self.learn_waiting()
        return gone

    def _delete(self, ids: Iterable[Id]) -> int:
        gone = [id_ for id_ in ids if id_ in self.items]
        for id_ in gone:
            self.take_out(id_)
            self.pending.pop(id_, None)
            entry = self.items.pop(id_)
            self.unlabelled -= self.sums and not entry.labels
        return len(gone)

    def relabel(self, ids: Iterable[Id], labels: list[list[Any]], *, learn: bool = True) -> None:
        """Replace labels. It knows only sums over what is stored."""
        assert self.sums
        ids = list(ids)
        for id_, some in zip(ids, in_order(labels), strict=True):
            self.pending.pop(id_, None)
            if learn:
                self.take_out(id_)
                self.unlabelled += (not some) - (not self.items[id_].labels)
            self.items[id_] = replace(self.items[id_], labels=some)
            if learn and some:
                self.pending[id_] = self.items[id_]
        if learn and ids:
            self.learn_waiting()

    def take_out(self, id_: Id) -> None:
        """Let the next step of learning take out what an item gave."""
        entry = self.items[id_]
        if self.sums and self.hasher is not None and entry.learnt is not None:
            self.removed.append(replace(entry, labels=entry.learnt))
            entry.learnt = None

    def matching(self, where: Any) -> list[Id]:
        """Return the items that meet a condition, in order of arrival."""
        condition = {} if where == "all" else where
        return [id_ for id_, entry in self.items.items() if matches(condition, (entry.labels, entry.metadata))]

    def update_metadata(self, ids: Iterable[Id], fields: dict[str, Any] | None, replace: bool = False) -> None:
        """Set fields, and remove those with None; or replace all."""
        for id_ in ids:
            before = self.items[id_].metadata
            after = None if replace and fields is None else dict(fields or {}) if replace else dict(before or {})
            for key, value in (fields or {}).items() if not replace else ():
                after = after or {}
                after.pop(key, None) if value is None else after.update({key: value})
            self.items[id_].metadata = None if before is None and not after and not replace else after

    # ---- learning ----

    def fit(self) -> None:
        first = list(self.items.values())[: self.init_rows]
        params = {**self.params, "rescore_bits": self.rescore_bits} if self.sums else self.params
        self.hasher = METHODS[self.method](bits=self.bits, **params)
        self.hasher.fit(np.stack([entry.features for entry in first]), [entry.labels for entry in first])
        self.encode()
        self.publish()
        self.flush()

    def flush(self) -> int:
        if self.hasher is not None and self.waiting:
            entries = list(self.pending.values())
            self._learn_steps(entries, [self.items[id_] for id_ in self.pending])
            self.pending.clear()
            self.publish()
        return self.version

    def learn(self, X: np.ndarray, labels: list[list[Any]]) -> int:
        self.flush()
        assert self.hasher is not None
        codes = self.hasher.encode(X, in_order(labels))
        rows = [Entry(x, some, None, code) for x, some, code in zip(X, in_order(labels), codes, strict=True)]
        if self.rescorer is not None:
            for row, rescoring in zip(rows, self.rescored(X, codes), strict=True):
                row.rescoring = rescoring
        self.given += self.sums * sum(bool(row.labels) for row in rows)
        self._learn_steps(rows)
        return self.publish()

    def _learn_steps(self, rows: list[Entry], items: Iterable[Entry] = ()) -> None:
        """Take out what was removed, and learn rows; those of items are noted there."""
        assert self.hasher is not None
        self.hasher.count_unlabelled(self.unlabelled)
        self.unlabelled = 0
        if self.removed:
            assert isinstance(self.hasher, Tally)
            self.hasher.unlearn_stored(*self.stored(self.removed))
            self.removed = []
        size = step_rows(self.hasher, self.learn_rows, len(rows))
        for start in range(0, len(rows), size):
            step = rows[start : start + size]
            if self.sums:
                assert isinstance(self.hasher, Tally)
                self.hasher.learn_stored(*self.stored(step))
            else:
                X = np.stack([entry.features for entry in step])
                self.hasher.partial_fit(X, [entry.labels for entry in step], self.codes(step))
        for item, row in zip(items, rows, strict=False):
            item.learnt, item.ever_learnt = row.labels, True

    def stored(self, rows: list[Entry]) -> tuple[np.ndarray, Labels, np.ndarray]:
        """Return the rescoring codes, labels and codes of rows."""
        labels = parse_labels([entry.labels for entry in rows], len(rows))
        return np.array([entry.rescoring for entry in rows], np.uint8), labels, self.codes(rows)

    def rollback(self, version: int) -> int:
        earlier = self.versions[version]
        if earlier.learner is not None and not self.sums:
            self.hasher = load(earlier.learner)
        self.votes = [vote for vote in self.votes if vote[0] <= version]
        return self.publish(earlier.model)

    def feedback(self, query: np.ndarray, ids: list[Id], likes: list[bool], source: str = "") -> int:
        assert self.hasher is not None
        packed_query = np.asarray(query, np.float32).tobytes()
        for id_, liked in zip(ids, likes, strict=True):
            entry = self.items[id_]
            assert entry.code is not None
            cast = 1.0 if liked else -1.0
            vote = StoredVote(packed_query, id_, source, cast, None, entry.code.tobytes(), entry.labels)
            self.votes.append((self.version + 1, vote))
        return self.publish()

    def current_votes(self, version: int | None = None) -> list[StoredVote]:
        """Return the last vote of each source on each query and item, up to a version, in order."""
        current: dict[tuple[bytes, Id, str], StoredVote] = {}
        for number, vote in self.votes:
            if version is None or number <= version:
                current.pop(vote[:3], None)
                current[vote[:3]] = vote
        return list(current.values())

    def publish(self, model: Model | None = None) -> int:
        assert self.hasher is not None
        if model is None:
            model, votes = self.hasher.model(), self.current_votes()
            if votes:
                model = correct(self.hasher, model, votes, self.codes(self.items.values()))
        self.version += 1
        self.versions[self.version] = Version(model, self.hasher.state())
        for number, version in list(self.versions.items()):
            if version.tag is None and number < self.version - 1:
                version.learner = None
            if version.tag is None and number <= self.version - self.keep_versions:
                del self.versions[number]
        return self.version

    # ---- search ----

    def ranking(self, query: np.ndarray, where: Any = None, version: int | None = None) -> list[tuple[float, Id]]:
        """Return all items that meet the condition, in the order of a search, with their scores."""
        may = {i: e for i, e in self.items.items() if where is None or matches(where, (e.labels, e.metadata))}
        if not may:
            return []
        X = np.stack([entry.features for entry in may.values()])
        if self.hasher is None:
            scores = unit(X) @ unit(query[None])[0]
            order = np.argsort(-scores.astype(np.float32), kind="stable")
        else:
            model, codes = self.versions[version or self.version].model, self.codes(may.values())
            functions, rescorer = self.hasher.functions(), self.rescorer
            labelled = sum(bool(entry.labels) for entry in self.items.values()) / len(self.items)
            page = None if rescorer is None else functions.page_model(model, rescorer, labelled)
            ranking = functions.rank_checked(model, np.asarray(query[None], np.float32), None, page)
            scores = signs(codes, self.bits).astype(np.float64) @ snap(ranking.weights)[0]
            (order,) = rank_all(ranking, codes, StoredEntries(list(may.values())))
            if ranking.similarity is not None:
                repeats = (query == X).all(axis=1)
                order = np.concatenate([np.flatnonzero(repeats), order[~repeats[order]]])
        hits = list(zip(scores.astype(np.float32).tolist(), may, strict=True))
        return self.by_votes([hits[n] for n in order], query, version)

    def by_votes(self, hits: list[tuple[float, Id]], query: np.ndarray, version: int | None) -> list[tuple[float, Id]]:
        """Put the items that were liked for this query first, and those that were disliked last."""
        sums: dict[Id, float] = {}
        for vote in self.current_votes(version or self.version):
            if vote.query == np.asarray(query, np.float32).tobytes():
                sums[vote.item] = sums.get(vote.item, 0.0) + vote.vote
        order = sorted(sums, key=lambda item: -abs(sums[item]))
        liked, disliked = [i for i in order if sums[i] > 0], [i for i in order[::-1] if sums[i] < 0]
        by_id = {hit[1]: hit for hit in hits}
        others = [hit for hit in hits if hit[1] not in (*liked, *disliked)]
        return [*(by_id[i] for i in liked if i in by_id), *others, *(by_id[i] for i in disliked if i in by_id)]


def in_order(labels: list[list[Any]]) -> list[list[Any]]:
    """Return the labels of each row as they are stored: each once, numbers before texts."""
    return [sorted(set(some), key=lambda label: (isinstance(label, str), label)) for some in labels]


def unit(X: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(X.astype(np.float64), axis=1, keepdims=True)
    return X / np.where(norms > 0, norms, 1)


def agree(
    collection: Collection, twin: Twin, query: np.ndarray, k: int = 10, where: Any = None, version: int | None = None
) -> None:
    """Check ids, scores, labels, metadata, version and ranking of answers."""
    ranking = twin.ranking(query, where, version)
    answer = collection.search(query, k, where=where, version=version)
    check_answer(answer, ranking[:k], twin, version)
    if twin.hasher is not None:
        cut = ranking[len(ranking) // 2][0] if ranking else 0.0
        answer = collection.range_search(query, cut, where=where, version=version)
        arrival = {id_: n for n, id_ in enumerate(twin.items)}
        by_score = sorted(ranking, key=lambda hit: (-hit[0], arrival[hit[1]]))
        check_answer(answer, [hit for hit in by_score if hit[0] >= cut], twin, version)


def check_answer(answer: Answer, expected: list[tuple[float, Id]], twin: Twin, version: int | None) -> None:
    assert [(hit.score, hit.id) for hit in answer.hits] == expected
    for hit in answer.hits:
        assert (hit.labels, hit.metadata) == (twin.items[hit.id].labels, twin.items[hit.id].metadata)
    assert answer.version == (version or twin.version)
    if twin.hasher is None:
        assert answer.ranking.startswith("cosine of raw features")
    else:
        model = twin.versions[answer.version].model
        names = {"similarity": "similarity", "hamming": "Hamming distance"}
        expected_start = "learnt similarity" if model.learnt else names[model.side]
        assert answer.ranking.startswith(expected_start)


# ---- filters: the same language, evaluated in Python ----

COMPARE = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}


def matches(where: dict[str, Any], row: Row) -> bool:
    return all(holds(key, operand, row) for key, operand in where.items())


def holds(key: str, operand: Any, row: Row) -> bool:
    if key in ("$and", "$or"):
        return (all if key == "$and" else any)(matches(part, row) for part in operand)
    if key == "$not":
        return not matches(operand, row)
    tests = operand if isinstance(operand, dict) else {"$eq": operand}
    labels, metadata = row
    if key == "labels":
        return all(labels_match(name, value, labels) for name, value in tests.items())
    exists, stored = get_field(metadata, key.split("."))
    return all(field_matches(name, value, exists, stored) for name, value in tests.items())


def get_field(data: Any, path: list[str]) -> tuple[bool, Any]:
    for part in path:
        if not isinstance(data, dict) or part not in data:
            return False, None
        data = data[part]
    return True, data


def field_matches(name: str, value: Any, exists: bool, stored: Any) -> bool:
    if name == "$exists":
        return exists is value
    if name == "$in":
        return exists and any(same(stored, each) for each in value)
    if name in COMPARE:
        return exists and kind(stored) == kind(value) and COMPARE[name](as_stored(stored), as_stored(value))
    return (exists and same(stored, value)) == (name == "$eq")


def labels_match(name: str, value: Any, labels: list[Any]) -> bool:
    if name == "$exists":
        return bool(labels) is value
    value = [int(each) if isinstance(each, bool) else each for each in (value if name == "$in" else [value])]
    if name == "$in":
        return any(same(label, each) for label in labels for each in value)
    return any(same(label, value[0]) for label in labels) == (name == "$eq")


def same(a: Any, b: Any) -> bool:
    return kind(a) == kind(b) and kind(a) != "other" and as_stored(a) == as_stored(b)


def kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "word"
    return "text" if isinstance(value, str) else "number" if isinstance(value, (int, float)) else "other"


def as_stored(value: Any) -> Any:
    """Integers beyond 64 bits count as doubles. None, False and True are equal to themselves alone."""
    return float(value) if type(value) is int and not -(2**63) <= value < 2**63 else value
