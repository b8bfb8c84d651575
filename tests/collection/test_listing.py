"""Counting and listing items: `count(where)` and `ids(where)` agree with the reference model, page by page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash.errors import InvalidInput, WrongType
from tests.collection.fixtures import begin, some_rows
from tests.collection.reference import Id, Twin, matches

pytestmark = pytest.mark.filterwarnings("ignore::stillhash.errors.UnknownField")
FILTERS: list[Any] = [
    None,
    {},
    {"odd": True},
    {"n": {"$lt": 40}},
    {"labels": "a", "odd": False},
    {"$or": [{"tone": 0.25}, {"labels": {"$in": ["b", "c"]}}]},
    {"n": 7},
    {"none": 1},
]


def expected_ids(twin: Twin, where: Any) -> list[Id]:
    names = [i for i, entry in twin.items.items() if matches(where or {}, (entry.labels, entry.metadata))]
    return sorted(names, key=lambda name: (isinstance(name, str), name))


def check_lists(collection: stillhash.Collection, twin: Twin) -> None:
    for where in FILTERS:
        expected = expected_ids(twin, where)
        assert collection.count(where) == len(expected)
        assert collection.ids(where) == expected
        for limit in (1, 7, 200):
            pages: list[Id] = []
            while page := collection.ids(where, after=pages[-1] if pages else None, limit=limit):
                assert len(page) <= limit
                pages += page
                if limit == 1 and len(pages) > 5:
                    break
            assert pages == (expected[: len(pages)] if limit == 1 else expected)


def test_lists_follow_every_write(tmp_path: Path) -> None:
    collection, twin = begin(tmp_path / "c", 200)
    with collection:
        check_lists(collection, twin)  # before hash functions
        more = some_rows(150, seed=3)
        collection.upsert([*(f"t{r}" for r in range(145)), 0, 5, 9, "a", "b"], *more)
        twin.put([*(f"t{r}" for r in range(145)), 0, 5, 9, "a", "b"], *more)
        check_lists(collection, twin)
        collection.seal()
        check_lists(collection, twin)
        gone: list[Id] = [1, 2, 3, "t7", "b"]
        collection.delete(gone)
        twin.delete(gone)
        collection.relabel(["t1", 10], [["a", "c"], []])
        for name, labels in (("t1", ["a", "c"]), (10, [])):
            twin.items[name].labels = labels
        check_lists(collection, twin)
        collection.compact()
        check_lists(collection, twin)
    with stillhash.open(tmp_path / "c", read_only=True) as collection:
        check_lists(collection, twin)


def test_ids_past_one_that_does_not_exist(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 30)
    collection.upsert(["x", "z"], *some_rows(2))
    assert collection.ids(after=27) == [28, 29, "x", "z"]
    assert collection.ids(after=-5, limit=2) == [0, 1]
    assert collection.ids(after="y") == ["z"]
    assert collection.ids(after="zz") == []
    assert collection.ids({"n": {"$gte": 28}}, after=27) == [28, 29]


def test_what_is_no_condition_limit_or_id_is_refused(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 5)
    with pytest.raises(InvalidInput, match=r"^where:"):
        collection.count({"a": {}})
    with pytest.raises(InvalidInput, match=r"^where:"):
        collection.ids({"a": {}})
    with pytest.raises(InvalidInput, match=r"^limit:"):
        collection.ids(limit=0)
    with pytest.raises(WrongType, match=r"^ids"):
        collection.ids(after=1.5)  # type: ignore[arg-type]
