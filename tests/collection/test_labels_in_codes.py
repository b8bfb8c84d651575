"""Codes that hold the labels items are added with, the setting for it, and labels that arrive later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import METHODS
from stillhash.collection import read_view
from stillhash.collection.learning.models import load_functions
from stillhash.collection.learning.trainer import Trainer
from stillhash.collection.storage.store import Store
from stillhash.errors import InvalidInput, WrongType
from stillhash.hashers import Hasher, LinearHasher
from tests.collection.fixtures import BITS, DIM, INIT, LEARN, begin, some_rows
from tests.collection.reference import agree
from tests.support.toys import toy


def functions_of(collection: stillhash.Collection) -> LinearHasher:
    with collection._store.reading() as connection:
        functions = load_functions(connection)
    assert functions is not None
    return functions


def hasher_of(path: Path) -> Hasher:
    """Return the learner of a closed collection."""
    store = Store(path, writer=False)
    with store.reading() as connection:
        hasher = Trainer(store).hasher(connection)
    store.close()
    return hasher


def labelled_rows(n: int, seed: int) -> tuple[np.ndarray, list[list[str]]]:
    """Return rows that all have labels."""
    X, Y = toy(n, DIM, 4, seed)
    return X, [["abcd"[c] for c in np.flatnonzero(y)] or ["a"] for y in Y]


# ---- the setting ----


def test_the_setting_is_stored_and_in_the_stats(tmp_path: Path) -> None:
    for name, options, expected in (("on", {}, True), ("off", {"codes_see_labels": False}, False)):
        begin(tmp_path / name, **options)[0].close()
        with stillhash.open(tmp_path / name, codes_see_labels=not expected) as again:  # only new collections take it
            assert again.stats()["codes_see_labels"] is expected and again.stats()["params"] == {}
        assert getattr(hasher_of(tmp_path / name), "codes_see_labels") is expected  # noqa: B009


@pytest.mark.parametrize("method", [name for name, known in METHODS.items() if known.fixed_codes])
def test_methods_without_the_parameter_say_false(tmp_path: Path, method: str) -> None:
    with stillhash.open(tmp_path / "c", DIM, BITS, method=method, codes_see_labels=True) as collection:
        assert collection.stats()["codes_see_labels"] is (method == "tally")


@pytest.mark.parametrize("value", [1, 0, "yes", "False", []])
def test_it_must_be_a_bool(tmp_path: Path, value: Any) -> None:
    with pytest.raises(WrongType, match=r"^codes_see_labels: expected true or false, got"):
        stillhash.open(tmp_path / "c", DIM, codes_see_labels=value)
    assert not (tmp_path / "c").exists()


def test_it_is_on_by_default_and_codes_are_long_enough_for_near_duplicates(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", DIM) as collection:
        assert collection.stats()["codes_see_labels"] is True and collection.bits == 128
    with stillhash.open(tmp_path / "short", DIM, 16) as collection:
        assert collection.stats()["codes_see_labels"] is True


@pytest.mark.parametrize("value", [True, False])
def test_it_is_no_entry_of_params(tmp_path: Path, value: bool) -> None:
    for method in ("tally", "lsh"):
        with pytest.raises(InvalidInput, match=r"^params: expected codes_see_labels as an argument"):
            stillhash.open(tmp_path / "c", DIM, method=method, params={"codes_see_labels": value})
    assert not (tmp_path / "c").exists()


# ---- codes ----


@pytest.mark.parametrize("learn", [True, False])
def test_items_with_labels_have_codes_that_hold_them(tmp_path: Path, learn: bool) -> None:
    collection, twin = begin(tmp_path / "c")
    X, labels = labelled_rows(30, 5)
    some = [names if r % 2 else [] for r, names in enumerate(labels)]
    assert twin.hasher is not None
    expected, plain = twin.hasher.encode(X, some), functions_of(collection).encode(X)
    collection.add([f"t{r}" for r in range(30)], X, some, learn=learn)
    stored = collection.codes([f"t{r}" for r in range(30)])
    assert stored is not None and np.array_equal(stored, expected)
    assert np.array_equal(stored[::2], plain[::2]) and not np.array_equal(stored[1::2], plain[1::2])


def test_rows_that_waited_have_codes_that_hold_their_labels(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c")
    stored = collection.codes(range(INIT))
    assert stored is not None and np.array_equal(stored, twin.codes(list(twin.items.values())[:INIT]))
    plain = functions_of(collection).encode(some_rows(320).X)[:INIT]
    without = np.array([not labels for labels in some_rows(320).labels[:INIT]])
    assert np.array_equal(stored[without], plain[without]) and not np.array_equal(stored[~without], plain[~without])


@pytest.mark.parametrize("learn", [True, False])
def test_without_the_setting_codes_are_of_the_features_alone(tmp_path: Path, learn: bool) -> None:
    with stillhash.open(tmp_path / "c", DIM, BITS, init_rows=INIT, learn_rows=LEARN, codes_see_labels=False) as photos:
        rows = some_rows(400)
        for start in (0, 320):  # before there are hash functions, and after
            chunk = slice(start, start + 320)
            photos.add(range(400)[chunk], rows.X[chunk], rows.labels[chunk], learn=learn)
        photos.upsert([7, 350], rows.X[:2], [["a"], ["b"]])
        X = rows.X.copy()
        X[[7, 350]] = rows.X[:2]
        stored = photos.codes(range(400))
        assert stored is not None and np.array_equal(stored, functions_of(photos).encode(X))


def test_without_the_setting_it_learns_as_its_hasher_does(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c", codes_see_labels=False)
    rows = some_rows(60, seed=3)
    collection.add([f"t{r}" for r in range(60)], *rows)
    twin.put([f"t{r}" for r in range(60)], *rows)
    for query in rows.X[:3]:
        agree(collection, twin, query)
    collection.close()
    assert twin.hasher is not None and hasher_of(tmp_path / "c").state() == twin.hasher.state()


# ---- labels that arrive later ----


@pytest.mark.parametrize("sealed", [True, False])
def test_a_relabelled_item_keeps_its_code_and_is_learnt_with_it(tmp_path: Path, sealed: bool) -> None:
    collection, twin = begin(tmp_path / "c")
    X, labels = labelled_rows(60, 6)
    ids = [f"t{r}" for r in range(60)]
    with_labels = [[] if r < 50 else ["d"] for r in range(60)]  # ten have others already
    for each in (collection.add, twin.put):
        each(ids, X, with_labels)
    collection.flush()
    twin.flush()
    if sealed:
        collection.seal()
    codes, version = collection.codes(ids), collection.stats()["version"]
    scores = [hit.score for hit in collection.search(X[0], 9).hits]
    assert collection.relabel(ids, labels) == 60  # more than LEARN: learnt at once
    twin.relabel(ids, labels)
    assert np.array_equal(collection.codes(ids), codes)
    assert collection.stats()["version"] == version + 1
    assert [hit.score for hit in collection.search(X[0], 9).hits] != scores
    items = collection.get(ids)
    assert [sorted(item.labels) for item in items if item is not None] == [sorted(names) for names in labels]
    collection.close()
    assert twin.hasher is not None  # has taken out ten rows, and learnt all with the codes that are stored
    assert hasher_of(tmp_path / "c").state() == twin.hasher.state()


def test_late_labels_improve_what_looks_alike(tmp_path: Path) -> None:
    X, labels = labelled_rows(900, 7)
    with stillhash.open(tmp_path / "c", DIM, BITS, init=X[:300], learn_rows=100, codes_see_labels=True) as photos:
        photos.add(range(600), X[:600])  # no labels at all
        before, codes = precision(photos, X[600:], labels), photos.codes(range(600))
        photos.relabel(range(400), labels[:400])
        assert precision(photos, X[600:], labels) > before + 0.02
        assert np.array_equal(photos.codes(range(600)), codes)


def precision(photos: stillhash.Collection, queries: np.ndarray, labels: list[list[str]]) -> float:
    """Return the share of the first 200 hits that share a label with their query; items are the first rows."""
    shares = []
    for query, answer in enumerate(photos.search(queries, 200), 600):
        shares.append(np.mean([not set(labels[query]).isdisjoint(labels[int(hit.id)]) for hit in answer.hits]))
    return float(np.mean(shares))


# ---- exact repeats ----


@pytest.mark.medium
def test_every_item_is_found_first_by_its_own_features(tmp_path: Path) -> None:
    """Its code holds its labels, so without its digest hardly any labelled item would be."""
    collection, twin = begin(tmp_path / "c")
    X, labels = labelled_rows(200, 8)
    ids = [f"t{r}" for r in range(200)]
    collection.add(ids, X, labels)
    twin.put(ids, X, labels)
    assert twin.hasher is not None
    plain, stored = functions_of(collection).encode(X), collection.codes(ids)
    assert stored is not None and (plain != stored).any(axis=1).mean() > 0.5
    for state in ("unsealed", "sealed", "compacted", "opened again"):
        assert [answer.hits[0].id for answer in collection.search(X, 3)] == ids, state
        assert {answer.hits[0].placed for answer in collection.search(X, 3)} == {"near"}
        for query in X[:5]:
            agree(collection, twin, query)
        if state == "unsealed":
            collection.seal()
        elif state == "sealed":
            collection.delete(range(100))
            twin.delete(range(100))
            collection.compact()
        elif state == "compacted":
            collection.close()
            collection = stillhash.open(tmp_path / "c")
    collection.close()


def test_repeats_come_in_order_without_deleted_or_filtered_ones(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c")
    x = some_rows(1, seed=9).X
    for name, labels in (("one", ["a"]), ("two", ["b", "c"]), ("three", ["d"]), ("four", [])):
        for each in (collection.add, twin.put):
            each([name], x, [labels], [{"n": len(name)}])
    assert [hit.id for hit in collection.search(x[0], 4).hits] == ["one", "two", "three", "four"]
    assert [hit.id for hit in collection.search(x[0] * np.float32(1.001), 3).hits] != ["one", "two", "three"]
    agree(collection, twin, x[0])
    agree(collection, twin, x[0], where={"n": 5})
    collection.feedback(x[0], ["one", "three"], [False, True])
    twin.feedback(x[0], ["one", "three"], [False, True])
    agree(collection, twin, x[0], 400)
    for each in (collection.delete, twin.delete):
        each(["two"])
    agree(collection, twin, x[0])
    collection.close()


def test_digests_of_many_rows_do_not_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_view, "MAX_UNSEALED_DIGESTS", 50)
    collection, twin = begin(tmp_path / "c")
    X, labels = labelled_rows(400, 10)
    for start in range(0, 400, 40):
        ids = [f"t{r}" for r in range(start, start + 40)]
        for each in (collection.add, twin.put):
            each(ids, X[start : start + 40], labels[start : start + 40])
        agree(collection, twin, X[start])
        collection.seal()
    with collection._view.pinned() as snapshot:
        assert len(snapshot.stored_features._unsealed) <= 80
    assert [answer.hits[0].id for answer in collection.search(X, 1)] == [f"t{r}" for r in range(400)]
    collection.close()
