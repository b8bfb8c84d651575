"""Uploads and votes of visitors, and how long they are remembered."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest

from stillhash.errors import InvalidInput, NotFound
from stillhash.server import page_state
from stillhash.server.page_state import Picture, QueryCache, UploadedQuery, VotedQuery, query_key
from stillhash.server.pages.queries import parse_vector


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
def test_vector_is_parsed_from_several_formats(data: bytes) -> None:
    assert np.asarray(parse_vector(data, 3)).tolist() == [1.0, 2.5, -3.0]


def huge() -> bytes:
    """Return a file whose header promises more than there is memory."""
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
def test_invalid_vectors_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        parse_vector(data, 3)


def uploaded(number: int, size: int = 1) -> UploadedQuery:
    return UploadedQuery(np.full(4, number, np.float32), str(number), Picture(bytes(size), "image/png"))


def test_least_recently_used_upload_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_state, "MAX_CACHED_QUERIES", 3)
    cache = QueryCache()
    tokens = [cache.put("c", uploaded(number)) for number in range(3)]
    cache.get("c", tokens[0])
    cache.put("c", uploaded(3))
    assert cache.get("c", tokens[0]).title == "0"
    for collection, token in (("c", tokens[1]), ("d", tokens[0])):  # an upload belongs to its collection
        with pytest.raises(NotFound):
            cache.get(collection, token)


def test_cache_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_state, "MAX_CACHED_BYTES", 1000)
    cache = QueryCache()
    for _ in range(3):  # the same query counts once
        first = cache.put("c", uploaded(0, 400))
    second = cache.put("c", uploaded(1, 400))
    assert cache.get("c", first) and cache.get("c", second)
    third = cache.put("c", uploaded(2, 400))
    assert cache.get("c", third)
    with pytest.raises(NotFound):
        cache.get("c", first)


def test_voted_queries_are_stored_by_collection_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_state, "MAX_CACHED_QUERIES", 2)
    cache, seven, red = QueryCache(), VotedQuery({"like": "7"}, "7"), VotedQuery({"words": "red"}, "red")
    cache.add_voted("c", "a", red)
    cache.add_voted("c", "a", seven)
    cache.add_voted("d", "a", red)
    assert cache.voted("c", "a") == seven and cache.voted("d", "a") == red and cache.voted("d", "b") is None
    cache.add_voted("d", "b", red)
    assert cache.voted("c", "a") is None
    cache.remove("d")
    assert cache.voted("d", "b") is None


def test_the_same_query_has_the_same_key() -> None:
    vector = np.array([0.1, -0.0, 3], np.float32)
    assert query_key(vector) == query_key(vector.tolist()) == query_key(np.abs(vector))
    assert query_key(vector) != query_key(-vector)
    code = np.array([1, 255], np.uint8)
    assert query_key(code) == query_key("01ff")
