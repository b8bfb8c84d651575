"""The contract of every index that can be saved. Imported by tests/search, with the fixture `make` of searchers.py."""

from __future__ import annotations

import copy
import io
import os
import pickle
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.errors import BadState, StoreFailed, WrongType
from stillhash.search import CodeIndex, Index, Scan
from tests.contracts.searchers import random_codes

SavedMake = Callable[[int], Any]


def equal_answers(one: Any, other: Any, weights: np.ndarray) -> None:
    assert len(one) == len(other) and one.bits == other.bits
    np.testing.assert_array_equal(one.ids(), other.ids())
    for k in (1, 20):
        expected, got = one.search(weights, k), other.search(weights, k)
        assert got.scores.tobytes() == expected.scores.tobytes() and got.ids.tobytes() == expected.ids.tobytes()
    allowed = np.arange(int(one.ids().max(initial=0)) + 1) % 3 == 0
    assert (
        other.search(weights, 9, allowed=allowed).ids.tobytes() == one.search(weights, 9, allowed=allowed).ids.tobytes()
    )
    for expected, got in zip(one.range_search(weights, 0), other.range_search(weights, 0), strict=True):
        assert got.scores.tobytes() == expected.scores.tobytes() and got.ids.tobytes() == expected.ids.tobytes()
    assert other.codes(one.ids()).tobytes() == one.codes(one.ids()).tobytes()


def through_joblib(index: Any) -> Any:
    file = io.BytesIO()
    joblib.dump(index, file)
    file.seek(0)
    return joblib.load(file)


def saved_and_loaded(index: Any, **options: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "codes.index")
        return type(index).load(Path(folder) / "codes.index", threads=index.threads, **options)


COPIES: dict[str, Callable[[Any], Any]] = {
    "mapped": saved_and_loaded,
    "unverified": lambda index: saved_and_loaded(index, verify=False),
    "in memory": lambda index: saved_and_loaded(index, mapped=False),
    "pickle": lambda index: pickle.loads(pickle.dumps(index)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "joblib": through_joblib,
}


@settings(max_examples=25)
@given(st.data())
def test_any_history_survives_saving_and_goes_on_the_same(make: SavedMake, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    bits = data.draw(st.sampled_from([8, 12, 33, 64]))
    index = make(bits)

    def write(*indexes: Any) -> None:
        for _ in range(data.draw(st.integers(0, 4))):
            step = data.draw(st.sampled_from(["add", "ids", "remove"]))
            n = data.draw(st.sampled_from([1, 50, 255, 256, 700]))
            top = int(indexes[0].ids().max(initial=0)) + 1
            codes = random_codes(rng, n, bits)
            names = rng.choice(10 * top, min(n, 10 * top), replace=False) + top
            removed = rng.choice(top, min(n, top), replace=False)
            for each in indexes:
                if step == "remove":
                    each.remove(removed)
                else:
                    each.add(codes[: len(names)], names if step == "ids" else None)

    write(index)
    weights = rng.standard_normal((2, bits)).astype(np.float32)
    other = COPIES[data.draw(st.sampled_from(sorted(COPIES)))](index)
    assert type(other) is type(index) and other.threads == index.threads
    equal_answers(index, other, weights)
    write(index, other)
    equal_answers(index, other, weights)


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_and_its_original_do_not_share_what_comes_later(make: SavedMake, way: str) -> None:
    rng = np.random.default_rng(0)
    codes, weights = random_codes(rng, 400, 32), rng.standard_normal((2, 32))
    index, plain = make(32), Scan(32)
    for each in (index, plain):
        each.add(codes[:300])  # the last tile has free places
    other = COPIES[way](index)
    index.add(codes[300:])
    index.remove([1, 2])
    equal_answers(plain, other, weights)
    other.add(codes[:40])
    assert index.codes(np.arange(300, 400)).tobytes() == codes[300:].tobytes()
    assert other.codes(np.arange(300, 340)).tobytes() == codes[:40].tobytes()


def test_an_empty_index_is_saved_too(make: SavedMake) -> None:
    for way in COPIES.values():
        other = way(make(24))
        assert len(other) == 0 and (other.search(np.ones((1, 24)), 2).ids == -1).all()
        other.add(np.zeros((2, 3), np.uint8))
        assert other.ids().tolist() == [0, 1]


def filled_file(make: SavedMake, path: Path, bits: int = 12) -> tuple[Any, np.ndarray]:
    rng = np.random.default_rng(0)
    index = make(bits)
    index.add(random_codes(rng, 300, bits))
    index.add(random_codes(rng, 20, bits), rng.choice(1000, 20, replace=False) + 400)
    index.remove([0, 7, 299])
    index.save(path)
    return index, rng.standard_normal((3, bits))


def test_any_class_of_integer_ids_loads_the_file(make: SavedMake, tmp_path: Path) -> None:
    index, weights = filled_file(make, tmp_path / "a")
    for kind in (Scan, Index):
        equal_answers(index, kind.load(tmp_path / "a"), weights)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    equal_answers(index, Scan.load(str(tmp_path / "link")), weights)


def test_saving_again_replaces_the_file_whole(make: SavedMake, tmp_path: Path) -> None:
    index, weights = filled_file(make, tmp_path / "a")
    first = (tmp_path / "a").read_bytes()
    mapped = type(index).load(tmp_path / "a")
    mapped.save(tmp_path / "a")  # onto the file that it is mapped from
    assert (tmp_path / "a").read_bytes() == first and [file.name for file in tmp_path.iterdir()] == ["a"]
    make(12).save(tmp_path / "a")
    equal_answers(index, mapped, weights)  # the old file is there as long as it is mapped
    assert len(type(index).load(tmp_path / "a")) == 0
    with pytest.raises(StoreFailed):
        index.save(tmp_path / "none" / "a")


def test_codes_of_removed_rows_are_not_in_the_file(make: SavedMake, tmp_path: Path) -> None:
    index = make(64)
    index.add(np.full((300, 8), 1, np.uint8))
    index.add(np.full((1, 8), 0xAB, np.uint8))
    index.save(tmp_path / "a")
    assert b"\xab" in (tmp_path / "a").read_bytes()[4096:-100]
    index.remove([300])
    index.save(tmp_path / "a")
    assert b"\xab" not in (tmp_path / "a").read_bytes()[4096:-100]


def test_a_file_has_one_moment_of_an_index_that_is_written_to(make: SavedMake, tmp_path: Path) -> None:
    codes = random_codes(np.random.default_rng(0), 6000, 64)
    index = make(64)
    index.add(codes[:10])

    def write() -> None:
        for start in range(10, 6000, 10):
            index.add(codes[start : start + 10])
            index.remove([start - 10])

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(8):
        index.save(tmp_path / "a")
        loaded = Scan.load(tmp_path / "a")
        ids = loaded.ids()
        assert loaded.codes(ids).tobytes() == codes[ids].tobytes() and len(ids) == len(loaded)
        last = int(ids[-1]) + 1
        removed = set(range(last)) - set(ids.tolist())
        assert last % 10 == 0 and removed in (set(range(0, last - 10, 10)), set(range(0, last - 20, 10)))
    writer.join()


def test_damaged_files_are_refused(make: SavedMake, tmp_path: Path) -> None:
    index, _ = filled_file(make, tmp_path / "a")
    data = (tmp_path / "a").read_bytes()
    for at in range(0, len(data), 997):
        (tmp_path / "b").write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(BadState):
            type(index).load(tmp_path / "b")
    for size in (0, 1, 8, 100, 4096, len(data) // 2, len(data) - 4104, len(data) - 1):
        (tmp_path / "b").write_bytes(data[:size])
        for verify in (True, False):
            with pytest.raises(BadState):
                type(index).load(tmp_path / "b", verify=verify)


@pytest.mark.parametrize("path", ["none", ".", "pipe"])
def test_what_is_no_file_is_refused(make: SavedMake, path: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadState):
        type(make(16)).load(tmp_path / path)


@pytest.mark.parametrize("path", [None, 3, b"a"])
def test_what_is_no_path_is_refused(make: SavedMake, path: Any) -> None:
    index: CodeIndex = make(16)
    for call in (index.save, type(index).load):
        with pytest.raises(WrongType, match=r"^path"):
            call(path)
