"""Changing items by ids or by a condition: what is stored, what filters and readers see, and what is learnt."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stillhash
from stillhash import Collection
from stillhash.collection.filters import columns as filter_columns
from stillhash.collection.validation import MAX_METADATA_BYTES, merge_metadata
from stillhash.collection.values import json_text
from stillhash.collection.writing import Writer
from stillhash.errors import InvalidInput, WrongType
from tests.collection.fixtures import begin, copied, some_rows
from tests.collection.reference import Twin, agree, matches
from tests.support.toys import toy

pytestmark = pytest.mark.filterwarnings("ignore::stillhash.errors.UnknownField")
QUERY = toy(1, 8, 4, seed=77).X[0]
CONDITIONS: list[Any] = [{"odd": True}, {"n": {"$lt": 40}}, {"new": "x"}, {"labels": "a"}, {"tone": 0.5}, {}]
LARGE = {"a": "x" * (MAX_METADATA_BYTES - 20)}  # alone it would fit
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=3)
VALUES = st.none() | st.integers(-5, 5) | TEXTS | st.lists(st.booleans(), max_size=2)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), VALUES | st.fixed_dictionaries({"x": st.integers(0, 3)}))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a collection with sealed, deleted and unsealed rows."""
    path = tmp_path_factory.mktemp("updates") / "c"
    with begin(path)[0] as collection:
        collection.seal()
        collection.delete(range(10, 20))
        collection.add([f"t{r}" for r in range(60)], *some_rows(60, seed=1))
    return path


@pytest.fixture
def pair(template: Path, tmp_path: Path) -> Iterator[tuple[Collection, dict[Any, Any]]]:
    """Open a copy, with its items in a dictionary: id to labels and metadata."""
    with stillhash.open(copied(template, tmp_path / "c")) as collection:
        names = collection.ids(limit=1000)
        items = sorted(collection.get(names), key=lambda item: (isinstance(item.id, str), str(item.id).zfill(5)))
        yield collection, {item.id: (item.labels, item.metadata) for item in items}


def check(collection: Collection, model: dict[Any, Any]) -> None:
    """Compare items, filters and the first hits, also of another reader, and verify the store."""
    with stillhash.open(collection._store.path, read_only=True) as reader:
        for at in (collection, reader):
            assert {i.id: (i.labels, i.metadata) for i in at.get(list(model)) if i is not None} == model
            for where in CONDITIONS:
                expected = {id_ for id_, row in model.items() if matches(where, row)}
                assert set(at.ids(where, limit=1000)) == expected and at.count(where) == len(expected)
                assert {hit.id for hit in at.search(QUERY, 1000, where=where).hits} == expected
    assert collection.verify() == []


@given(st.none() | OBJECTS, OBJECTS)
def test_fields_are_merged_as_in_a_dictionary(stored: dict[str, Any] | None, fields: dict[str, Any]) -> None:
    text = merge_metadata(fields, None if stored is None else json_text(stored))
    twin = Twin(16, 300, 40)
    twin.put([1], np.zeros((1, 8)), [[]], [stored])
    twin.update_metadata([1], fields)
    expected = twin.items[1].metadata
    assert text == (None if expected is None else json_text(expected))


@pytest.mark.medium
def test_metadata_is_updated_in_sealed_and_unsealed_rows(pair: tuple[Collection, dict[Any, Any]]) -> None:
    collection, model = pair
    check(collection, model)  # so that columns are in memory before they change
    assert collection.update_metadata([0, "t1", 5], {"new": "x", "odd": None}) == 3
    for id_ in (0, "t1", 5):
        labels, metadata = model[id_]
        model[id_] = labels, {key: value for key, value in ((metadata or {}) | {"new": "x"}).items() if key != "odd"}
    check(collection, model)
    assert collection.update_metadata(["t1", 5], [{"n": 1}, {"new": None, "n": 2.5}]) == 2
    model["t1"][1]["n"], model[5][1]["n"] = 1, 2.5
    del model[5][1]["new"]
    check(collection, model)
    assert collection.update_metadata([0, 5], [None, {"odd": None}], replace=True) == 2
    model[0], model[5] = (model[0][0], None), (model[5][0], {"odd": None})
    check(collection, model)
    entry = collection.audit(limit=1)[0]
    assert (entry.what, entry.rows, entry.ids) == ("update_metadata", 2, [0, 5])
    collection.seal()
    check(collection, model)
    collection.compact()
    check(collection, model)


@pytest.mark.medium
@pytest.mark.parametrize("at_once", [7, 16_384])
@pytest.mark.parametrize("where", [{"odd": True}, {"labels": "a", "n": {"$lt": 100}}, {"n": -1}, "all"])
def test_verbs_change_what_meets_a_condition(
    pair: tuple[Collection, dict[Any, Any]], where: Any, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    select = Writer._select
    monkeypatch.setattr(Writer, "_select", lambda self, connection, some, *_: select(self, connection, some, at_once))
    collection, model = pair
    chosen = [id_ for id_, row in model.items() if matches({} if where == "all" else where, row)]
    assert collection.update_metadata(metadata={"new": "x", "odd": None}, where=where) == len(chosen)
    for id_ in chosen:
        fields = {**(model[id_][1] or {}), "new": "x"}
        fields.pop("odd", None)
        model[id_] = model[id_][0], fields
    check(collection, model)
    assert collection.relabel(where={"new": "x"}, labels=("b", "a", "a")) == len(chosen)
    model |= {id_: (["a", "b"], model[id_][1]) for id_ in chosen}
    check(collection, model)
    assert collection.delete(where={"new": "x", "labels": {"$ne": "c"}}) == len(chosen)
    check(collection, {id_: row for id_, row in model.items() if id_ not in chosen})
    log = [(entry.what, entry.rows, entry.ids) for entry in collection.audit(limit=3)]
    expected = [(what, len(chosen), chosen[:10]) for what in ("update_metadata", "relabel", "delete")]
    assert log == (expected if chosen else log)


def test_relabelling_by_a_condition_learns_as_by_ids(template: Path, tmp_path: Path) -> None:
    answers = []
    for name in ("ids", "where"):
        with stillhash.open(copied(template, tmp_path / name)) as collection:
            ids = collection.ids({"odd": True}, limit=1000)
            rows = sorted(ids, key=lambda id_: int(id_[1:]) + 320 if isinstance(id_, str) else id_)  # by arrival
            if name == "ids":
                collection.relabel(rows, [["new"]] * len(rows))
            else:
                collection.relabel(where={"odd": True}, labels=["new"])
            answers.append((collection.stats()["version"], collection.search(QUERY, 50)))
    assert answers[0] == answers[1]


def test_upsert_without_features_replaces_labels_and_metadata(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c")
    with collection:
        codes = collection.codes([1, 2])
        assert collection.upsert([1, 2], metadata=[{"n": 7}, None]) == 2
        twin.items[1].metadata, twin.items[2].metadata = {"n": 7}, None
        agree(collection, twin, QUERY, 50, {"n": 7})
        assert collection.upsert([1], labels=[["z"]], metadata=[{"m": 1}], learn=False) == 1
        item = collection.get(1)
        assert (item.labels, item.metadata) == (["z"], {"m": 1})
        assert collection.upsert([2], labels=[[]], learn=False) == 1 and collection.get(2).labels == []
        assert collection.upsert([], metadata=[]) == 0
        assert [entry.what for entry in collection.audit(limit=3)] == ["upsert"] * 3
        assert (collection.codes([1, 2]) == codes).all()


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda c: c.delete(), InvalidInput, "^ids"),
    (lambda c: c.delete([1], where={"n": 1}), InvalidInput, "^ids"),
    (lambda c: c.delete(where={}), InvalidInput, "^where"),
    (lambda c: c.delete(where={"$and": []}), InvalidInput, "^where"),
    (lambda c: c.delete(where="every"), InvalidInput, "^where"),
    (lambda c: c.delete(where={"n": {"$in": 3}}), InvalidInput, "^where"),
    (lambda c: c.update_metadata([1]), InvalidInput, "^metadata"),
    (lambda c: c.update_metadata([1], [{}, {}]), InvalidInput, "^metadata"),
    (lambda c: c.update_metadata([1], [None]), InvalidInput, r"^metadata\[0\]"),
    (lambda c: c.update_metadata([1], {"a": float("nan")}), InvalidInput, r"^metadata\['a'\]"),
    (lambda c: c.update_metadata([1], {"a": b"x"}), WrongType, r"^metadata\['a'\]"),
    (lambda c: c.update_metadata([1], "x"), WrongType, "^metadata"),
    (lambda c: c.update_metadata([1, 5000], {"a": 1}), InvalidInput, "^id"),
    (lambda c: c.update_metadata(metadata={"a": 1}), InvalidInput, "^ids"),
    (lambda c: c.update_metadata(metadata=[{"a": 1}], where="all"), InvalidInput, "^metadata"),
    (
        lambda c: c.update_metadata(metadata={"a": "x" * (MAX_METADATA_BYTES - 20)}, where="all"),
        InvalidInput,
        "^metadata",
    ),
    (lambda c: c.relabel(where="all"), InvalidInput, "^labels"),
    (lambda c: c.relabel(where="all", labels=[["a"]]), InvalidInput, "^labels"),
    (lambda c: c.relabel([1, 5000], [["a"], ["b"]]), InvalidInput, "^id"),
    (lambda c: c.upsert([1]), InvalidInput, "^features"),
    (lambda c: c.upsert([1], metadata=[{}], pictures=[None]), InvalidInput, "^features"),
    (lambda c: c.upsert([1, 5000], labels=[["a"], ["b"]], metadata=[{}, {}]), InvalidInput, "^ids"),
    (lambda c: c.upsert([1, 2], labels=[["a"]]), InvalidInput, "^labels"),
    (lambda c: c.upsert([1, 2], metadata=[{}]), InvalidInput, "^metadata"),
]


@pytest.fixture(scope="module")
def shared(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    with stillhash.open(copied(template, tmp_path_factory.mktemp("shared") / "c")) as collection:
        yield collection


@pytest.mark.parametrize(("call", "error", "match"), REFUSED)
def test_refused_changes_change_nothing(shared: Collection, call: Any, error: type[Exception], match: str) -> None:
    names = shared.ids(limit=1000)
    before = shared.get(names), shared.audit(), shared.versions(), shared.count({"odd": True})
    with pytest.raises(error, match=match):
        call(shared)
    assert (shared.get(names), shared.audit(), shared.versions(), shared.count({"odd": True})) == before


def test_a_metadata_that_grows_too_large_is_refused(tmp_path: Path) -> None:
    with begin(tmp_path / "c", 5)[0] as collection:
        collection.update_metadata([1], {"a": "x" * 600_000})
        with pytest.raises(InvalidInput, match=r"^metadata: expected at most"):
            collection.update_metadata(metadata={"b": "x" * 600_000}, where="all")
        assert collection.count({"b": {"$exists": True}}) == 0


def test_rows_that_change_often_do_not_fill_memory(
    pair: tuple[Collection, dict[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_columns, "GROUP_ROWS", 32)
    collection, model = pair
    columns = collection._view.filter_columns
    for count in range(40):
        collection.update_metadata(["t1", 0, 300], {"n": count})
        model |= {id_: (model[id_][0], {**(model[id_][1] or {}), "n": count}) for id_ in ("t1", 0, 300)}
        for where in ({"n": count}, {"n": count - 1}):
            assert set(collection.ids(where)) == {id_ for id_, row in model.items() if matches(where, row)}
        assert len(columns._changed) <= 32 + 3
    check(collection, model)


@pytest.mark.medium
def test_a_reader_process_sees_updates(template: Path, tmp_path: Path) -> None:
    path = copied(template, tmp_path / "c")
    code = f"""
import sys, stillhash
reader = stillhash.open({str(path)!r}, read_only=True)
for line in sys.stdin:
    print(reader.count({{"new": "x"}}), reader.count({{"labels": "z"}}), len(reader), flush=True)
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    with (
        stillhash.open(path) as collection,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdin is not None and process.stdout is not None

        def counts() -> list[int]:
            process.stdin.write("\n")
            process.stdin.flush()
            return list(map(int, process.stdout.readline().split()))

        odd, total = collection.count({"odd": True}), len(collection)
        assert counts() == [0, 0, total]
        collection.update_metadata(metadata={"new": "x"}, where={"odd": True})
        assert counts() == [odd, 0, total]
        collection.relabel(where={"new": "x"}, labels=["z"], learn=False)
        assert counts() == [odd, odd, total]
        collection.update_metadata([1], {"new": None})
        assert counts() == [odd - 1, odd, total]
        collection.delete(where={"new": "x"})
        assert counts() == [0, 1, total - odd + 1]
        process.stdin.close()
