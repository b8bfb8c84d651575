"""Filters: the compiled SQL selects exactly what the reference in Python selects."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stillhash.collection.filters.language import (
    MAX_FILTER_CONDITIONS,
    MAX_FILTER_DEPTH,
    MAX_FILTER_PARTS,
    compile_filter,
    count_parts,
)
from stillhash.collection.storage import items
from stillhash.collection.validation import check_label_lists, check_metadata
from stillhash.errors import InvalidInput, TooLarge
from tests.collection.fixtures import begin, some_rows
from tests.collection.reference import COMPARE, Row, agree, kind, matches


def select_by_sql(where: dict[str, Any], rows: list[Row]) -> list[int]:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE items (row INTEGER PRIMARY KEY, labels TEXT NOT NULL, metadata TEXT)")
    labels = check_label_lists([labels for labels, _ in rows], len(rows))
    metadata = check_metadata([data for _, data in rows], len(rows))
    stored = zip(range(len(rows)), map(json.dumps, labels), metadata, strict=True)
    db.executemany("INSERT INTO items VALUES (?, ?, ?)", stored)
    sql, values = compile_filter(where).sql
    selected = [row for (row,) in db.execute(f"SELECT row FROM items WHERE {sql} ORDER BY row", values)]
    db.close()
    return selected


ROWS: list[Row] = [
    ([], None),
    (["cat"], {"year": 1999, "author": {"name": "Ann", "born": 1970}, "new": True}),
    (["cat", "dog"], {"year": 2001.5, "author": {"name": "Bo"}, "new": False}),
    ([7, 2.5], {"year": "1999", "author": None, "new": None}),
    (["7"], {"year": [1999], "author": "Ann", "été": "ö😀", 'a"b': 1, "": "empty", "c\\d": 2}),
]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"year": 1999}, [1]),
        ({"year": 1999.0}, [1]),
        ({"year": "1999"}, [3]),
        ({"year": {"$eq": 2001.5}}, [2]),
        ({"year": {"$ne": 1999}}, [0, 2, 3, 4]),
        ({"year": {"$gt": 1999}}, [2]),
        ({"year": {"$gte": 1999}}, [1, 2]),
        ({"year": {"$lt": 2001.5}}, [1]),
        ({"year": {"$lte": 2001.5}}, [1, 2]),
        ({"year": {"$gte": 1990, "$lt": 2000}}, [1]),
        ({"year": {"$gt": "1998"}}, [3]),
        ({"year": {"$in": [1999, "1999"]}}, [1, 3]),
        ({"year": {"$in": (2001.5, None, True)}}, [2]),
        ({"year": {"$in": []}}, []),
        ({"year": {"$in": list(range(5000))}}, [1]),
        ({"new": True}, [1]),
        ({"new": False}, [2]),
        ({"new": None}, [3]),
        ({"new": 1}, []),
        ({"new": {"$in": [None, True]}}, [1, 3]),
        ({"new": {"$ne": True}}, [0, 2, 3, 4]),
        ({"new": {"$exists": True}}, [1, 2, 3]),
        ({"new": {"$exists": False}}, [0, 4]),
        ({"author.name": "Ann"}, [1]),
        ({"author.name": {"$in": ["Ann", "Bo"]}}, [1, 2]),
        ({"author.born": {"$lt": 2000}}, [1]),
        ({"author": "Ann"}, [4]),
        ({"author.name.first": "A"}, []),
        ({"year.0": 1999}, []),
        ({"été": "ö😀"}, [4]),
        ({'a"b': 1}, [4]),
        ({"": "empty"}, [4]),
        ({"c\\d": {"$gt": 1}}, [4]),
        ({"labels": "cat"}, [1, 2]),
        ({"labels": {"$eq": "dog"}}, [2]),
        ({"labels": {"$ne": "cat"}}, [0, 3, 4]),
        ({"labels": {"$in": ["dog", 7]}}, [2, 3]),
        ({"labels": {"$in": []}}, []),
        ({"labels": 7}, [3]),
        ({"labels": 7.0}, [3]),
        ({"labels": "7"}, [4]),
        ({"labels": {"$exists": True}}, [1, 2, 3, 4]),
        ({"labels": {"$exists": False}}, [0]),
        ({"$and": [{"labels": "cat"}, {"new": True}]}, [1]),
        ({"$and": []}, [0, 1, 2, 3, 4]),
        ({"$or": [{"labels": 7}, {"new": True}]}, [1, 3]),
        ({"$or": []}, []),
        ({"$not": {"year": {"$exists": True}}}, [0]),
        ({"$not": {}}, []),
        ({"labels": "cat", "new": False}, [2]),
    ],
)
def test_examples(where: dict[str, Any], expected: list[int]) -> None:
    assert select_by_sql(where, ROWS) == expected
    assert [r for r, row in enumerate(ROWS) if matches(where, row)] == expected


# Few names and values, so that conditions meet what is stored; odd ones among them.
NAMES = st.sampled_from(
    ["a", "b", "a b", "é", "😀", 'q"', '"', "'", "\\", '\\"', "$", "[0]", "", "\n", "x\\u0041", "*"]
)
KEYS = st.one_of(NAMES, st.text(max_size=3)).filter(lambda name: "." not in name and "\0" not in name)
TEXTS = st.one_of(st.sampled_from(["", "1", "1.0", "true", "null", "é", "a\\u0041", '"']), st.text(max_size=3)).filter(
    lambda text: "\0" not in text
)
NUMBERS = st.one_of(
    st.integers(-2, 2),
    st.sampled_from([0.5, 1.0, -0.0, 1e300, 5e-324, 0.1, 2.0**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**30]),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)
VALUES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
METADATA = st.none() | st.dictionaries(
    KEYS, st.recursive(VALUES, lambda deeper: st.lists(deeper, max_size=2) | st.dictionaries(KEYS, deeper, max_size=2))
)
LABELS = st.lists(NUMBERS | TEXTS, max_size=3)
FIELDS = st.lists(KEYS, min_size=1, max_size=3).map(".".join).filter(lambda key: key[:1] != "$" and key != "labels")
FIELD_TESTS = st.one_of(
    VALUES,
    st.dictionaries(st.sampled_from(["$eq", "$ne"]), VALUES, min_size=1),
    st.dictionaries(st.sampled_from(list(COMPARE)), NUMBERS | TEXTS, min_size=1),
    st.builds(dict, **{"$in": st.lists(VALUES, max_size=4)}),
    st.builds(dict, **{"$exists": st.booleans()}),
)
LABEL_TESTS = st.one_of(
    NUMBERS | TEXTS,
    st.dictionaries(st.sampled_from(["$eq", "$ne"]), NUMBERS | TEXTS, min_size=1),
    st.builds(dict, **{"$in": st.lists(NUMBERS | TEXTS, max_size=4)}),
    st.builds(dict, **{"$exists": st.booleans()}),
)
PLAIN = st.dictionaries(FIELDS, FIELD_TESTS, max_size=2) | st.builds(dict, labels=LABEL_TESTS)
WHERE = st.recursive(
    PLAIN,
    lambda deeper: st.one_of(
        st.dictionaries(st.sampled_from(["$and", "$or"]), st.lists(deeper, max_size=3), min_size=1),
        st.builds(dict, **{"$not": deeper}),
    ),
    max_leaves=6,
)


@st.composite
def conditions_and_rows(draw: st.DrawFn) -> tuple[dict[str, Any], list[Row]]:
    """Draw a condition and rows, most of which have the fields of the condition."""
    where, rows = draw(WHERE), draw(st.lists(st.tuples(LABELS, METADATA), max_size=4))
    for field, value in operands(where):
        data: Any = value if draw(st.booleans()) else draw(VALUES)
        if field == "labels":
            rows.append(([value] if kind(value) in ("text", "number") else [], None))
            continue
        for part in reversed(field.split(".")):
            data = {part: data}
        rows.append((draw(LABELS), data))
    return where, rows


def operands(where: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return all fields of a condition with the values they are compared with."""
    values: list[tuple[str, Any]] = []
    for key, operand in where.items():
        if key.startswith("$"):
            for part in operand if isinstance(operand, list) else [operand]:
                values += operands(part)
        else:
            tests = operand if isinstance(operand, dict) else {"$eq": operand}
            values += [(key, each) for v in tests.values() for each in (v if isinstance(v, list) else [v])]
    return values


@pytest.mark.slow
@settings(max_examples=200)
@given(conditions_and_rows())
@example(({"a": 0.30000000000000004}, [([], {"a": 0.30000000000000004})]))
@example(({"a": {"$gte": 2**63}}, [([], {"a": 2**63}), ([], {"a": 2**63 - 1}), ([], {"a": -(2**63)})]))
def test_sql_chooses_what_python_does(case: tuple[dict[str, Any], list[Row]]) -> None:
    where, rows = case
    assert select_by_sql(where, rows) == [r for r, row in enumerate(rows) if matches(where, row)]


@settings(max_examples=200)
@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**200), 2**200))
def test_every_number_equals_itself(number: float) -> None:
    rows: list[Row] = [([], {"a": number}), ([], {"a": -number}), ([number], None)]
    same_sign = [0, 1] if number == 0 else [0]
    assert select_by_sql({"a": number}, rows) == same_sign
    assert select_by_sql({"a": {"$gte": number, "$lte": number}}, rows) == same_sign
    assert select_by_sql({"labels": number}, rows) == [2]


# ---- what is refused ----

DEEP: dict[str, Any] = {"a": 1}
for _ in range(MAX_FILTER_DEPTH + 1):
    DEEP = {"$not": DEEP}


@pytest.mark.parametrize(
    ("where", "match"),
    [
        ([], "^where:"),
        ("a = 1", "^where:"),
        ({1: 2}, "^where:"),
        ({"$and": {"a": 1}}, r"^where: \$and:"),
        ({"$or": "a"}, r"^where: \$or:"),
        ({"$or": [1]}, "^where:"),
        ({"$not": [{"a": 1}]}, "^where:"),
        ({"$nor": []}, "^where:"),
        ({"$gt": 3}, "^where:"),
        ({"a": {}}, "^where: a:"),
        ({"a": {"b": 1}}, "^where: a:"),
        ({"a": {"$gt": 1, "b": 1}}, "^where: a:"),
        ({"a": {1: 1}}, "^where: a:"),
        ({"a": {"$regex": "x"}}, "^where:"),
        ({"a": {"$in": 3}}, r"^where: a: \$in"),
        ({"a": {"$in": "abc"}}, r"^where: a: \$in"),
        ({"a": {"$in": [[1]]}}, "^where: a:"),
        ({"a": {"$exists": 1}}, r"^where: a: \$exists"),
        ({"a": [1, 2]}, "^where: a:"),
        ({"a": {"$eq": {"b": 1}}}, "^where: a:"),
        ({"a": {"$ne": b"x"}}, "^where: a:"),
        ({"a": {"$gt": None}}, r"^where: a: \$gt"),
        ({"a": {"$lt": True}}, r"^where: a: \$lt"),
        ({"a": {"$lte": [1]}}, r"^where: a: \$lte"),
        ({"a": float("nan")}, "^where: a:"),
        ({"a": {"$gt": float("inf")}}, "^where: a:"),
        ({"a": {"$in": [1, float("-inf")]}}, "^where: a:"),
        ({"a": 10**400}, "^where: a:"),
        ({"a": 10**5000}, "^where: a:"),
        ({"a": "x\0y"}, "^where: a:"),
        ({"x\0y": 1}, "^where:"),
        ({"labels": None}, "^where: labels:"),
        ({"labels": ["cat"]}, "^where: labels:"),
        ({"labels": {"$in": "cat"}}, r"^where: labels: \$in"),
        ({"labels": {"$in": [["cat"]]}}, "^where: labels:"),
        ({"labels": {"$gt": 3}}, "^where: labels:"),
        ({"labels": {"$exists": 1}}, "^where: labels:"),
        ({"labels": float("nan")}, "^where: labels:"),
        (DEEP, "^where:"),
        ({"$or": [{"a": i} for i in range(MAX_FILTER_CONDITIONS + 2)]}, "^where:"),
        ({f"f{i}": {"$exists": True} for i in range(MAX_FILTER_CONDITIONS + 2)}, "^where:"),
    ],
)
def test_invalid_conditions_are_refused(where: Any, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        compile_filter(where)


def nested(kind: type, levels: int = 100_000) -> Any:
    """Return lists in lists, or conditions in conditions."""
    value: Any = []
    for _ in range(levels):
        value = [value] if kind is list else {"a": value}
    return value


@pytest.mark.parametrize(
    "make",  # where they are used: so many objects would slow down each collection of garbage
    [
        lambda: nested(list),
        lambda: nested(dict),
        lambda: {"a": nested(list)},
        lambda: {"a": {"$in": nested(list)}},
        lambda: {"a": {"$in": [nested(dict)]}},
        lambda: {"a": {"$exists": nested(list)}},
        lambda: {"$and": nested(list)},
        lambda: {"$not": nested(list)},
        lambda: {"labels": nested(list)},
        lambda: {"a": [10**5000]},
        lambda: {"a": {"$in": ["x" * 10**6, {}]}},
        lambda: {"$and": [{}] * 10**6},
        lambda: {"$or": [{"$or": [{"$or": [{"a": 1}] * 100}] * 100}] * 100},
        lambda: {f"f{n}": 1 for n in range(10**5)},
        lambda: {"a": {f"$gt{n}": 1 for n in range(10**5)}},
    ],
)
def test_conditions_of_any_depth_and_number_are_refused_in_a_few_words(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInput, match=r"^where: ") as refusal:
        compile_filter(make())
    assert len(str(refusal.value)) < 1000


def test_parts_are_counted_only_as_far_as_they_matter() -> None:
    assert count_parts({"a": {"$gt": 1, "$lt": 3}, "$or": [{"b": 1}, {"$not": {"c": 2}}]}) == 13
    assert count_parts({"$and": [{"a": 1}] * 10**6}) > MAX_FILTER_PARTS
    wrapped: dict[str, Any] = {"a": {"$exists": True}}
    for _ in range(MAX_FILTER_DEPTH - 1):
        wrapped = {"$and": [wrapped]}
    compile_filter({"$or": [wrapped] * MAX_FILTER_CONDITIONS})  # the most that the other limits accept


def test_largest_accepted_conditions_run() -> None:
    wide: dict[str, Any] = {"$or": [{f"f{i}": {"$exists": True}} for i in range(MAX_FILTER_CONDITIONS)]}
    first, last, listed, both = ({"a": {"$in": [1, "a", None], "$lt": 2}} for _ in range(4))
    for _ in range(MAX_FILTER_DEPTH):
        first = {"$not": first, "b": {"$exists": False}, "c": 1}
        last = {"b": {"$exists": False}, "$not": last}
        listed = {"b": {"$ne": 1}, "$or": [{"c": 1}, listed]}
    for _ in range(MAX_FILTER_DEPTH // 2):
        both = {"b": {"$exists": False}, "$or": [{"b": {"$ne": 1}}, {"c": {"$ne": 1}, "$not": both}]}
    rows: list[Row] = [([], {"a": 1}), ([], {"f499": 1}), ([], None)]
    for where in (wide, first, last, listed, both):
        assert select_by_sql(where, rows) == [r for r, row in enumerate(rows) if matches(where, row)]


def test_lone_surrogates_are_accepted() -> None:
    rows: list[Row] = [(["\ud800"], {"a": "\ud800", "\udfff": 1}), ([], {"a": "?"})]
    for where in ({"a": "\ud800"}, {"labels": "\ud800"}, {"\udfff": 1}):
        assert select_by_sql(where, rows) == [0]


@pytest.mark.parametrize(
    "attack",
    [
        "'; DROP TABLE items; --",
        '" OR 1=1 --',
        "') OR ('1'='1",
        '$."a"',
        "a') IS NULL OR json_type(metadata, '$",
        "?",
        "%",
    ],
)
def test_sql_in_names_and_values_is_inert(attack: str) -> None:
    rows: list[Row] = [([], {"a": 1}), ([attack], {"a": attack}), ([], {attack.replace(".", "_"): "here"})]
    name = attack.replace(".", "_")
    if not name.startswith("$"):
        assert select_by_sql({name: "here"}, rows) == [2]
        assert select_by_sql({name: {"$exists": True}}, rows) == [2]
    assert select_by_sql({"a": attack}, rows) == [1]
    assert select_by_sql({"a": {"$gte": attack, "$lte": attack}}, rows) == [1]
    assert select_by_sql({"a": {"$in": [attack, "other"]}}, rows) == [1]
    assert select_by_sql({"labels": attack}, rows) == [1]
    with pytest.raises(InvalidInput):
        compile_filter({"a": {f"$gt {attack}": 1}})


def test_a_condition_that_takes_too_long_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection, twin = begin(tmp_path / "c", filter_fields=[])
    where = {"$or": [{"n": number} for number in range(200)]}
    expected = [hit.id for hit in collection.search(some_rows(1).X[0], 5, where=where).hits]
    collection.add(["new"], some_rows(1).X)
    with monkeypatch.context() as patch:
        patch.setattr(items, "MAX_SQL_SECONDS", 0)
        with pytest.raises(TooLarge, match=r"^where: expected a condition that SQL answers within"):
            collection.search(some_rows(1).X[0], 5, where=where)
    assert [hit.id for hit in collection.search(some_rows(1).X[0], 5, where=where).hits] == expected
    agree(collection, twin, some_rows(1).X[0], 5, where)
    collection.close()


def test_a_long_name_of_a_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^where: expected names of fields up to 1000 characters, got 5000000"):
        compile_filter({"a." * 2_500_000: 1})
