"""Columns: filters select by them exactly what SQL selects, whatever the metadata."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stillhash.collection.filters.columns import NotInColumns, RowGroup, column_tree
from stillhash.collection.filters.language import compared_fields, compile_filter, count_joins
from stillhash.collection.storage import columns
from stillhash.collection.storage.columns import (
    LABELS,
    MAX_FIELDS,
    DictionaryColumn,
    NumberColumn,
    TableBuilder,
    column_bytes,
)
from stillhash.collection.validation import check_label_lists, check_metadata
from tests.collection.reference import Row
from tests.collection.test_filters import NUMBERS, ROWS, TEXTS, conditions_and_rows, select_by_sql


def stored(rows: list[Row]) -> tuple[list[str], list[str | None]]:
    """Return labels and metadata as they are stored."""
    labels = check_label_lists([labels for labels, _ in rows], len(rows))
    return list(map(json.dumps, labels)), check_metadata([data for _, data in rows], len(rows))


def build(rows: list[Row], chunk: int = 2, named: list[str] | None = None) -> TableBuilder:
    builder = TableBuilder(named)
    labels, metadata = stored(rows)
    for start in range(0, len(rows), chunk):
        builder.append(labels[start : start + chunk], metadata[start : start + chunk])
    return builder


def select_by_columns(where: dict[str, Any], rows: list[Row], named: list[str] | None = None) -> list[int]:
    """Return the rows that columns select; raise NotInColumns if they cannot."""
    condition = compile_filter(where)
    builder = build(rows, named=named)
    fields, labels = compared_fields(condition.tree)
    selected: list[list[int]] = []
    for source in (builder, builder.freeze()):
        group = RowGroup(0, None, source, source.rows)
        columns = {name: group.column(name) for name in (*fields, *([LABELS] if labels else []))}
        bitmap = np.zeros(-(-len(rows) // 8), np.uint8)
        group.set_matches(column_tree(condition.tree), columns, bitmap)
        selected.append(np.flatnonzero(np.unpackbits(bitmap, bitorder="little")).tolist())
    assert selected[0] == selected[1]
    return selected[0]


@pytest.mark.medium
@settings(max_examples=300)
@given(conditions_and_rows())
@example(({"a": {"$gte": 2**63}}, [([], {"a": 2**63}), ([], {"a": 2**63 - 1}), ([], {"a": -(2**63)})]))
@example(({"a": {"$gt": 2**53}}, [([], {"a": 2**53 + 1}), ([], {"a": 2.0**53})]))
@example(({"a": {"$lt": 2**53 + 1}}, [([], {"a": 2.0**53}), ([], {"a": 2.0**53 + 2}), ([], {"a": 0.5})]))
@example(({"a": {"$lt": 0.0}}, [([], {"a": -0.0}), ([], {"a": -5e-324})]))
@example(({"a": {"$in": [True, 1]}}, [([], {"a": 1}), ([], {"a": True}), ([], {"a": 1.0}), ([], {"a": 0})]))
@example(({"a.b": {"$exists": True}}, [([], {"a": {"b": None}}), ([], {"a.b": 1}), ([], {"a": []})]))
@example(({"a": {"$in": [9, 1, 3, 5, 7, 11, 2.5]}}, [([], {"a": n / 2}) for n in range(20)]))
def test_columns_choose_what_sql_does(case: tuple[dict[str, Any], list[Row]]) -> None:
    where, rows = case
    sql = compile_filter(where).sql[0]
    assert count_joins(compile_filter(where).tree) == sql.count(" AND ") + sql.count(" OR ")
    try:
        assert select_by_columns(where, rows) == select_by_sql(where, rows)
    except NotInColumns:  # then SQL answers; what that needs is tested below
        texts = json.dumps([where, rows])
        large = any(abs(n) > 2**53 for n in numbers_of([data for _, data in rows] + [labels for labels, _ in rows]))
        assert "\\ud" in texts or large


def numbers_of(data: Any) -> list[float]:
    """Return all numbers in this, however deep."""
    if isinstance(data, dict | list):
        below = data.values() if isinstance(data, dict) else data
        return [number for each in below for number in numbers_of(each)]
    return [data] if type(data) in (int, float) else []


@pytest.mark.medium
@settings(max_examples=100)
@given(
    st.lists(TEXTS | NUMBERS, max_size=12), st.lists(TEXTS | NUMBERS | st.none(), min_size=5, max_size=30), st.data()
)
def test_long_lists_choose_what_sql_does(stored_values: list[Any], values: list[Any], data: st.DataObject) -> None:
    rows: list[Row] = [([value], {"a": value}) for value in (*stored_values, *data.draw(st.permutations(values))[:4])]
    rows = [([] if label is None else [label], metadata) for (label,), metadata in rows]
    labels = [value for value in values if value is not None]
    for where in ({"a": {"$in": values}}, {"labels": {"$in": labels}}):
        with suppress(NotInColumns):
            assert select_by_columns(where, rows) == select_by_sql(where, rows)


MANY = st.lists(
    st.one_of(st.integers(-300, 300), st.integers(-(2**62), 2**62), st.none(), st.booleans()), min_size=1, max_size=40
)
BOUNDS = st.one_of(st.integers(-(2**65), 2**65), st.floats(allow_nan=False, allow_infinity=False), st.integers(-9, 9))


@settings(max_examples=100)
@given(MANY, st.sampled_from(["$gt", "$gte", "$lt", "$lte", "$eq", "$ne"]), BOUNDS, st.booleans())
def test_numbers_compare_as_in_sql_when_they_are_not_listed(
    values: list[Any], operator: str, bound: float, halves: bool
) -> None:
    rows: list[Row] = [([], {"a": value}) for value in values if not halves or value is None or abs(value) < 2**53]
    rows += [([], {"a": 0.5})] * halves
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "MAX_CATEGORIES", 0)
        assert isinstance(build(rows).column("a"), NumberColumn) or not rows
        for where in ({"a": {operator: bound}}, {"a": {"$in": [bound, *values[::2]]}}, {"a": {"$exists": True}}):
            assert select_by_columns(where, rows) == select_by_sql(where, rows)


@pytest.mark.parametrize(
    ("value", "where"),
    [("\ud800", {"a": "x"}), ("x", {"a": "\ud800"}), (10**400, {"a": 1})],
)
def test_what_columns_cannot_compare_is_left_to_sql(value: Any, where: dict[str, Any]) -> None:
    with pytest.raises(NotInColumns):
        select_by_columns(where, [([], {"a": value})])


def test_integers_and_doubles_that_no_array_holds_are_left_to_sql() -> None:
    with pytest.raises(NotInColumns):
        select_by_columns({"a": 1}, [([], {"a": 2**53 + 1}), ([], {"a": 0.5})])


def test_named_fields_alone_get_columns() -> None:
    named = ["year", "author.name", "none"]
    assert select_by_columns({"author.name": "Ann", "year": 1999, "none": {"$exists": False}}, ROWS, named) == [1]
    for where in ({"author": "Ann"}, {"new": True}):
        with pytest.raises(NotInColumns):
            select_by_columns(where, ROWS, named)
    assert build(ROWS, named=named).names() == [LABELS, *named]


def test_fields_past_the_most_are_left_to_sql() -> None:
    rows: list[Row] = [([], {f"f{r}": r, "shared": 1}) for r in range(2 * MAX_FIELDS)]
    builder = build(rows)
    assert len(builder.names()) <= 1 + MAX_FIELDS and not builder.complete
    assert select_by_columns({"f0": 0, "shared": 1}, rows) == [0]
    with pytest.raises(NotInColumns):
        select_by_columns({f"f{2 * MAX_FIELDS - 1}": 1}, rows)


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (lambda r: r * 1.37, 9),  # numbers, all different
        (lambda r: r * 1.37 if r % 3 else None, 9),
        (lambda r: 10**15 + r, 9),
        (lambda r: f"kind {r % 7}", 5),
        (lambda r: f"kind {r % 1000}", 5),
        (lambda r: r % 2 == 0, 5),
        (lambda r: 1990 + r % 30, 5),
    ],
)
def test_bytes_of_an_item(make: Any, limit: int) -> None:
    rows: list[Row] = [([], {"a": make(r)}) for r in range(70_000)]
    column = build(rows, chunk=7000).column("a")
    assert column is not None and column_bytes(column) <= limit * len(rows)


@pytest.mark.medium
def test_codes_are_as_small_as_their_values_allow() -> None:
    for distinct, kind in ((200, np.uint8), (300, np.uint16), (70_000, np.uint32)):
        column = build([([], {"a": f"v{r % distinct}"}) for r in range(70_000)], chunk=7000).column("a")
        assert isinstance(column, DictionaryColumn) and column.codes.dtype == kind
