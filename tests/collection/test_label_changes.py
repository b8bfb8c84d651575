"""Labels that are added to many items, or removed from them: what is stored, what is learnt, and how to undo it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stillhash
from stillhash import Collection
from stillhash.errors import InvalidInput, StillhashError, WrongType
from tests.collection.fixtures import LEARN, begin, copied, some_rows
from tests.support.toys import toy

QUERY = toy(1, 8, 4, seed=77).X[0]
NAMES: list[Any] = ["a", "b", "new", "", 3, 0.5, 2**53]
IDS = st.lists(st.sampled_from([0, 1, 2, 3, "t1", "t2"]), unique=True)
CHANGES = st.lists(
    st.tuples(st.booleans(), IDS, st.lists(st.sampled_from(NAMES), min_size=1, max_size=3)), min_size=1, max_size=5
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a collection with sealed rows, and with pending ones."""
    path = tmp_path_factory.mktemp("labels") / "c"
    with begin(path)[0] as collection:
        collection.seal()
        X, _, metadata = some_rows(20, seed=1)
        collection.add([f"t{r}" for r in range(20)], X, None, metadata)
        collection.flush()
    return path


@pytest.fixture
def collection(template: Path, tmp_path: Path) -> Iterator[Collection]:
    with stillhash.open(copied(template, tmp_path / "c")) as collection:
        yield collection


@pytest.fixture(scope="module")
def shared(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """A collection that all examples of a property change, one after another."""
    with stillhash.open(copied(template, tmp_path_factory.mktemp("shared") / "c")) as collection:
        yield collection


def labels_of(collection: Collection, ids: list[Any]) -> dict[Any, list[Any]]:
    return {item.id: item.labels for item in collection.get(ids) if item is not None}


def sorted_labels(labels: set[Any]) -> list[Any]:
    return sorted(labels, key=lambda label: (isinstance(label, str), label))


@pytest.mark.medium
@given(CHANGES)
def test_labels_change_as_in_sets(shared: Collection, changes: list[tuple[bool, list[Any], list[Any]]]) -> None:
    everyone = [0, 1, 2, 3, "t1", "t2"]
    for adds, ids, labels in changes:
        own = labels_of(shared, everyone)
        verb = shared.add_labels if adds else shared.remove_labels
        before = verb(ids, labels, learn=False)
        new = {id_: set(own[id_]) | set(labels) if adds else set(own[id_]) - set(labels) for id_ in ids}
        expected = {id_: sorted_labels(names) for id_, names in new.items()}
        assert before == {id_: own[id_] for id_ in ids if set(own[id_]) != new[id_]}
        assert labels_of(shared, everyone) == own | expected
        shared.relabel(list(before), list(before.values()), learn=False)
        assert labels_of(shared, everyone) == own
        verb(ids, labels, learn=False)


def test_filters_and_other_readers_see_the_labels(collection: Collection) -> None:
    assert collection.count({"labels": "new"}) == 0
    assert set(collection.add_labels([0, "t1"], "new")) == {0, "t1"}
    with stillhash.open(collection._store.path, read_only=True) as reader:
        for at in (collection, reader):
            assert at.ids({"labels": "new"}) == [0, "t1"]
    collection.remove_labels(["t1"], "new")
    assert collection.ids({"labels": "new"}) == [0] and collection.get("t1").labels == []  # type: ignore[union-attr]
    assert collection.verify() == []


def test_a_call_is_learnt_once_and_has_one_entry(collection: Collection) -> None:
    version, ids = collection.stats()["version"], [f"t{r}" for r in range(20)] + list(range(LEARN))
    collection.add_labels(ids, ["new", "newer"])
    assert collection.stats()["version"] == version + 1 and collection.stats()["pending"] == 0
    entry = collection.audit(limit=1)[0]
    assert (entry.what, entry.rows, entry.ids) == ("add_labels", len(ids), ids[:10])
    assert (entry.version_before, entry.version_after) == (version, version + 1)


def test_it_learns_what_relabel_learns(template: Path, tmp_path: Path) -> None:
    answers = []
    for name in ("add", "relabel"):
        with stillhash.open(copied(template, tmp_path / name)) as collection:
            own = labels_of(collection, list(range(LEARN)))
            if name == "add":
                collection.add_labels(list(own), ["new"])
            else:
                collection.relabel(list(own), [[*labels, "new"] for labels in own.values()])
            answers.append([(hit.id, hit.score) for hit in collection.search(QUERY, 50).hits])
    assert answers[0] == answers[1]


def test_items_that_have_the_labels_are_not_learnt_again(collection: Collection) -> None:
    collection.add_labels(["t1", "t2"], "new")
    assert collection.stats()["pending"] == 2
    entries = collection.audit()
    assert collection.add_labels(["t2", "t1"], "new") == {} and collection.remove_labels(["t2"], "other") == {}
    assert collection.stats()["pending"] == 2 and collection.audit() == entries
    assert list(collection.add_labels(["t1", "t3"], "new")) == ["t3"]
    assert collection.stats()["pending"] == 3


def test_taking_back_pending_labels_leaves_nothing(template: Path, tmp_path: Path) -> None:
    models = []
    for undone in (False, True):
        with stillhash.open(copied(template, tmp_path / str(undone))) as collection:
            if undone:
                before = collection.add_labels(["t1", "t2", "t3"], ["new"])
                collection.relabel(list(before), list(before.values()))
            assert collection.stats()["pending"] == 0
            collection.learn(*some_rows(LEARN, seed=5)[:2])
            models.append(collection.weigh(QUERY))
    assert np.array_equal(models[0], models[1])


def test_all_of_it_happens_or_nothing(collection: Collection) -> None:
    own, entries = labels_of(collection, [0, 1]), collection.audit()
    with pytest.raises(InvalidInput, match=r"^id"):
        collection.add_labels([0, 1, "nobody"], ["new"])
    assert labels_of(collection, [0, 1]) == own and collection.audit() == entries


@pytest.mark.parametrize("verb", ["add_labels", "remove_labels"])
@pytest.mark.parametrize(
    ("ids", "labels", "error", "name"),
    [
        ([0], None, InvalidInput, "labels"),
        ([0], [], InvalidInput, "labels"),
        ([0], [["a"]], WrongType, "labels"),
        ([0], ["a", np.nan], InvalidInput, "labels"),
        ([0], ["a\0"], InvalidInput, "labels"),
        ([0], ["x" * 1001], InvalidInput, "labels"),
        ([0], [b"a"], WrongType, "labels"),
        ([0, 0], ["a"], InvalidInput, "ids"),
        ("t1", ["a"], WrongType, "ids"),
        (None, ["a"], WrongType, "ids"),
    ],
)
def test_others_are_refused(
    collection: Collection, verb: str, ids: Any, labels: Any, error: type[StillhashError], name: str
) -> None:
    with pytest.raises(error, match=f"^{name}"):
        getattr(collection, verb)(ids, labels)


def test_a_reader_cannot_change_labels(collection: Collection) -> None:
    with stillhash.open(collection._store.path, read_only=True) as reader, pytest.raises(StillhashError):
        reader.add_labels([0], "new")
