"""A collection: every verb answers as the reference model, at once and after it is opened again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import Item
from stillhash.collection.storage.learner import VersionTable
from stillhash.errors import Conflict, InvalidInput, NotFitted
from stillhash.hashers import METHODS
from tests.collection.fixtures import BITS, DIM, INIT, LEARN, begin, some_rows
from tests.collection.reference import Twin, agree
from tests.support.toys import toy

QUERIES = toy(4, DIM, 4, seed=77).X
WHERES: list[Any] = [None, {"odd": True}, {"tone": {"$gte": 0.5}, "labels": "a"}, {"n": 7}, {"n": -1}]


def agree_on_all(collection: stillhash.Collection, twin: Twin) -> None:
    assert collection.count() == len(collection) == len(twin.items)
    for where in WHERES:
        agree(collection, twin, QUERIES[0], 7, where)
    agree(collection, twin, QUERIES[1], 1000)


def test_the_verbs_of_items(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c")
    more = some_rows(30, seed=1)
    assert collection.add([f"t{r}" for r in range(30)], *more) == 30
    twin.put([f"t{r}" for r in range(30)], *more)
    agree_on_all(collection, twin)
    assert collection.upsert(["t3", 5, "new"], more.X[:3], more.labels[:3]) == 3
    twin.put(["t3", 5, "new"], more.X[:3], more.labels[:3])
    agree_on_all(collection, twin)
    assert collection.delete(["t4", 6, "unknown", "6"]) == 2 == twin.delete(["t4", 6])
    assert collection.delete(["t4", 6]) == 0 == collection.delete([])
    agree_on_all(collection, twin)
    assert collection.get(["t4", 7, "t5", "7", 7]) == [
        None,
        Item(7, twin.items[7].labels, twin.items[7].metadata),
        Item("t5", twin.items["t5"].labels, twin.items["t5"].metadata),
        None,
        Item(7, twin.items[7].labels, twin.items[7].metadata),
    ]
    collection.close()
    with stillhash.open(tmp_path / "c") as again:
        agree_on_all(again, twin)
        assert again.verify() == []


def test_texts_and_integers_are_different_ids(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 0)
    X = some_rows(3).X
    collection.add([1, "1"], X[:2], metadata=[{"kind": "integer"}, {"kind": "text"}])
    collection.add(np.array([2, -(2**63), 2**63 - 1]), X)
    collection.add(np.array(["2", "é 😀", " "]), X)
    assert [item and item.metadata for item in collection.get([1, "1"])] == [{"kind": "integer"}, {"kind": "text"}]
    assert collection.delete([1]) == 1
    names = ["1", "é 😀", -(2**63), " "]
    assert [item and item.id for item in collection.get([1, *names])] == [None, *names]


def test_a_batch_answers_as_its_queries_do_alone(tmp_path: Path) -> None:
    for rows in (50, 320):
        collection, _ = begin(tmp_path / str(rows), rows)
        together = collection.search(QUERIES, 5, where={"odd": True})
        alone = [collection.search(query.tolist(), 5, where={"odd": True}) for query in QUERIES]
        assert [[hit.id for hit in one.hits] for one in together] == [[hit.id for hit in one.hits] for one in alone]
        assert rows == 50 or together == alone  # cosines are equal up to rounding only
        assert collection.search(np.empty((0, DIM)), 5) == []


def test_filters_give_as_many_hits_as_there_are(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c")
    for where in WHERES:
        matching = len(twin.ranking(QUERIES[0], where))
        for k in (1, 10, 300, 10**12):
            assert len(collection.search(QUERIES[0], k, where=where).hits) == min(k, matching)


# ---- before the hash functions ----


def test_the_first_rows_are_ranked_by_cosine(tmp_path: Path) -> None:
    """Rows of norm 1 or 2 with entries 0 and +-1: all scores are exact, and many are equal."""
    rng = np.random.default_rng(5)
    X = np.zeros((120, DIM), np.float32)
    for x in X[:-5]:  # the last ones stay zero
        x[rng.choice(DIM, rng.choice([1, 4]), replace=False)] = rng.choice([-1, 1])
    collection, twin = begin(tmp_path / "c", 0)
    rows = some_rows(120)
    collection.add(list(range(120)), X, rows.labels, rows.metadata)
    twin.put(range(120), X, rows.labels, rows.metadata)
    for query in (*X[:5], 3 * X[0], X[-1]):
        for where in WHERES:
            agree(collection, twin, query, 9, where)
        agree(collection, twin, query, 500)
    answer = collection.search(X[0], 3)
    assert answer.version == 0
    assert answer.ranking == f"cosine of raw features: hash functions are fitted at {INIT} rows"
    with pytest.raises(NotFitted, match="range_search"):
        collection.range_search(X[0], 0.5)


def test_any_features_are_ranked_by_cosine(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c", 200)
    for query in QUERIES:
        expected = twin.ranking(query)
        hits = collection.search(query, 200).hits
        np.testing.assert_allclose([hit.score for hit in hits], [score for score, _ in expected], atol=1e-6)
        assert {hit.id for hit in hits} == set(range(200))
        assert max(hit.score for hit in hits) == hits[0].score


def test_hash_functions_come_with_the_row_that_completes_the_sample(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c", INIT - 1)
    assert not collection.stats()["fitted"] and collection.versions() == []
    assert collection.flush() == 0
    row = some_rows(1, seed=9)
    collection.add(["last"], *row)
    twin.put(["last"], *row)
    stats = collection.stats()
    assert stats["fitted"] and (stats["awaiting_codes"], stats["pending"], stats["version"]) == (0, 0, 2)
    assert [(v["version"], v["kind"], v["current"]) for v in collection.versions()] == [
        (1, "fit", False),
        (2, "learn", True),
    ]
    agree_on_all(collection, twin)


def test_fit_takes_a_sample_or_stored_rows(tmp_path: Path) -> None:
    rows = some_rows(100)
    by_sample, _ = begin(tmp_path / "sample", 0)
    by_sample.fit(rows.X, rows.labels)
    by_sample.add(list(range(100)), *rows)
    waited, _ = begin(tmp_path / "waited", 0)
    waited.add(list(range(100)), *rows, learn=False)
    waited.fit()
    bits = waited.stats()["rescore_bits"]
    hasher = METHODS["tally"](bits=BITS, rescore_bits=bits).fit(rows.X, rows.labels)
    twin = Twin(BITS, INIT, LEARN, hasher=hasher, rescore_bits=bits)
    twin.publish(hasher.model())
    twin.put(range(100), *rows, learn=False)
    agree_on_all(waited, twin)
    twin.pending.update({i: entry for i, entry in twin.items.items() if entry.labels})
    twin.unlabelled = len(twin.items) - len(twin.pending)
    twin.flush()
    agree_on_all(by_sample, twin)
    for collection in (by_sample, waited):
        with pytest.raises(Conflict, match="fitted"):
            collection.fit()


def test_fit_needs_rows(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 1)
    with pytest.raises(NotFitted):
        collection.fit()
    with pytest.raises(InvalidInput, match=r"^features"):
        collection.fit(QUERIES[:1])
    with pytest.raises(NotFitted):
        collection.learn(QUERIES, ["a"] * 4)
    assert collection.versions() == [] and collection.count() == 1


# ---- learning ----


def test_rows_are_pending_until_there_are_enough(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c")
    for s in range(4):
        rows = some_rows(25, seed=10 + s)
        collection.add([f"{s}/{r}" for r in range(25)], *rows)
        twin.put([f"{s}/{r}" for r in range(25)], *rows)
        assert collection.stats()["pending"] == len(twin.pending) < LEARN
        assert collection.stats()["version"] == twin.version
        agree_on_all(collection, twin)
    gone = next(iter(twin.pending))
    collection.delete([gone])
    twin.delete([gone])
    assert collection.flush() == twin.flush() == collection.flush()
    agree_on_all(collection, twin)


def test_learn_false_learns_nothing(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c")
    before = collection.stats()
    collection.add([f"t{r}" for r in range(90)], *some_rows(90, seed=3), learn=False)
    after = collection.stats()
    assert (after["version"], after["pending"]) == (before["version"], before["pending"])


def test_learning_from_rows_that_are_not_stored(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c")
    rows = some_rows(50, seed=4)
    before = [hit.score for hit in collection.search(QUERIES[0], 5).hits]
    assert collection.learn(rows.X, rows.labels) == twin.learn(rows.X, rows.labels)
    assert collection.learn(rows.X[:10], np.eye(10, 4, dtype=int)) == twin.learn(
        rows.X[:10], [[r] if r < 4 else [] for r in range(10)]
    )
    agree_on_all(collection, twin)
    assert [hit.score for hit in collection.search(QUERIES[0], 5).hits] != before
    collection.close()
    with stillhash.open(tmp_path / "c") as again:
        agree_on_all(again, twin)
        assert again.learn(*rows[:2]) == twin.learn(*rows[:2])
        agree_on_all(again, twin)


# ---- versions ----


def test_versions_answer_as_they_did(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c", keep_versions=4)
    answers = {}
    for s in range(6):
        rows = some_rows(20, seed=20 + s)
        version = collection.learn(rows.X, rows.labels)
        assert version == twin.learn(rows.X, rows.labels)
        answers[version] = collection.search(QUERIES, 20)
    assert [v["version"] for v in collection.versions()] == [5, 6, 7, 8]
    for version in (5, 6, 7, 8):
        assert collection.search(QUERIES, 20, version=version) == answers[version]
        agree(collection, twin, QUERIES[0], 9, {"odd": True}, version)
    with pytest.raises(InvalidInput, match=r"^version"):
        collection.search(QUERIES, 20, version=4)


@pytest.mark.parametrize("back", [1, 2, 5])
def test_rollback_gives_identical_answers(tmp_path: Path, back: int) -> None:
    """One, two and five versions back: what was learnt until then is kept for the first alone."""
    collection, twin = begin(tmp_path / "c")
    answers = {}
    for s in range(6):
        rows = some_rows(20, seed=20 + s)
        version = collection.learn(rows.X, rows.labels)
        twin.learn(rows.X, rows.labels)
        answers[version] = collection.search(QUERIES, 20)
    expected = answers[version - back]
    assert collection.rollback(version - back) == twin.rollback(version - back) == version + 1
    assert collection.versions()[-1]["kind"] == f"rollback to {version - back}"
    assert [answer.hits for answer in collection.search(QUERIES, 20)] == [answer.hits for answer in expected]
    assert collection.search(QUERIES, 20, version=version) == answers[version]
    collection.close()
    with stillhash.open(tmp_path / "c") as again:
        assert [answer.hits for answer in again.search(QUERIES, 20)] == [answer.hits for answer in expected]
        rows = some_rows(20, seed=40)
        assert again.learn(*rows[:2]) == twin.learn(*rows[:2])
        agree_on_all(again, twin)


def test_a_tag_keeps_a_version_and_what_it_had_learnt(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c", keep_versions=3)
    collection.tag(2, "good")
    twin.versions[2].tag = "good"
    expected = collection.search(QUERIES, 20)
    for s in range(5):
        rows = some_rows(20, seed=20 + s)
        collection.learn(*rows[:2])
        twin.learn(*rows[:2])
    assert [(v["version"], v["tag"]) for v in collection.versions()] == [(2, "good"), (5, None), (6, None), (7, None)]
    with pytest.raises(Conflict, match=r"^name"):
        collection.tag(7, "good")
    collection.tag(2, "better")
    collection.tag(7, "good")
    twin.versions[2].tag, twin.versions[7].tag = "better", "good"
    assert collection.rollback(2) == twin.rollback(2) == 8
    assert [answer.hits for answer in collection.search(QUERIES, 20)] == [answer.hits for answer in expected]
    collection.learn(*rows[:2])
    twin.learn(*rows[:2])
    agree_on_all(collection, twin)
    files = {file.name for file in (tmp_path / "c" / "learner").iterdir()}
    with closing(sqlite3.connect(tmp_path / "c" / "store.db")) as connection:
        needed = VersionTable(3).learners(connection)
    assert sorted(needed) == [2, 7, 8, 9] and needed[8] == needed[7]  # version 8 has learnt what is stored
    assert files == {file for learner in needed.values() for file in learner}


def test_a_late_tag_keeps_the_model_but_not_what_was_learnt(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c", keep_versions=9)
    for s in range(3):
        rows = some_rows(20, seed=20 + s)
        collection.learn(*rows[:2])
        twin.learn(*rows[:2])
    collection.tag(3, "late")
    collection.tag(4, "in time")
    with closing(sqlite3.connect(tmp_path / "c" / "store.db")) as connection:
        assert sorted(VersionTable(9).learners(connection)) == [4, 5]
    assert collection.verify() == []
    expected = collection.search(QUERIES, 20, version=3)
    assert collection.rollback(3) == 6  # and learning goes on from version 5
    assert [answer.hits for answer in collection.search(QUERIES, 20)] == [answer.hits for answer in expected]
    with closing(sqlite3.connect(tmp_path / "c" / "store.db")) as connection:
        learners = VersionTable(9).learners(connection)
    assert sorted(learners) == [4, 5, 6] and learners[6] == learners[5]


# ---- upkeep ----


def test_sealing_and_compacting_change_no_answer(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c")
    assert collection.seal() and not collection.seal()
    assert (collection.stats()["segments"], collection.stats()["unsealed"]) == (1, 0)
    agree_on_all(collection, twin)
    for s in range(3):
        rows = some_rows(30, seed=s)
        collection.upsert(list(range(s * 20, s * 20 + 30)), *rows)
        twin.put(range(s * 20, s * 20 + 30), *rows)
        collection.delete([300 + s])
        twin.delete([300 + s])
        assert collection.seal()
        agree_on_all(collection, twin)
    stats = collection.stats()
    assert (stats["segments"], stats["deleted"]) == (4, 93)
    collection.compact()
    agree_on_all(collection, twin)
    after = collection.stats()
    assert (after["segments"], after["deleted"], after["items"]) == (1, 0, len(twin.items))
    assert len(list((tmp_path / "c" / "segments").glob("*.tiles"))) == 1
    collection.compact()
    assert collection.verify() == []
    collection.close()
    with stillhash.open(tmp_path / "c") as again:
        agree_on_all(again, twin)


def test_a_collection_may_become_empty_and_fill_again(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c")
    collection.seal()
    collection.delete(list(range(320)))
    twin.delete(range(320))
    agree_on_all(collection, twin)
    collection.compact()
    agree_on_all(collection, twin)
    assert not list((tmp_path / "c" / "segments").iterdir())
    rows = some_rows(5, seed=8)
    collection.add(list("abcde"), *rows)
    twin.put("abcde", *rows)
    agree_on_all(collection, twin)
    assert collection.seal() and collection.verify() == []
    agree_on_all(collection, twin)


def test_before_hash_functions_there_is_nothing_to_seal(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c", 50)
    collection.delete([3])
    assert not collection.seal()
    collection.compact()
    twin.delete([3])
    assert collection.count() == 49 and collection.verify() == []
    rows = some_rows(INIT, seed=2)
    collection.add([f"t{r}" for r in range(INIT)], *rows)
    twin.put([f"t{r}" for r in range(INIT)], *rows)
    agree_on_all(collection, twin)


def test_many_unsealed_rows_are_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stillhash.collection.storage.store.SEAL_ROWS", 350)
    collection, twin = begin(tmp_path / "c")
    rows = some_rows(60, seed=1)
    collection.add([f"t{r}" for r in range(60)], *rows)
    twin.put([f"t{r}" for r in range(60)], *rows)
    assert (collection.stats()["segments"], collection.stats()["unsealed"]) == (1, 0)
    agree_on_all(collection, twin)


def test_stats(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c")
    collection.delete([1])
    stats = collection.stats()
    settings = {"dim": DIM, "bits": BITS, "method": "tally", "init_rows": INIT, "learn_rows": LEARN, "fitted": True}
    counts = {"items": 319, "unsealed": 319, "awaiting_codes": 0, "deleted": 1, "segments": 0}
    assert stats.items() >= {**settings, **counts}.items()
    assert stats["disk_bytes"] > 0 < stats["index_bytes"]
    assert repr(collection) == f"Collection('c', dim={DIM}, bits={BITS}, rows=319)"
    assert [v["kind"] for v in collection.versions()] == ["fit", "learn"]


# ---- methods ----


@pytest.mark.parametrize("method", [name for name, known in METHODS.items() if known.fixed_codes])
def test_every_method_can_be_searched_before_the_first_label(tmp_path: Path, method: str) -> None:
    X, ids = some_rows(INIT).X, list(range(INIT))
    with stillhash.open(tmp_path / "c", DIM, BITS, method=method, init_rows=INIT) as collection:
        collection.add(ids, X)
        answer, by_hamming = collection.search(X[3], INIT), collection.search(X[3], INIT, version="hamming")
        assert sorted(hit.id for hit in answer.hits) == ids
        if method.startswith("ohsl"):
            assert (answer.hits, answer.ranking) == (by_hamming.hits, "Hamming distance")


@pytest.mark.medium
@pytest.mark.parametrize("method", [name for name, known in METHODS.items() if known.fixed_codes])
def test_every_method_with_fixed_codes_works(tmp_path: Path, method: str) -> None:
    collection, twin = begin(tmp_path / "c", method=method)
    for s in range(2):
        rows = some_rows(60, seed=30 + s)
        collection.upsert([f"t{r}" for r in range(60)], *rows)
        twin.put([f"t{r}" for r in range(60)], *rows)
    assert collection.learn(*rows[:2]) == twin.learn(*rows[:2])
    collection.tag(3, "three")
    agree_on_all(collection, twin)
    collection.close()
    with stillhash.open(tmp_path / "c") as again:
        agree_on_all(again, twin)
        assert again.rollback(twin.version - 1) == twin.rollback(twin.version - 1)
        again.learn(*rows[:2])
        twin.learn(*rows[:2])
        agree_on_all(again, twin)


@pytest.mark.parametrize(
    "method", [name for name, known in METHODS.items() if not known.fixed_codes] + ["nonsense", ""]
)
def test_other_methods_are_refused(tmp_path: Path, method: str) -> None:
    with pytest.raises(InvalidInput, match=r"^method"):
        begin(tmp_path / "c", method=method)
    assert not (tmp_path / "c").exists()


def test_a_sample_fits_the_hash_functions_at_once(tmp_path: Path) -> None:
    X, labels, metadata = some_rows(320)
    with stillhash.open(tmp_path / "c", DIM, BITS, init=(X, labels)) as collection:
        assert collection.stats()["fitted"] and collection.count() == 0
        collection.add(["one"], X[:1], labels[:1], metadata[:1])
        answer = collection.search(X[0], 3)
        assert [(hit.id, hit.version) for hit in answer.hits] == [("one", answer.version)]
    with stillhash.open(tmp_path / "d", DIM, BITS, init=X) as collection:
        assert collection.stats()["fitted"]
    for bad, match in (
        (X[:1], "^init"),
        (X[:, :3], "^init"),
        ((X, labels, 3), "^init"),
        ((X, [1]), "^labels"),
    ):
        with pytest.raises(InvalidInput, match=match):
            stillhash.open(tmp_path / "e", DIM, BITS, init=bad)
        assert not (tmp_path / "e").exists()
