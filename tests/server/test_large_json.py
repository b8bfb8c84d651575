"""Large JSON is parsed in short steps, to what the json module gives."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stillhash.errors import InvalidInput, TooLarge
from stillhash.server.large_json import parse_large_object

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=5)


def plain(value: Any) -> Any:
    """Return arrays as lists, and NaN as a text."""
    if isinstance(value, (list, np.ndarray)):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return "nan" if value != value else value


def types(value: Any) -> Any:
    """Return the types in a value, all the way down."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return type(value), [types(each) for each in parts]


@settings(max_examples=400)
@given(OBJECTS, st.sampled_from([None, 1]), st.booleans())
@example({"features": [[0.5, 1], [2, 3.5]], "ids": ["]", '["'], "metadata": [{"a": ["x}"]}, None]}, None, False)
@example({"a": [], "b": [[]], "c": {}, "": [[[1], "\\"]]}, 1, True)
def test_it_gives_what_json_does(value: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return
    parsed, expected = parse_large_object(data, "features", 10**6, 10**6), json.loads(text)
    assert plain(parsed) == plain(expected)
    parsed.pop("features", None), expected.pop("features", None)
    assert types(parsed) == types(expected)


def test_vectors_are_arrays_and_nothing_else_is() -> None:
    data = json.dumps({"ids": [1, 2], "labels": [[1], [2, 3]], "features": [[1, 0.5], [2, "x"]], "query": [1, 2]})
    parsed = parse_large_object(data.encode(), "features", 100, 100)
    assert parsed["ids"] == [1, 2] and parsed["labels"] == [[1], [2, 3]] and parsed["query"] == [1, 2]
    assert isinstance(parsed["features"][0], np.ndarray) and parsed["features"][1] == [2, "x"]


@settings(max_examples=400)
@given(OBJECTS, st.data())
def test_what_json_refuses_is_refused(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    damaged = (
        text[:at] + data.draw(st.sampled_from(["", ",", "]", "[", "{", "}", '"', ":", "x", " 1"])) + text[at + 1 :]
    )
    try:
        expected = json.loads(damaged)
    except ValueError:
        expected = None
    if isinstance(expected, dict):
        assert plain(parse_large_object(damaged.encode(), "features", 10**6, 10**6)) == plain(expected)
    else:
        with pytest.raises(InvalidInput):
            parse_large_object(damaged.encode(), "features", 10**6, 10**6)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [' + "1, " * 5000 + "1]}",  # a plain list of numbers is one element
        '{"a": [[' + "1, " * 5000 + "1], [2]]}",
        '{"a": ["' + "x" * 5000 + '"]}',
        '{"a": [{"b": [' + "[1], " * 5000 + "1]}]}",
        '{"' + "x" * 5000 + '": 1}',
        '{"a": ' + "1" * 5000 + "}",
    ],
)
def test_no_element_may_be_large(text: str) -> None:
    with pytest.raises(TooLarge, match="at most 2000 characters in a row, got more"):
        parse_large_object(text.encode(), "a", 100, 2000)


def test_no_element_may_be_deep() -> None:
    with pytest.raises(InvalidInput, match="nested at most 200 deep"):
        parse_large_object(b'{"a": [' + b"[" * 900 + b"]" * 900 + b"]}", "a", 100, 2000)


def test_no_list_may_be_long() -> None:
    with pytest.raises(TooLarge, match="ids: expected at most 100 rows, got more"):
        parse_large_object(json.dumps({"ids": ["a"] * 101}).encode(), "a", 100, 2000)
    assert parse_large_object(json.dumps({"ids": ["a"] * 100}).encode(), "a", 100, 2000)["ids"] == ["a"] * 100
