"""Suggestions for what somebody types: all that begins so, in order; and what is near where nothing does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import stillhash
from stillhash import Collection
from stillhash.collection.filters.facets import Suggestion
from stillhash.errors import InvalidInput, WrongType
from tests.collection.fixtures import DIM

LABELS: list[list[Any]] = [["traffic light", "car"], ["car"], ["Temple", "tree"], ["tree"], ["oak-tree"], [7], []]
METADATA: list[Any] = [
    {"city": "New York", "year": 1999},
    {"city": "york", "year": 1999},
    {"city": "Kyōto", "note": "x" * 200},
    {"city": "car park"},
    None,
    {"city": True},
    {"city": "New York", "deep": {"place": "shed"}},
]
IDS: list[Any] = ["img-001", "img-002", "img-010", "Cat", 12, 120, 7]
TYPED = st.text("carteoimg-0127NYk ", min_size=1, max_size=5)


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    opened = stillhash.open(tmp_path_factory.mktemp("suggest") / "c", DIM, 16)
    opened.add(IDS, np.eye(len(IDS), DIM, dtype=np.float32), LABELS, METADATA)
    return opened


def slow_matches(collection: Collection, text: str) -> dict[tuple[str, Any, Any], int]:
    """Return the kind, field and value of all that matches, with its count, by looking at every item."""
    typed, known = text.strip().lower(), dict[tuple[str, Any, Any], int]()
    for item in collection.items():
        pairs = [("label", None, label) for label in item.labels]
        flat = {**(item.metadata or {}), **{f"deep.{k}": v for k, v in (item.metadata or {}).get("deep", {}).items()}}
        pairs += [("field", key, value) for key, value in flat.items() if type(value) in (str, int)]
        for pair in pairs:
            if len(str(pair[2])) <= 80 and begins_a_word(typed, str(pair[2]).lower()):
                known[pair] = known.get(pair, 0) + 1
        starts = {text.strip(), text.strip().lower(), text.strip().upper()}
        if any(str(item.id).startswith(start) for start in starts):
            known["id", None, item.id] = 1
    return known


def begins_a_word(typed: str, value: str) -> bool:
    places = [place for place in range(len(value)) if value.startswith(typed, place)]
    return any(place == 0 or not value[place - 1].isalnum() for place in places)


@given(text=TYPED)
@example(text="07")
@settings(max_examples=150, deadline=None)
def test_all_that_begins_so_is_suggested(collection: Collection, text: str) -> None:
    got = collection.suggest(text, 100)
    expected = slow_matches(collection, text) if text.strip() else {}
    if expected or not text.strip():
        assert {(one.kind, one.field, one.value): one.count for one in got} == expected
        assert not any(one.near for one in got)
        assert collection.suggest(text, 2) == got[:2]
    else:
        assert all(one.near for one in got)


def shown(collection: Collection, text: str) -> list[tuple[str, Any, int]]:
    return [(one.kind, one.value, one.count) for one in collection.suggest(text)]


def test_the_order_of_suggestions(collection: Collection) -> None:
    assert shown(collection, "car") == [("label", "car", 2), ("field", "car park", 1)]
    assert shown(collection, "YORK") == [("field", "york", 1), ("field", "New York", 2)]
    assert shown(collection, "tree") == [("label", "tree", 2), ("label", "oak-tree", 1)]
    assert shown(collection, "img-00") == [("id", "img-001", 1), ("id", "img-002", 1)]
    assert shown(collection, "12") == [("id", 12, 1), ("id", 120, 1)]
    assert shown(collection, "7") == [("label", 7, 1), ("id", 7, 1)]
    assert shown(collection, "199") == [("field", 1999, 2)]
    assert collection.suggest("she") == [Suggestion("field", "shed", 1, "deep.place")]
    assert collection.suggest("  ") == []


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("tempel", ("label", "Temple")),
        ("trafic", ("label", "traffic light")),
        ("a temples day", ("label", "Temple")),
        ("img-0001", ("id", "img-001")),
        ("igm-002", ("id", "img-002")),
        ("img-01", None),
        ("img-003", ("id", "img-001")),
        ("121", ("id", 12)),
        ("qqqqqqqq", None),
    ],
)
def test_near_misses(collection: Collection, text: str, nearest: Any) -> None:
    near = [one for one in collection.suggest(text) if one.near]
    if nearest is None:
        assert near == []
    else:
        assert (near[0].kind, near[0].value) == nearest


def test_suggestions_follow_writes(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", DIM, 16) as collection:
        assert collection.suggest("a") == []
        collection.add(["x"], np.ones((1, DIM), np.float32), [["apple"]])
        assert shown(collection, "a") == [("label", "apple", 1)]
        collection.relabel(["x"], [["pear"]], learn=False)
        assert collection.suggest("a") == []
        assert shown(collection, "p") == [("label", "pear", 1)]


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ((3,), WrongType, "text"),
        ((float("nan"),), WrongType, "text"),
        (("x" * 1001,), InvalidInput, "text"),
        (("\ud800",), InvalidInput, "text"),
        (("x", 0), InvalidInput, "limit"),
        (("x", 101), InvalidInput, "limit"),
        (("x", float("nan")), WrongType, "limit"),
    ],
)
def test_invalid_arguments(collection: Collection, arguments: Any, error: type[Exception], name: str) -> None:
    with pytest.raises(error, match=rf"^{name}:"):
        collection.suggest(*arguments)


@pytest.mark.parametrize("text", ["%", "_", "\0", "' OR 1=1 --", '"', "-", "--5", "9" * 30, "é" * 50])
def test_odd_texts_are_harmless(collection: Collection, text: str) -> None:
    assert all(one.near for one in collection.suggest(text)) or text in ("-", "_")
