"""Everyday values, in one table each: what is stored of a value as id, metadata, label and feature, or its error.

A filter with the same value finds what was stored.
"""

from __future__ import annotations

import enum
import warnings
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse

import stillhash
from stillhash import Collection, Index, Item
from stillhash.collection.validation import check_ids, check_label_lists, check_metadata
from stillhash.errors import InvalidInput, UnknownField, WrongType
from stillhash.numeric.labels import parse_labels
from stillhash.numeric.validation import check_features
from tests.collection.fixtures import BITS, DIM, some_rows

NUMBER = UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2024, 5, 6, 12, 0, 0, 250_000)
EAST = timezone(timedelta(hours=2))
ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)
REFUSED = object()  # in the place of a stored value


class Colour(enum.Enum):
    RED = "red"
    DAY = date(2024, 5, 6)
    PAIR = (1, 2)


class Level(enum.IntEnum):
    HIGH = 3


class Kind(enum.StrEnum):
    CAT = "cat"


class Loud(str):
    def __str__(self) -> str:
        return self.upper()


# value, then what is stored of it: as an id, in metadata, as a label
SCALARS: list[tuple[Any, Any, Any, Any]] = [
    ("x", "x", "x", "x"),
    (5, 5, 5, 5),
    (2.5, REFUSED, 2.5, 2.5),
    (2.0, REFUSED, 2.0, 2),
    (True, REFUSED, True, 1),
    (None, REFUSED, None, REFUSED),
    (np.int64(5), 5, 5, 5),
    (np.uint8(5), 5, 5, 5),
    (np.float32(2.5), REFUSED, 2.5, 2.5),
    (np.float16(0.5), REFUSED, 0.5, 0.5),
    (np.longdouble(2.5), REFUSED, 2.5, 2.5),
    (np.bool_(True), REFUSED, True, 1),
    (np.str_("x"), "x", "x", "x"),
    (np.bytes_(b"x"), REFUSED, REFUSED, REFUSED),
    (np.complex64(1), REFUSED, REFUSED, REFUSED),
    (np.datetime64("2024-05-06"), "2024-05-06", "2024-05-06", "2024-05-06"),
    (np.datetime64(NOON), NOON.isoformat(), NOON.isoformat(), NOON.isoformat()),
    (np.datetime64(NOON, "ns"), NOON.isoformat(), NOON.isoformat(), NOON.isoformat()),
    (np.datetime64(1, "ns"), *["1970-01-01T00:00:00.000000001"] * 3),
    (np.datetime64("NaT", "s"), REFUSED, None, REFUSED),
    (np.timedelta64(5, "ns"), REFUSED, REFUSED, REFUSED),
    (np.timedelta64(5, "D"), REFUSED, REFUSED, REFUSED),
    (date(2024, 5, 6), "2024-05-06", "2024-05-06", "2024-05-06"),
    (NOON, *["2024-05-06T12:00:00.250000"] * 3),
    (NOON.replace(tzinfo=EAST), *["2024-05-06T10:00:00.250000+00:00"] * 3),
    (datetime(1, 1, 1, tzinfo=EAST), REFUSED, REFUSED, REFUSED),
    (time(12), REFUSED, REFUSED, REFUSED),
    (timedelta(1), REFUSED, REFUSED, REFUSED),
    (NUMBER, str(NUMBER), str(NUMBER), str(NUMBER)),
    (PurePosixPath("a/b"), "a/b", "a/b", "a/b"),
    (Decimal(7), REFUSED, 7, 7),
    (Decimal("7.00"), REFUSED, 7, 7),
    (Decimal("0.1"), REFUSED, 0.1, 0.1),
    (Decimal("1e400"), REFUSED, REFUSED, REFUSED),
    (Decimal("nan"), REFUSED, REFUSED, REFUSED),
    (Decimal("snan"), REFUSED, REFUSED, REFUSED),
    (Fraction(1, 2), REFUSED, REFUSED, REFUSED),
    (Colour.RED, "red", "red", "red"),
    (Colour.DAY, "2024-05-06", "2024-05-06", "2024-05-06"),
    (Colour.PAIR, REFUSED, [1, 2], REFUSED),
    (Level.HIGH, 3, 3, 3),
    (Kind.CAT, "cat", "cat", "cat"),
    (Loud("x"), "x", "x", "x"),
    (pd.Timestamp(NOON), NOON.isoformat(), NOON.isoformat(), NOON.isoformat()),
    (pd.Timestamp(NOON, tz=UTC), *[NOON.isoformat() + "+00:00"] * 3),
    (pd.NaT, REFUSED, None, REFUSED),
    (pd.NA, REFUSED, None, REFUSED),
    (pd.Timedelta(1), REFUSED, REFUSED, REFUSED),
    (float("nan"), REFUSED, REFUSED, REFUSED),
    (np.float32("inf"), REFUSED, REFUSED, REFUSED),
    (b"x", REFUSED, REFUSED, REFUSED),
    ({1, 2}, REFUSED, REFUSED, REFUSED),
    (np.arange(2), REFUSED, [0, 1], REFUSED),
    (np.array([[0.5], [1]]), REFUSED, [[0.5], [1.0]], REFUSED),
    (np.array(3), 3, 3, REFUSED),
    (np.array([np.datetime64("2024-05-06")]), REFUSED, ["2024-05-06"], REFUSED),
    (np.array([Colour.RED], object), REFUSED, ["red"], REFUSED),
    (np.array([np.nan]), REFUSED, REFUSED, REFUSED),
    (np.zeros(1 << 20), REFUSED, REFUSED, REFUSED),
    ([NUMBER, (NOON, {"a": Level.HIGH})], REFUSED, [str(NUMBER), [NOON.isoformat(), {"a": 3}]], REFUSED),
    (3j, REFUSED, REFUSED, REFUSED),
    (object(), REFUSED, REFUSED, REFUSED),
]


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    return stillhash.open(tmp_path_factory.mktemp("values") / "c", DIM, BITS)


def label(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:20]}"


@pytest.mark.medium
@pytest.mark.parametrize("row", SCALARS, ids=lambda row: label(row[0]))
def test_scalars(collection: Collection, row: tuple[Any, Any, Any, Any]) -> None:
    value, *stored = row
    calls = (
        lambda: collection.upsert([value], some_rows(1).X),
        lambda: collection.upsert(["m"], some_rows(1).X, None, [{"when": value}]),
        lambda: collection.upsert(["l"], some_rows(1).X, [[value]]),
    )
    for call, expected, name in zip(calls, stored, (r"ids\[0\]", r"metadata\[0\]\['when'\]", "labels"), strict=True):
        if expected is REFUSED:
            with pytest.raises(InvalidInput, match=rf"^{name}.*: expected .*, got |^metadata\[0\]: expected"):
                call()
        else:
            assert call() == 1
    id_, metadata, name = stored
    if id_ is not REFUSED:
        item = collection.get(value)
        assert item == collection.get(id_) == Item(id_, [], None)
        assert type(item.id) is type(id_) and collection.get([value, value]) == [item, item]
        assert collection.ids(after=value) == collection.ids(after=id_)
        assert collection.delete([value]) == 1 and collection.get(id_) is None
    if metadata is not REFUSED:
        item = collection.get("m")
        assert item.metadata == {"when": metadata} and type(item.metadata["when"]) is type(metadata)
        if not isinstance(metadata, list):
            for where in (value, {"$in": [value]}, {"$in": (value, 77)}):
                assert collection.ids({"when": where}) == ["m"]
            if metadata is not None and not isinstance(metadata, bool):
                assert collection.ids({"when": {"$gte": value, "$lte": value}}) == ["m"]
    if name is not REFUSED:
        item = collection.get("l")
        assert item.labels == [name] and type(item.labels[0]) is type(name)
        assert collection.ids({"labels": value}) == collection.ids({"labels": {"$in": {value}}}) == ["l"]
    with pytest.raises(InvalidInput, match=r"^where"):
        collection.count({"when": {"$in": [object()]}})


def test_a_refused_value_is_named_with_its_place() -> None:
    rows = [{}, {"list": [1, {"deep": timedelta(1)}]}]
    with pytest.raises(WrongType, match=r"^metadata\[1\]\['list'\]\[1\]\['deep'\]: expected .*, got timedelta$"):
        check_metadata(rows, 2)
    with pytest.raises(InvalidInput, match=r"^metadata\[0\]\['a'\]: expected a finite number, got nan$"):
        check_metadata([{"a": np.float32("nan")}], 1)
    with pytest.raises(WrongType, match=r"^ids\[1\]: "):
        check_ids([1, 2.5])
    with pytest.raises(WrongType, match=r"^metadata: expected a list .*DataFrame"):
        check_metadata(pd.DataFrame({"a": [1]}), 1)


@pytest.mark.parametrize(
    "ids",
    [
        np.array([1, 2]),
        pd.Series([1, 2]),
        pl.Series([1, 2]),
        pd.Index([1, 2]),
        iter([1, 2]),
        range(1, 3),
        (np.int8(1), Level(3) - 1),
    ],
)
def test_ids_of_any_list(ids: Any) -> None:
    assert check_ids(ids) == [1, 2]


# labels of three rows, as stored
NAMED = [["a"], [], ["b"]]
BOTH = [["a", "b"], [], ["b"]]
TABLE = {"a": [1, 0, 0], "b": [1, 0, 1]}
LABELS: list[tuple[Any, Any]] = [
    (["a", None, "b"], NAMED),
    (["a", float("nan"), "b"], NAMED),
    (["a", pd.NA, "b"], NAMED),
    (["a", pd.NaT, "b"], NAMED),
    ([("a", "b"), (), ("b",)], BOTH),
    ([{"a", "b"}, set(), frozenset({"b"})], BOTH),
    ([np.array(["b", "a"]), None, np.str_("b")], BOTH),
    (np.array([3, 1, 3]), [[3], [1], [3]]),
    (np.array([3, np.nan, 1]), [[3], [], [1]]),
    (np.ma.array([3, 1, 2], mask=[0, 1, 0]), [[3], [], [2]]),
    (np.array(["2024-05-06", "NaT", "2024-05-07"], "M8[ns]"), [["2024-05-06T00:00:00"], [], ["2024-05-07T00:00:00"]]),
    (pd.Series(["a", None, "b"]), NAMED),
    (pd.Series(["a", None, "b"], dtype="string"), NAMED),
    (pd.Series(["a", None, "b"], dtype="category"), NAMED),
    (pd.Series([3, None, 1]), [[3], [], [1]]),
    (pd.Series([3, None, 1], dtype="Int64"), [[3], [], [1]]),
    (pd.Series([["a", "b"], None, ("b",)]), BOTH),
    (pd.Series([NOON, pd.NaT, NOON]), [[NOON.isoformat()], [], [NOON.isoformat()]]),
    (pl.Series(["a", None, "b"]), NAMED),
    (pl.Series([["a", "b"], None, ["b"]]), BOTH),
    (pl.Series([3.0, float("nan"), 1.0]), [[3], [], [1]]),
    (pa.array(["a", None, "b"]), NAMED),
    (pa.chunked_array([["a"], [None, "b"]]), NAMED),
    (pd.DataFrame(TABLE), BOTH),
    (pd.DataFrame(TABLE).astype(bool), BOTH),
    (pd.DataFrame(TABLE).astype({"a": "Int64", "b": "boolean"}), BOTH),
    (pd.DataFrame(TABLE).astype({"a": bool}), BOTH),
    (pd.DataFrame(np.array(list(TABLE.values())).T, columns=[Colour.RED, NUMBER]), [[str(NUMBER), "red"], [], None]),
    (pl.DataFrame(TABLE), BOTH),
    (pa.table(TABLE), BOTH),
    (np.array(list(TABLE.values())).T, [[0, 1], [], [1]]),
    (scipy.sparse.csr_matrix(np.array(list(TABLE.values())).T), [[0, 1], [], [1]]),
    ([[Colour.RED, "red"], [Level.HIGH, 3, 3.0], [Kind.CAT]], [["red"], [3], ["cat"]]),
    ([[], ["a", "a"], []], [[], ["a"], []]),
    ([["a", None], [], []], REFUSED),
    ([["a", float("nan")], [], []], REFUSED),
    ([[timedelta(1)], [], []], REFUSED),
    ([[("a", "b")], [], []], REFUSED),
    (pd.DataFrame({"a": [1, 0, 2]}), REFUSED),
    (pd.DataFrame({"a": ["x", "y", "z"]}), REFUSED),
    (pd.DataFrame({"a": [1, None, 0]}), REFUSED),
    (pd.DataFrame([[1, 0], [1, 0], [1, 0]], columns=["a", "a"]), REFUSED),
    (pl.DataFrame({"a": [1, None, 0]}), REFUSED),
    (np.ma.array(np.eye(3), mask=np.eye(3)), REFUSED),
    ("abc", REFUSED),
    ({"a", "b", "c"}, REFUSED),
    (np.array([["a"], ["b"], ["c"]]), REFUSED),
]


@pytest.mark.parametrize(("labels", "stored"), LABELS)
def test_labels(labels: Any, stored: Any) -> None:
    if stored is REFUSED:
        with pytest.raises(InvalidInput, match=r"^labels: expected"):
            check_label_lists(labels, 3)
    else:
        expected = [stored[0][:1] if row is None else row for row in stored]
        assert check_label_lists(labels, 3) == expected


def test_a_hasher_has_labels_by_the_names_of_columns() -> None:
    labels = parse_labels(pd.DataFrame({"cat": [1, 0], "dog": [0, 1], "sea": [0, 0]}), 2)
    assert [labels.row(0), labels.row(1)] == [["cat"], ["dog"]]
    assert parse_labels([Colour.RED, Level.HIGH], 2).names == [Colour.RED, 3]  # what is hashable stays as it is


def dlpack_only(array: np.ndarray) -> Any:
    """Return an object that offers nothing but DLPack."""

    class Tensor:
        def __dlpack__(self, **options: Any) -> Any:
            return array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return array.__dlpack_device__()

    return Tensor()


FEATURES: list[tuple[Any, Any]] = [
    (ROWS, ROWS),
    (ROWS.astype(np.float16), ROWS),
    (ROWS.astype(np.longdouble), ROWS),
    (ROWS.astype(np.int8), ROWS),
    (ROWS.tolist(), ROWS),
    (tuple(map(tuple, ROWS.tolist())), ROWS),
    (list(ROWS), ROWS),
    (memoryview(ROWS), ROWS),
    (dlpack_only(ROWS), ROWS),
    ([dlpack_only(row) for row in ROWS], ROWS),
    (pd.DataFrame(ROWS), ROWS),
    (pd.DataFrame(ROWS.astype(int)).astype({0: "Int64"}), ROWS),
    (pd.Series(list(ROWS)), ROWS),
    (pd.Series(ROWS.tolist()), ROWS),
    (pl.DataFrame(ROWS), ROWS),
    (pl.Series(ROWS.tolist()), ROWS),
    (np.ma.array(ROWS), ROWS),
    (ROWS.astype(object), ROWS),
    (ROWS.astype(complex), REFUSED),
    (ROWS.astype(str), REFUSED),
    (ROWS.astype(str).astype(object), REFUSED),
    (ROWS[0], REFUSED),
    (ROWS[None], REFUSED),
    ([[1.0], [1.0, 2.0]], REFUSED),
    (ROWS * np.float32("nan"), REFUSED),
    (ROWS + np.float32("inf"), REFUSED),
    (ROWS.astype("M8[ns]"), REFUSED),
    ([[None, 1]], REFUSED),
    ([{}], REFUSED),
    ([{1.0, 2.0}], REFUSED),
    (["ab", "cd"], REFUSED),
    (pd.Series(["ab", "cd"]), REFUSED),
    (pd.DataFrame({"a": [1, None]}), REFUSED),
    (pd.DataFrame({"a": pd.array([1, None])}), REFUSED),
    (pd.Series([[1.0], [1.0, 2.0]]), REFUSED),
    (np.ma.array(ROWS, mask=ROWS > 2), REFUSED),
    (scipy.sparse.csr_matrix(ROWS), REFUSED),
    (object(), REFUSED),
    (None, REFUSED),
]


@pytest.mark.parametrize(("features", "stored"), FEATURES)
def test_features(features: Any, stored: Any) -> None:
    check_rows(features, stored)


def check_rows(features: Any, stored: Any) -> None:
    if stored is REFUSED:
        with pytest.raises(InvalidInput, match=r"^features\b"):
            check_features(features, "features")
    else:
        rows = check_features(features, "features")
        assert rows.dtype == np.float32 and rows.flags.c_contiguous
        np.testing.assert_array_equal(rows, stored)


def test_features_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="tensors of torch")
    rows = torch.tensor(ROWS)
    for tensor in (rows, rows.clone().requires_grad_(), rows.half(), rows.bfloat16(), rows.T.contiguous().T):
        check_rows(tensor, ROWS)
    check_rows([row.clone().requires_grad_() for row in rows], ROWS)
    for tensor in (rows.to(torch.complex64), rows.to_sparse(), rows[0], rows + float("nan")):
        check_rows(tensor, REFUSED)
    assert check_label_lists(torch.tensor([3, 1]), 2) == [[3], [1]]


def test_features_of_jax() -> None:
    jnp = pytest.importorskip("jax.numpy", reason="arrays of jax")
    rows = jnp.asarray(ROWS)
    for array in (rows, rows.astype(jnp.float16), rows.astype(jnp.bfloat16), list(rows)):
        check_rows(array, ROWS)
    for array in (rows.astype(jnp.complex64), rows[0], rows * jnp.nan):
        check_rows(array, REFUSED)


def test_a_query_may_be_any_vector(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", 2) as collection:
        collection.add([1, 2, 3], pd.DataFrame(ROWS))
        expected = collection.search(ROWS[1])
        for query in (pd.Series(ROWS[1]), pl.Series(ROWS[1]), dlpack_only(ROWS[1]), ROWS[1].tolist()):
            assert collection.search(query) == expected


def test_features_in_place_of_weights_are_named() -> None:
    index = Index(16)
    index.add(np.zeros((3, 2), np.uint8))
    with pytest.raises(InvalidInput, match=r"^weights: expected \(m, 16\).*got \(3, 2\).*hasher\.weigh"):
        index.search(ROWS, 1)


def test_a_field_that_no_item_has_warns_once(tmp_path: Path) -> None:
    where = {"yeer": {"$gte": 1990}}
    with stillhash.open(tmp_path / "c", DIM, BITS) as collection:
        collection.count(where)  # an empty collection has no fields
        collection.add([1, 2], some_rows(2).X, None, [{"year": 1990, "author": {"name": "Ann"}}, {}])
        with pytest.warns(UnknownField, match="'yeer'") as record:
            assert collection.count(where) == 0
        assert record[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            collection.warn_unknown_fields(False)
            assert collection.count({"other": 1}) == 0
            collection.warn_unknown_fields(True)
            assert collection.count(where) == collection.count({"$not": {"yeer": 2}, "labels": "x"}) == 0
            for known in ({"year": 3}, {"author.name": "Bo"}, {"other": {"$exists": True}}):
                assert collection.count(known) == 0
        with pytest.warns(UnknownField, match=r"'author\.age'"):
            collection.search(some_rows(1).X[0], where={"$or": [{"author.age": 3}, {"year": 1990}]})
