"""What visitors give, and what is remembered of it."""

from __future__ import annotations

import io
import json
import pickle
from typing import Any

import numpy as np
import pytest

from stillhash.errors import InvalidInput, NotFound
from stillhash.server import query_cache
from stillhash.server.pages.thumbnails import Picture
from stillhash.server.query_cache import Given, Memory, Pressed, standing, vector_in


def as_npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        as_npy(np.array([1.0, 2.5, -3.0])),
        as_npy(np.array([[1.0, 2.5, -3.0]], np.float32)),
        b"[1, 2.5, -3]",
        b"[[1, 2.5, -3]]",
        b"1,2.5,-3\n",
        b"\xef\xbb\xbf1; 2.5; -3\r\n",
        b" 1 2.5\t-3 ",
    ],
)
def test_a_vector_comes_in_many_forms(data: bytes) -> None:
    assert np.asarray(vector_in(data)).tolist() == [1.0, 2.5, -3.0]


def huge() -> bytes:
    """A file that says it holds more than there is memory."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)})
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"\x93NUMPY",
        b"\x93NUMPY\x09\x00",
        as_npy(np.ones(50))[:-8],
        as_npy(np.array([{"a": 1}], dtype=object), allow_pickle=True),
        as_npy(np.ones((2, 3))),
        as_npy(np.float64(3)),
        huge(),
        pickle.dumps([1, 2]),
        b"\xff\xfe\x00",
        b"hello",
        b"1,2\n3,4",
        b"[[1, 2], [3]]",
        b"[1, 2",
        b"[" * 100_000,
        b"[" + b"9" * 5000 + b"]",
        b"",
    ],
)
def test_what_is_no_vector_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        vector_in(data)


def given(number: int, size: int = 1) -> Given:
    return Given(np.full(4, number, np.float32), str(number), Picture(bytes(size), "image/png"))


def test_memory_forgets_what_was_not_used_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_cache, "QUERIES", 3)
    memory = Memory()
    tokens = [memory.keep(given(number)) for number in range(3)]
    memory.find(tokens[0])
    memory.keep(given(3))
    assert memory.find(tokens[0]).about == "0"
    with pytest.raises(NotFound):
        memory.find(tokens[1])


def test_memory_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_cache, "BYTES", 1000)
    memory = Memory()
    for _ in range(3):  # the same query counts once
        first = memory.keep(given(0, 400))
    second = memory.keep(given(1, 400))
    assert memory.find(first) and memory.find(second)
    third = memory.keep(given(2, 400))
    assert memory.find(third)
    with pytest.raises(NotFound):
        memory.find(first)


def test_thumbs_that_a_rollback_forgot_do_not_stand() -> None:
    pressed = {"1": Pressed(True, 3), "2": Pressed(False, 5), "3": Pressed(True, 8)}
    kinds = {6: "rollback to 4", 7: "learn"}
    versions = [{"version": number, "kind": kinds.get(number, "feedback")} for number in range(1, 9)]
    assert standing(pressed, versions) == {"1": True, "3": True}
    assert standing(pressed, versions[:5]) == {"1": True, "2": False, "3": True}


def test_thumbs_are_kept_by_collection_and_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_cache, "QUERIES", 2)
    memory = Memory()
    memory.press("c", json.dumps(7), "1", Pressed(True, 2))
    memory.press("c", json.dumps(7), "1", Pressed(False, 3))
    memory.press("d", json.dumps(7), "1", Pressed(True, 1))
    assert memory.pressed("c", "7") == {"1": Pressed(False, 3)}
    memory.press("d", json.dumps(8), "1", Pressed(True, 2))
    assert memory.pressed("c", "7") == {}
