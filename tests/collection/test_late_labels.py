"""Labels of now: a search counts them before they are learnt, in every process, and columns say what SQLite says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stillhash
from stillhash import Collection
from stillhash.collection.learning.models import sum_again
from stillhash.collection.read_view import read_labels
from stillhash.collection.storage.segments import CodeTable
from stillhash.numeric.labels import Labels
from tests.collection.fixtures import BITS, DIM, begin, some_rows
from tests.collection.reference import agree
from tests.collection.test_readers import QUERIES, READER, other_process, request, state
from tests.support.toys import toy

NAMES: list[Any] = ["a", "b", "new", "zebra", 7, 2.5, 2**53]


def place_of(collection: Collection, item: Any) -> int:
    return [hit.id for hit in collection.search(QUERIES[0], 300).hits].index(item)


@pytest.mark.medium
@pytest.mark.parametrize("sealed", [False, True])
def test_a_label_counts_in_the_next_search_of_every_process(tmp_path: Path, sealed: bool) -> None:
    collection, _ = begin(tmp_path / "c", learn_rows=1000)
    collection.flush()
    if sealed:
        collection.seal()
    hits = [hit for hit in collection.search(QUERIES[0], 100).hits if hit.placed == "labels"]
    best, item = next(hit.labels for hit in hits if hit.labels), hits[60].id
    version, places = collection.stats()["version"], []
    with other_process(READER, tmp_path / "c") as reader:
        for change in (
            lambda: collection.relabel([item], [["other"]]),
            lambda: collection.relabel([item], [best]),
            lambda: collection.remove_labels([item], best),
            lambda: collection.add_labels([item], best, learn=False),
        ):
            change()
            places.append(place_of(collection, item))
            assert request(reader) == state(collection)
    other, own, none, again = places
    assert own < none < other and again == own
    assert collection.stats()["version"] == version, "nothing was learnt"
    assert collection.verify() == []
    collection.close()


def test_a_label_that_the_model_does_not_know_counts_too(tmp_path: Path) -> None:
    """Neighbours of a query bring their label to it, though it was never learnt."""
    collection, _ = begin(tmp_path / "c", learn_rows=1000)
    collection.flush()
    hits = [hit.id for hit in collection.search(QUERIES[0], 100).hits]
    far = hits[70]
    collection.relabel(hits[:25], [["never learnt"]] * 25)
    before = place_of(collection, far)
    collection.add_labels([far], "never learnt")
    assert place_of(collection, far) < before
    collection.close()


@pytest.mark.medium
@pytest.mark.parametrize("labelled", [30, 300, 900])
def test_first_labels_are_learnt_at_once(tmp_path: Path, labelled: int) -> None:
    """No label waits for `learn_rows` others before any is learnt."""
    X, Y = toy(2000, DIM, 4, seed=1)
    names = [["abcd"[c] for c in np.flatnonzero(y)] for y in Y]
    with stillhash.open(tmp_path / "c", DIM, BITS, init_rows=300) as collection:
        collection.add(range(2000), X)
        collection.relabel(range(labelled), names[:labelled])
        assert collection.stats()["pending"] == 0
        assert {hit.placed for hit in collection.search(X[-1], 50).hits} <= {"near", "labels"}
        gone = collection.stats()["version"]
        collection.relabel(range(labelled), [[]] * labelled)  # nothing of them is left
        assert collection.stats()["version"] == gone + 1
        assert {hit.placed for hit in collection.search(X[-1], 50).hits} <= {"near", "similarity"}


def test_steps_of_learning_double(tmp_path: Path) -> None:
    """Each change waits for at most as many as were learnt; steps of few rows are not measured."""
    rows = some_rows(700)
    with stillhash.open(tmp_path / "c", DIM, BITS, init_rows=300, learn_rows=200) as collection:
        collection.add(range(700), rows.X)
        learnt = []
        for row in range(600):
            collection.relabel([row], [["ab"[row % 2]]])
            if collection.stats()["pending"] == 0:
                learnt.append(row + 1)
        assert learnt == [1, 2, 4, 8, 16, 32, 64, 128, 256, 456]
        assert [point["rows"] for point in collection.quality()["curve"]] == [64, 128, 256]
        assert collection.stats()["pending"] == 144
        collection.delete(range(0, 27))  # each is a change too
        assert collection.stats()["version"] == 11
        collection.delete(range(27, 56))
        assert collection.stats()["version"] == 12 and collection.stats()["pending"] == 0
        assert collection.verify() == []


def test_small_collections_learn_what_changes(tmp_path: Path) -> None:
    """Taking out is a change too, so that ten labelled items are learnt again once five of them have other labels."""
    rows = some_rows(400)
    with stillhash.open(tmp_path / "c", DIM, BITS, init_rows=300) as collection:
        collection.add(range(400), rows.X)
        collection.relabel(range(10), [["a"], ["b"]] * 5)
        version = collection.stats()["version"]
        collection.relabel(range(4), [["c"]] * 4)
        assert collection.stats()["version"] == version
        collection.remove_labels([4, 5], ["a", "b"])
        assert collection.stats()["version"] == version + 1
        assert collection.quality()["curve"] == [] and collection.verify() == []


def test_other_collections_learn_in_equal_steps(tmp_path: Path) -> None:
    rows = some_rows(400)
    with stillhash.open(tmp_path / "c", DIM, BITS, init_rows=300, learn_rows=50, rescore_bits=0) as collection:
        collection.add(range(400), rows.X)
        collection.relabel(range(49), [["a"]] * 49)
        assert collection.stats()["pending"] == 49
        collection.relabel([49], [["b"]])
        assert collection.stats()["pending"] == 0


@pytest.mark.parametrize("sealed", [False, True])
def test_the_share_of_labelled_items_is_that_of_now(tmp_path: Path, sealed: bool) -> None:
    """Labels that wait count in it, those that are not to be learnt too, and those of deleted items do not."""
    path, query = tmp_path / "c", QUERIES[0]
    collection, twin = begin(path, 320, learn_rows=1000)
    collection.flush()
    collection.seal() if sealed else None

    def share(opened: Collection) -> float:
        with opened._view.pinned() as snapshot:
            page = snapshot.page_model(snapshot.model)
            assert page is not None
            return page.labelled_share

    def check() -> None:
        expected = sum(bool(entry.labels) for entry in twin.items.values()) / len(twin.items)
        assert share(collection) == expected
        with stillhash.open(path, read_only=True) as reader:
            assert share(reader) == expected
            for version in (None, 2):
                agree(reader, twin, query, 100, None, version)
        assert collection.verify() == []

    check()
    version = collection.stats()["version"]
    ids = [id_ for id_, entry in twin.items.items() if not entry.labels][:60]
    for one in (collection, twin):
        one.relabel(ids, [["a"], ["b"], ["zebra"]] * 20)
    check()
    for one in (collection, twin):
        one.relabel(ids[:10], [[]] * 10, learn=False)
        one.delete(ids[10:13])
    check()
    X, labels, _ = some_rows(9, 7)
    collection.add([f"n{row}" for row in range(9)], X, labels, learn=False)
    twin.put([f"n{row}" for row in range(9)], X, labels, learn=False)
    check()
    assert collection.stats()["version"] == version, "nothing was learnt meanwhile"
    with collection._store.transaction() as connection:  # as earlier releases stored
        connection.execute("DELETE FROM meta WHERE key = 'labelled'")
    check()
    for one in (collection, twin):
        one.relabel(ids[20:25], [[]] * 5)
    check()
    with collection._store.reading() as connection:
        assert connection.execute("SELECT value FROM meta WHERE key = 'labelled'").fetchone() is not None
    with collection._store.transaction() as connection:
        connection.execute("UPDATE meta SET value = 7 WHERE key = 'labelled'")
    (problem,) = collection.verify()
    assert "with labels" in problem
    collection.close()
    assert "counted again" in " ".join(stillhash.repair(path).actions)
    collection = stillhash.open(path)
    check()
    collection.close()


def test_a_corrected_label_is_not_measured_again(tmp_path: Path) -> None:
    """What was learnt before was searched before, so corrections leave the curve alone; new labels do not."""
    collection, _ = begin(tmp_path / "c", 320)
    collection.flush()
    points, labels = len(collection.quality()["curve"]), some_rows(320).labels
    learnt, others = ([row for row in range(320) if bool(labels[row]) is known] for known in (True, False))
    collection.relabel(learnt, [["a"]] * len(learnt))
    assert collection.stats()["pending"] == 0 and len(collection.quality()["curve"]) == points
    collection.relabel(others, [["a"], ["b"]] * 53 + [["b"]])
    assert len(collection.quality()["curve"]) > points and collection.verify() == []
    collection.close()


def listed(labels: Labels) -> list[list[Any]]:
    """Return the labels of each row, numbers before texts."""
    names = [[labels.names[index] for index in row] for row in np.split(labels.indices, labels.indptr[1:-1])]
    return [sorted(row, key=lambda name: (isinstance(name, str), name)) for row in names]


@pytest.mark.medium
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_columns_hold_the_labels_that_sqlite_has(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path, number = tmp_path_factory.mktemp("columns") / "c", 0
    labels = st.lists(st.sampled_from(NAMES), max_size=3, unique=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CodeTable, "segment_rows", 150)
        collection = stillhash.open(path, DIM, BITS, init_rows=300)
        rows = some_rows(300)
        collection.add(range(300), rows.X, rows.labels)
        for _ in range(data.draw(st.integers(1, 10))):
            verb = data.draw(st.sampled_from(["add", "relabel", "delete", "seal", "compact", "reopen", "look"]))
            ids = data.draw(st.lists(st.sampled_from(collection.ids(limit=1000)), min_size=1, max_size=30, unique=True))
            if verb == "add":
                number += 1
                new = [f"{number}/{r}" for r in range(8)]
                collection.add(new, some_rows(8, number).X, [data.draw(labels) for _ in new])
            elif verb == "relabel":
                collection.relabel(ids, [data.draw(labels) for _ in ids], learn=data.draw(st.booleans()))
            elif verb == "delete":
                collection.delete(ids)
            elif verb == "reopen":
                collection.close()
                collection = stillhash.open(path)
            elif verb != "look":
                getattr(collection, verb)()
            if verb == "look" or data.draw(st.booleans()):
                check_columns(collection)
        check_columns(collection)
        collection.close()


def check_columns(collection: Collection) -> None:
    """Check the labels of all rows, in another order than theirs, and some of them twice."""
    with collection._view.pinned() as snapshot:
        (found,) = zip(*snapshot.connection.execute("SELECT row FROM items"), strict=True)
        numbers = np.random.default_rng(0).choice(np.array(found, np.int64), len(found))
        expected = listed(read_labels(snapshot.connection, numbers))
        assert listed(collection._view.filter_columns.labels_of(snapshot.connection, numbers)) == expected
        assert snapshot.page_items is not None
        assert listed(snapshot.page_items.labels(numbers)) == expected


@pytest.mark.parametrize("half_life", [40, 1000])
def test_a_half_life_takes_out_what_is_left(tmp_path: Path, half_life: int) -> None:
    """The sums are those of what is stored, each row decayed by those that were learnt after it, to about 1e-6."""
    rows, options = some_rows(520), {"params": {"half_life": half_life, "double_sums": True}}
    with stillhash.open(tmp_path / "c", DIM, BITS, init=rows.X[:300], learn_rows=40, **options) as collection:
        collection.add(range(400), rows.X[:400], rows.labels[:400])
        collection.relabel(range(100), [["b", "zebra"]] * 100)
        collection.add(range(400, 450), rows.X[400:450], rows.labels[400:450])
        check_decayed(collection)
        with collection._store.reading() as connection:
            before = collection._trainer.hasher(connection).stats_.label_rows("zebra")
        collection.relabel(range(50), [["a"]] * 50)
        collection.delete(range(50, 70))
        collection.upsert(range(450, 520), rows.X[450:], rows.labels[450:])
        check_decayed(collection)
        collection.relabel(range(70, 100), [[]] * 30)
        collection.flush()
        check_decayed(collection)
        with collection._store.reading() as connection:
            left = collection._trainer.hasher(connection).stats_.label_rows("zebra")
        assert before > 1e-3 and abs(left) < 1e-6 * before
        collection.forget([450, 451])
        check_decayed(collection)
        assert collection.verify() == []


def check_decayed(collection: Collection) -> None:
    """Compare the sums with those computed again from what is stored."""
    with collection._store.reading() as connection:
        hasher: Any = collection._trainer.hasher(connection)
        again, lost = sum_again(collection._store, connection, hasher)
    assert not len(lost) and hasher.stats_.rows > 1
    waiting = again.stats_.rows - hasher.stats_.rows  # none of what waits is in either
    assert abs(waiting) < 1e-5
    for name in ("aa", "cc", "pp"):
        one, other = getattr(hasher.stats_, name), getattr(again.stats_, name)
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * np.abs(other).max())
    for label, place in again.stats_.names.items():
        one, other = hasher.stats_.ay[hasher.stats_.names[label]], again.stats_.ay[place]
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * np.abs(again.stats_.ay).max())
