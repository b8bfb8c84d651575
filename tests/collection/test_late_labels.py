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
from tests.collection.test_readers import QUERIES, READER, other_process, request, state

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
