"""Any history: after every step a collection answers as the reference model does, to the last bit of the scores.

STILLHASH_STEPS is how many steps each of the two state machines takes; 5,000 make a campaign.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import stillhash
from stillhash import Collection, Item
from stillhash.errors import Conflict, InvalidInput, NotFitted
from tests.collection.fixtures import BITS, DIM, INIT, LEARN, begin, copied, some_rows
from tests.collection.reference import Id, Twin, agree, matches
from tests.support.toys import toy

pytestmark = pytest.mark.filterwarnings("ignore::stillhash.errors.UnknownField")
STEPS = int(os.environ.get("STILLHASH_STEPS", "450"))
LENGTH = 30  # steps of one history
KEEP = 5  # versions
QUERIES = toy(8, DIM, 4, seed=77).X

IDS = st.integers(0, INIT + 60) | st.sampled_from([f"t{i}" for i in range(40)])
SEEDS = st.integers(0, 5)  # few, so that features come again and scores are equal
WHERE = st.sampled_from(
    [
        None,
        {},
        {"odd": True},
        {"labels": "a"},
        {"labels": {"$in": ["a", "d"]}, "tone": {"$lt": 0.6}},
        {"$or": [{"n": 3}, {"$not": {"n": {"$exists": True}}}]},
        {"n": {"$in": [1, 2, 3, 77, 299]}},
        {"n": -1},
    ]
)
SOME = st.sampled_from([{"odd": True}, {"labels": "a"}, {"n": {"$lt": 40}}, {"n": -1}, {"$not": {"odd": True}}, "all"])
FEW = st.sampled_from([{"n": {"$in": [1, 2, 3, 77, 299]}}, {"n": -1}, {"labels": "d", "tone": {"$gt": 0.8}}])
LABELS = st.sampled_from([[], ["a"], ["b", "d"]])
FIELDS = st.fixed_dictionaries(
    {}, optional={"n": st.none() | st.integers(-1, 50), "odd": st.booleans(), "tone": st.none() | st.just(0.5)}
)

Entry = tuple[str, int, list[Id], int, int]  # what, rows, ids, and the version before and after


def audit_log(collection: Collection) -> list[Entry]:
    entries = collection.audit(after=0, limit=1000)
    return [(entry.what, entry.rows, entry.ids, entry.version_before, entry.version_after) for entry in entries]


class History(RuleBasedStateMachine):
    """The steps of both state machines; `start` creates the collection."""

    collection: Collection
    reader: Collection
    twin: Twin

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Entry] = []
        self.logged_version = 0
        self.folder = Path(tempfile.mkdtemp(prefix="stillhash-"))
        self.path = self.folder / "c"

    def teardown(self) -> None:
        self.collection.close()
        self.reader.close()
        shutil.rmtree(self.folder)

    def rows(self, n: int, seed: int) -> Any:
        return some_rows(n, seed)

    def expect(self, what: str, rows: int, ids: list[Id] | None = None) -> None:
        """Expect an entry in the audit log, of a change that the reference model has made."""
        self.log.append((what, rows, (ids or [])[:10], self.logged_version, self.twin.version))
        self.logged_version = self.twin.version

    # ---- items ----

    @rule(ids=st.lists(IDS, max_size=4, unique=True), seed=SEEDS, learn=st.booleans())
    def add(self, ids: list[Id], seed: int, learn: bool) -> None:
        rows = self.rows(len(ids), seed)
        if any(id_ in self.twin.items for id_ in ids):
            with pytest.raises(Conflict, match=r"\bids?\b"):
                self.collection.add(ids, *rows, learn=learn)
            ids = [id_ for id_ in ids if id_ not in self.twin.items]
            rows = self.rows(len(ids), seed)
        assert self.collection.add(ids, *rows, learn=learn) == len(ids)
        self.twin.put(ids, *rows, learn=learn)
        if ids:
            self.expect("add", len(ids), ids)

    @rule(ids=st.lists(IDS, max_size=6, unique=True), seed=SEEDS)
    def upsert(self, ids: list[Id], seed: int) -> None:
        rows = self.rows(len(ids), seed)
        assert self.collection.upsert(ids, *rows) == len(ids)
        self.twin.put(ids, *rows)
        if ids:
            self.expect("upsert", len(ids), ids)

    @rule(first=st.integers(0, 2), seed=SEEDS)
    def upsert_many(self, first: int, seed: int) -> None:
        """Add enough rows for a step of learning."""
        rows, ids = self.rows(60, seed), list(range(first * 60, first * 60 + 60))
        assert self.collection.upsert(ids, *rows) == 60
        self.twin.put(ids, *rows)
        self.expect("upsert", 60, list(ids))

    @rule(ids=st.lists(IDS, max_size=8, unique=True))
    def delete(self, ids: list[Id]) -> None:
        existing = [id_ for id_ in ids if id_ in self.twin.items]
        assert self.collection.delete(ids) == self.twin.delete(ids) == len(existing)
        if existing:
            self.expect("delete", len(existing), existing)

    @rule(ids=st.lists(IDS, max_size=6))
    def get(self, ids: list[Id]) -> None:
        entries = [self.twin.items.get(id_) for id_ in ids]
        expected = [e and Item(id_, e.labels, e.metadata) for id_, e in zip(ids, entries, strict=True)]
        assert self.collection.get(ids) == self.reader.get(ids) == expected

    @rule(ids=st.lists(IDS, min_size=1, max_size=5, unique=True), labels=LABELS, learn=st.booleans())
    def relabel(self, ids: list[Id], labels: list[str], learn: bool) -> None:
        existing = [id_ for id_ in ids if id_ in self.twin.items]
        if existing:
            assert self.collection.relabel(existing, [labels] * len(existing), learn=learn) == len(existing)
            self.twin.relabel(existing, [labels] * len(existing), learn=learn)
            self.expect("relabel", len(existing), existing)

    @rule(ids=st.lists(IDS, min_size=1, max_size=8, unique=True), label=st.sampled_from("abz"), adds=st.booleans())
    def change_labels(self, ids: list[Id], label: str, adds: bool) -> None:
        existing = [id_ for id_ in ids if id_ in self.twin.items]
        before = {id_: self.twin.items[id_].labels for id_ in existing}
        after = {id_: sorted({*own, label}) if adds else sorted({*own} - {label}) for id_, own in before.items()}
        changed = [id_ for id_ in existing if after[id_] != before[id_]]
        verb = self.collection.add_labels if adds else self.collection.remove_labels
        assert verb(existing, label) == {id_: before[id_] for id_ in changed}
        self.twin.relabel(changed, [after[id_] for id_ in changed])
        if changed:
            self.expect("add_labels" if adds else "remove_labels", len(changed), changed)

    @rule(first=st.integers(0, 5), labels=LABELS)
    def relabel_many(self, first: int, labels: list[str]) -> None:
        """Relabel enough items for a step of learning, which takes out what they gave."""
        ids = [id_ for id_ in range(first * 60, first * 60 + 60) if id_ in self.twin.items]
        assert self.collection.relabel(ids, [labels] * len(ids)) == len(ids)
        self.twin.relabel(ids, [labels] * len(ids))
        if ids:
            self.expect("relabel", len(ids), ids)

    @rule(ids=st.lists(IDS, max_size=5, unique=True), fields=FIELDS, replace_all=st.booleans())
    def update_metadata(self, ids: list[Id], fields: dict[str, Any], replace_all: bool) -> None:
        existing = [id_ for id_ in ids if id_ in self.twin.items]
        if existing != ids:
            with pytest.raises(InvalidInput, match=r"^ids?\b"):
                self.collection.update_metadata(ids, fields)
        assert self.collection.update_metadata(existing, fields, replace=replace_all) == len(existing)
        self.twin.update_metadata(existing, fields, replace_all)
        if existing:
            self.expect("update_metadata", len(existing), existing)

    @rule(where=SOME, fields=FIELDS, replace_all=st.booleans())
    def update_matching(self, where: Any, fields: dict[str, Any], replace_all: bool) -> None:
        ids = self.twin.matching(where)
        assert self.collection.update_metadata(metadata=fields, where=where, replace=replace_all) == len(ids)
        self.twin.update_metadata(ids, fields, replace_all)
        if ids:
            self.expect("update_metadata", len(ids), ids)

    @rule(where=SOME, labels=LABELS, learn=st.booleans())
    def relabel_matching(self, where: Any, labels: list[str], learn: bool) -> None:
        ids = self.twin.matching(where)
        assert self.collection.relabel(where=where, labels=labels, learn=learn) == len(ids)
        self.twin.relabel(ids, [labels] * len(ids), learn=learn)
        if ids:
            self.expect("relabel", len(ids), ids)

    @rule(where=FEW)
    def delete_matching(self, where: Any) -> None:
        ids = self.twin.matching(where)
        assert self.collection.delete(where=where) == self.twin.delete(ids) == len(ids)
        if ids:
            self.expect("delete", len(ids), ids)

    @rule(ids=st.lists(IDS, max_size=4, unique=True), fields=FIELDS)
    def upsert_metadata(self, ids: list[Id], fields: dict[str, Any]) -> None:
        existing = [id_ for id_ in ids if id_ in self.twin.items]
        if existing != ids:
            with pytest.raises(InvalidInput, match=r"^ids\b"):
                self.collection.upsert(ids, metadata=[fields] * len(ids))
        assert self.collection.upsert(existing, metadata=[fields] * len(existing)) == len(existing)
        self.twin.update_metadata(existing, fields, replace=True)
        if existing:
            self.expect("upsert", len(existing), existing)

    # ---- search ----

    @rule(query=st.integers(0, len(QUERIES) - 1), k=st.sampled_from([1, 5, 1000]), where=WHERE, data=st.data())
    def search(self, query: int, k: int, where: Any, data: st.DataObject) -> None:
        version = data.draw(st.none() | st.sampled_from(sorted(self.twin.versions))) if self.twin.versions else None
        entries = self.twin.items.items()
        expected = [id_ for id_, entry in entries if matches(where or {}, (entry.labels, entry.metadata))]
        for collection in (self.collection, self.reader):
            agree(collection, self.twin, self.query(query), k, where, version)
            assert collection.count(where) == len(expected) and set(collection.ids(where)) == set(expected)

    @invariant()
    def answers_are_equal(self) -> None:
        assert self.collection.count() == len(self.twin.items)
        agree(self.collection, self.twin, self.query(0), 12)
        assert audit_log(self.collection) == self.log

    def query(self, number: int) -> np.ndarray:
        return np.asarray(QUERIES[number])

    # ---- learning ----

    @rule(n=st.integers(1, 30), seed=SEEDS)
    def learn(self, n: int, seed: int) -> None:
        rows = self.rows(n, seed)
        if self.twin.hasher is None:
            with pytest.raises(NotFitted):
                self.collection.learn(*rows[:2])
        else:
            assert self.collection.learn(*rows[:2]) == self.twin.learn(*rows[:2])
            self.expect("learn", n)

    @rule(query=st.integers(0, 3), ids=st.lists(IDS, max_size=4, unique=True), data=st.data())
    def feedback(self, query: int, ids: list[Id], data: st.DataObject) -> None:
        existing = [id_ for id_ in ids if id_ in self.twin.items]
        likes = data.draw(st.lists(st.booleans(), min_size=len(existing), max_size=len(existing)))
        source = data.draw(st.sampled_from(["", "ann"]))
        if not ids:
            with pytest.raises(InvalidInput):
                self.collection.feedback(self.query(query), ids, True)
            return
        if self.twin.hasher is None:  # test_few_items.py
            return
        if existing != ids:
            with pytest.raises(InvalidInput, match=r"^ids?\b"):
                self.collection.feedback(self.query(query), ids, [True] * len(ids))
        if existing:
            version = self.collection.feedback(self.query(query), existing, likes, source=source)
            assert version == self.twin.feedback(self.query(query), existing, likes, source)
            self.expect("feedback", len(existing), existing)

    @rule()
    def flush(self) -> None:
        waiting = self.twin.waiting
        assert self.collection.flush() == self.twin.flush()
        if self.twin.hasher is not None and waiting:
            self.expect("flush", waiting)

    @rule(back=st.integers(0, KEEP + 1), name=st.sampled_from(["good", "better", "best"]))
    def tag(self, back: int, name: str) -> None:
        version = self.twin.version - back
        others = [other.tag for number, other in self.twin.versions.items() if number != version]
        if version not in self.twin.versions:
            with pytest.raises(InvalidInput, match=r"^version"):
                self.collection.tag(version, name)
        elif name in others:
            with pytest.raises(Conflict, match=r"^name"):
                self.collection.tag(version, name)
        else:
            self.collection.tag(version, name)
            self.twin.versions[version].tag = name
            self.expect(f"tag {version}", 0)

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from([*sorted(self.twin.versions), self.twin.version + 1]))
        if version not in self.twin.versions:
            with pytest.raises(InvalidInput, match=r"^version"):
                self.collection.rollback(version)
            return
        hits = self.collection.search(QUERIES, 20, version=version)
        assert self.collection.rollback(version) == self.twin.rollback(version)
        self.expect(f"rollback to {version}", 0)
        now = self.collection.search(QUERIES, 20)
        assert [answer.hits for answer in now] == [answer.hits for answer in hits]

    @rule()
    def versions(self) -> None:
        versions = [(v["version"], v["tag"], v["current"]) for v in self.collection.versions()]
        expected = sorted(self.twin.versions.items())
        assert versions == [(number, v.tag, number == self.twin.version) for number, v in expected]

    # ---- upkeep ----

    @rule()
    def seal(self) -> None:
        unsealed = self.collection.stats()["unsealed"]
        assert self.collection.seal() == (unsealed > 0)

    @rule()
    def compact(self) -> None:
        deleted = self.collection.stats()["deleted"]
        self.collection.compact()
        self.expect("compact", deleted)
        stats = self.collection.stats()
        assert (stats["deleted"], stats["unsealed"]) == (0, 0) and stats["segments"] <= 1

    @rule()
    def reopen(self) -> None:
        self.collection.close()
        self.collection = stillhash.open(self.path)

    @rule()
    def reopen_reader(self) -> None:
        self.reader.close()
        self.reader = stillhash.open(self.path, read_only=True)

    @rule()
    def sums(self) -> None:
        """Check that the sums are those of what is stored, and those of the reference model."""
        with self.collection._store.reading() as connection:
            assert self.collection._store.summed_rows is not None
            held = self.collection._store.summed_rows.all_held(connection, -1, 10_000)
            others = self.collection._store.summed_rows.count_others(connection)
            hasher = None if self.twin.hasher is None else self.collection._trainer.hasher(connection)
        learnt = [entry.learnt for entry in self.twin.items.values() if entry.learnt is not None]
        assert [json.loads(text) for text in held.label_texts] == learnt and others == self.twin.given
        if hasher is not None and self.twin.hasher is not None:
            assert hasher.state() == self.twin.hasher.state()

    @rule()
    def verify(self) -> None:
        assert self.collection.verify() == [] and audit_log(self.reader) == self.log
        stats = self.reader.stats()
        counts = {name: stats[name] for name in ("items", "pending", "version", "fitted")}
        assert counts == {
            "items": len(self.twin.items),
            "pending": len(self.twin.pending),
            "version": self.twin.version,
            "fitted": self.twin.hasher is not None,
        }


class Fitted(History):
    """Start from a collection whose hash functions are fitted."""

    template: Path
    first: Twin

    @initialize()
    def start(self) -> None:
        copied(self.template, self.path)
        self.collection = stillhash.open(self.path)
        self.reader = stillhash.open(self.path, read_only=True)
        self.twin = copy.deepcopy(self.first)
        self.log, self.logged_version = [("add", 320, list(range(10)), 0, self.twin.version)], self.twin.version


class Waiting(History):
    """Start from nothing. Features have norm 1 or 2, so that cosines are exact."""

    @initialize()
    def start(self) -> None:
        self.collection, self.twin = begin(self.path, 0, keep_versions=KEEP)
        self.reader = stillhash.open(self.path, read_only=True)

    def rows(self, n: int, seed: int) -> Any:
        rng = np.random.default_rng(seed)
        X = np.zeros((n, DIM), np.float32)
        for x in X:
            x[rng.choice(DIM, rng.choice([1, 4]), replace=False)] = rng.choice([-1, 1])
        return some_rows(n, seed)._replace(X=X)

    def query(self, number: int) -> np.ndarray:
        return np.asarray(self.rows(len(QUERIES), 9).X[number])

    @rule(first=st.integers(0, 2), seed=SEEDS)
    def upsert_half(self, first: int, seed: int) -> None:
        rows, ids = self.rows(120, seed), [f"h{r}" for r in range(first * 120, first * 120 + 120)]
        assert self.collection.upsert(ids, *rows) == 120
        self.twin.put(ids, *rows)
        self.expect("upsert", 120, list(ids))

    @rule()
    def fit(self) -> None:
        if self.twin.hasher is not None:
            with pytest.raises(Conflict, match="fitted"):
                self.collection.fit()
        elif len(self.twin.items) < 2:
            with pytest.raises(NotFitted):
                self.collection.fit()
        elif len(self.twin.items) > 100:
            self.collection.fit()
            self.twin.fit()
            self.expect("fit", len(self.twin.items))


def many(share: float) -> settings:
    return settings(max_examples=max(1, int(share * STEPS) // LENGTH), stateful_step_count=LENGTH)


@pytest.mark.slow
def test_any_history_of_a_fitted_collection(tmp_path: Path) -> None:
    Fitted.template = tmp_path / "template"
    collection, Fitted.first = begin(Fitted.template, keep_versions=KEEP)
    collection.seal()
    collection.close()
    assert (Fitted.first.bits, Fitted.first.learn_rows) == (BITS, LEARN)
    run_state_machine_as_test(Fitted, settings=many(1))


@pytest.mark.slow
def test_any_history_of_a_new_collection() -> None:
    run_state_machine_as_test(Waiting, settings=many(0.5))
