from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash import Scan
from stillhash.errors import InvalidInput
from stillhash.numeric.codes import TILE, to_tiles
from tests.contracts.saved_indexes import *  # noqa: F403
from tests.contracts.searchers import *  # noqa: F403
from tests.contracts.searchers import Make, random_codes


@pytest.fixture
def make(lanes: str) -> Make:
    return lambda bits: Scan(bits, threads=2)


@pytest.mark.parametrize("bits", [8, 32, 64, 100, 512])
def test_memory_is_the_codes_and_a_tenth(bits: int) -> None:
    rng = np.random.default_rng(0)
    index, n = Scan(bits), 0
    for chunk in (100_000, 1, 1, 999, 30_000, 1, 50_000, 2, 2):
        index.add(random_codes(rng, chunk, bits))
        n += chunk
        assert index.nbytes <= 1.1 * n * ((bits + 7) // 8) + 3 * 1024 * ((bits + 7) // 8)


def test_memory_with_single_rows_under_odd_ids() -> None:
    index = Scan(64)
    for i in range(3000):
        index.add(np.zeros((1, 8), np.uint8), [(i * 7919) % 100_003])
        index.remove([(i * 7919) % 100_003]) if i % 3 == 0 else None
    assert len(index) == 2000
    assert index.nbytes <= 3000 * (8 + 8 + 1) + 4 * 1024 * 17


def test_tiles_mapped_from_a_file_are_searched_without_a_copy(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    codes, weights = random_codes(rng, 3000, 64), rng.standard_normal((4, 64))
    (tmp_path / "tiles").write_bytes(b"header" + to_tiles(codes, 64).tobytes())
    mapped: Any = np.memmap(tmp_path / "tiles", np.uint8, "c", offset=6, shape=(12, 8, TILE))  # unaligned on purpose
    index, plain = Scan(64), Scan(64)
    index.add_tiles(mapped, 3000)
    plain.add(codes)
    for _ in range(2):  # what is written into the tiles shows in the index; the second time undoes the first
        mapped[0, :, 0] ^= 255
        np.testing.assert_array_equal(index.codes([0])[0], mapped[0, :, 0])
    index.add(codes[:10])
    plain.add(codes[:10])
    for got, expected in zip(index.search(weights, 20), plain.search(weights, 20), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert index.remove([3, 2999, 3001]) == 3


@pytest.mark.parametrize(
    ("tiles", "rows"),
    [
        (np.zeros((12, 8, TILE), np.uint8), 5000),
        (np.zeros((12, 7, TILE), np.uint8), 3000),
        (np.zeros((12, 8, TILE), np.int8), 3000),
        (np.zeros((TILE, 8, 12), np.uint8).T, 3000),
    ],
)
def test_tiles_of_the_wrong_shape_are_refused(tiles: np.ndarray, rows: int) -> None:
    index = Scan(64)
    with pytest.raises(InvalidInput, match=r"^tiles"):
        index.add_tiles(tiles, rows)
    assert len(index) == 0


def test_the_number_of_threads_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    codes, weights = random_codes(rng, 400_000, 32, distinct=2000), rng.standard_normal((6, 32))
    answers = []
    for threads in (1, 2, 7):
        index = Scan(32, threads=threads)
        index.add(codes)
        answers.append(index.search(weights, 100))
    for other in answers[1:]:
        np.testing.assert_array_equal(other.ids, answers[0].ids)
        np.testing.assert_array_equal(other.scores, answers[0].scores)


def test_a_threshold_between_two_floats_is_not_rounded_down() -> None:
    index = Scan(8)
    index.add(np.array([[255]], np.uint8))
    weights = np.zeros((1, 8))
    weights[0, 0] = 1
    above = 1 + 1e-12  # rounds to the score itself in float32
    assert len(index.range_search(weights, 1.0)[0].ids) == 1
    assert len(index.range_search(weights, above)[0].ids) == 0


@pytest.mark.parametrize("bits", [0, 7, 513, 8.0, "8", None])
def test_bad_bits(bits: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^bits"):
        Scan(bits)


@pytest.mark.parametrize("k", [2**28 // 3 + 1, 10**9, 2**62, 2**80])
def test_more_hits_than_memory_holds_are_refused(k: int) -> None:
    index = Scan(8)
    index.add(np.zeros((5, 1), np.uint8))
    with pytest.raises(InvalidInput, match=r"^k: expected an integer in \[1, "):
        index.search(np.ones((3, 8), np.float32), k)
    assert index.search(np.ones((3, 8), np.float32), 100).ids.shape == (3, 100)
