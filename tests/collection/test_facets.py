"""Facets agree with counting all items one by one, after every kind of write and under every filter."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stillhash
from stillhash import Collection
from stillhash.collection.filters import columns as filter_columns
from stillhash.collection.filters import facets as facet_counts
from stillhash.collection.filters.facets import Facet, Facets, FacetValue
from stillhash.collection.storage import columns as stored_columns
from stillhash.errors import InvalidInput, WrongType
from tests.collection.fixtures import DIM, begin, some_rows

pytestmark = pytest.mark.filterwarnings("ignore::stillhash.errors.UnknownField")
FILTERS: list[Any] = [
    None,
    {},
    {"odd": True},
    {"labels": "a"},
    {"labels": {"$exists": False}, "$not": {"odd": True}},
    {"n": {"$lt": 40}},
    {"none": 1},
]
FIELDS = ["n", "odd", "tone", "deep", "deep.leaf", "mixed"]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, 1.0, -0.0, 2.0**53, 1e300, 2**63, 2**63 - 1, -(2**63)]),
    st.sampled_from(["", "a", "b", "é", "1", "\U0001f600"]),
    st.just(["a", "b"]),
    st.fixed_dictionaries({}, optional={"leaf": st.integers(0, 2)}),
)


def slow_facets(collection: Collection, where: Any, fields: list[str], limit: int) -> Facets:
    """Count every item that meets the condition."""
    rows = {item.id: place for place, item in enumerate(in_order_of_arrival(collection))}
    items = sorted(collection.items(where), key=lambda item: rows[item.id])
    labels = slow_facet("labels", [(item.id, item.labels) for item in items if item.labels], limit, is_field=False)
    facets = []
    for field in fields:
        pairs = [(item.id, value_at(item.metadata, field)) for item in items]
        facets.append(slow_facet(field, [(name, [v]) for name, v in pairs if v is not ...], limit, is_field=True))
    return Facets(len(items), labels, sorted(facets, key=lambda facet: (-facet.items, facet.field)))


def in_order_of_arrival(collection: Collection) -> list[Any]:
    store = collection._store
    with store.reading() as connection:
        rows = [row for (row,) in connection.execute("SELECT row FROM items ORDER BY row")]
        items = store.items.get(connection, rows)
    return [items[row] for row in rows]


def value_at(metadata: Any, field: str) -> Any:
    for key in field.split("."):
        if not isinstance(metadata, dict) or key not in metadata:
            return ...
        metadata = metadata[key]
    return metadata


def slow_facet(field: str, values: list[tuple[Any, list[Any]]], limit: int, is_field: bool) -> Facet:
    scalars = [(name, one) for name, some in values for one in some if not isinstance(one, list | dict)]
    counts = Counter(key_of(one) for _, one in scalars)
    examples: dict[Any, Any] = {}
    for name, one in scalars:
        examples.setdefault(key_of(one), name)
    numbers = [number for kind, number in counts if kind == "number"]
    order = sorted(counts, key=lambda key: (-counts[key], ["number", "text", "word"].index(key[0]), key[1]))
    listed = [FacetValue(value_of(key), counts[key], examples[key]) for key in order[:limit]]
    others = [one for _, some in values for one in some if one is not None and type(one) not in (int, float)]
    if is_field and not others and len(counts) > limit:
        listed = []
    bounds = (value_of(("number", min(numbers))), value_of(("number", max(numbers)))) if numbers else ()
    return Facet(field, len(values), len(counts), listed, *bounds)


def key_of(value: Any) -> tuple[str, Any]:
    if value is None or isinstance(value, bool):
        return "word", [None, False, True].index(value)
    if isinstance(value, str):
        return "text", value
    return "number", value if isinstance(value, float) or -(2**63) <= value < 2**63 else float(value)


def value_of(key: tuple[str, Any]) -> Any:
    kind, value = key
    if kind == "word":
        return [None, False, True][value]
    return int(value) if kind == "number" and value == int(value) and abs(value) <= 2**53 else value


def typed(facets: Facets) -> str:
    """Return a text that tells 1 from true and from 1.0."""
    return repr(facets)


def check(collection: Collection, fields: list[str] = FIELDS) -> None:
    for where in FILTERS:
        for limit in (1, 3, 500):
            expected = slow_facets(collection, where, fields, limit)
            assert typed(collection.facets(where, fields=fields, limit=limit)) == typed(expected), (where, limit)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("facets") / "c"
    collection, _ = begin(path, 320)
    with collection:
        collection.seal()
    return path


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "c"))


@pytest.mark.medium
def test_facets_follow_every_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_columns, "GROUP_ROWS", 7)
    monkeypatch.setattr(stored_columns, "COLUMN_ROWS", 50)
    with stillhash.open(path) as collection, stillhash.open(path, read_only=True) as reader:
        deep: list[Any] = [{"deep": {"leaf": 1}, "mixed": "b"}, {"deep": {"leaf": "x"}, "mixed": 2.0}]
        writes: list[Callable[[], Any]] = [
            lambda: collection.upsert([5, "a", "b"], *some_rows(3, seed=3)),
            lambda: collection.upsert(["c", "d"], some_rows(2, seed=4).X, [["a"], [7, "b"]], deep),
            lambda: collection.relabel([1, 2, "c"], [["a"], [], ["z", "y"]], learn=False),
            lambda: collection.update_metadata([1, 6, "d"], {"odd": "no", "mixed": True}),
            lambda: collection.delete([3, 4, "b"]),
            lambda: collection.relabel([1], [["b"]], learn=False),
            collection.seal,
            lambda: collection.relabel([1, "d"], [["c"], []], learn=False),
            collection.compact,
            lambda: collection.upsert([1, "e"], *some_rows(2, seed=5)),
            lambda: collection.delete(collection.ids()),
        ]
        for write in writes:
            write()
            check(collection)
            check(reader)


@pytest.mark.medium
@given(rows=st.lists(st.tuples(st.lists(st.sampled_from("abc"), max_size=3), VALUES), min_size=1, max_size=30))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_facets_of_any_values(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[list[str], Any]]) -> None:
    with stillhash.open(tmp_path_factory.mktemp("any") / "c", DIM, 16) as collection:
        labels, values = [list(dict.fromkeys(some)) for some, _ in rows], [value for _, value in rows]
        metadata = [{"mixed": value} for value in values]
        collection.add(list(range(len(rows))), np.ones((len(rows), DIM), np.float32), labels, metadata)
        for where in (None, {"labels": "a"}, {"mixed": {"$ne": 1}}):
            for limit in (2, 50):
                got = collection.facets(where, fields=["mixed", "mixed.leaf"], limit=limit)
                assert typed(got) == typed(slow_facets(collection, where, ["mixed", "mixed.leaf"], limit))


def test_without_fields_those_with_columns_are_counted(path: Path) -> None:
    with stillhash.open(path) as collection:
        assert [facet.field for facet in collection.facets().fields] == ["n", "odd", "tone"]
        assert collection.facets(fields=[]).fields == []
        collection.delete(collection.ids())
        collection.compact()
        assert collection.facets() == Facets(0, Facet("labels", 0, 0, []), [])


def test_values_that_no_column_holds_are_read(path: Path) -> None:
    with stillhash.open(path) as collection:
        collection.upsert(["big", "small"], some_rows(2).X, None, [{"n": 2**53 + 1}, {"n": 0.5}])
        assert "n" not in [facet.field for facet in collection.facets().fields]
        for limit in (3, 500):
            assert collection.facets(fields=["n"], limit=limit) == slow_facets(collection, None, ["n"], limit)


def test_fields_without_columns_are_read(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 320, filter_fields=["odd"])
    with collection:
        collection.seal()
        assert [facet.field for facet in collection.facets().fields] == ["odd"]
        check(collection, ["tone", "odd", "n"])


def test_too_many_values_are_not_listed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facet_counts, "MAX_FACET_VALUES", 100)
    with stillhash.open(path) as collection:
        names = [str(number) for number in range(320)]
        collection.add(names, some_rows(320).X, None, [{"caption": name, "half": int(name) // 4} for name in names])
        facets = {facet.field: facet for facet in collection.facets().fields}
        caption, half, number = facets["caption"], facets["half"], facets["n"]
        assert (caption.items, caption.distinct, caption.values) == (320, None, [])
        assert (half.distinct, half.minimum, half.maximum, half.values) == (80, 0, 79, [])
        assert (number.distinct, number.minimum, number.maximum) == (None, 1, 319)
        few = collection.facets({"half": 3}, fields=["caption"]).fields[0]
        assert [value.value for value in few.values] == ["12", "13", "14", "15"]
        monkeypatch.setattr(
            collection._view.filter_columns,
            "table",
            lambda *_: filter_columns.ColumnTable([], set(), np.zeros(0, np.uint8)),
        )
        assert collection.facets(fields=["caption"], limit=19).fields[0] == caption


def test_facets_of_one_commit_are_cached(path: Path) -> None:
    with stillhash.open(path) as collection:
        first = collection.facets({"odd": True})
        assert collection.facets({"odd": True}) is first
        assert collection.facets({"odd": True}, limit=2) is not first
        collection.relabel([1], [["new"]], learn=False)
        assert "new" in [value.value for value in collection.facets({"odd": True}).labels.values]
        for number in range(40):
            collection.facets({"n": number})
        assert len(collection._values._facets._entries) <= 16


@pytest.mark.parametrize(
    ("options", "error", "argument"),
    [
        ({"limit": 0}, InvalidInput, "limit"),
        ({"limit": 2.5}, WrongType, "limit"),
        ({"limit": float("nan")}, WrongType, "limit"),
        ({"fields": "year"}, WrongType, "fields"),
        ({"fields": [3]}, WrongType, "fields"),
        ({"fields": ["labels"]}, InvalidInput, "fields"),
        ({"fields": [""]}, InvalidInput, "fields"),
        ({"fields": [str(n) for n in range(65)]}, InvalidInput, "fields"),
        ({"where": {"a": {}}}, InvalidInput, "where"),
        ({"where": {"a": float("nan")}}, InvalidInput, "where"),
    ],
)
def test_invalid_arguments_are_refused(path: Path, options: Any, error: type[Exception], argument: str) -> None:
    with stillhash.open(path, read_only=True) as collection, pytest.raises(error, match=rf"^{argument}:"):
        collection.facets(**options)
