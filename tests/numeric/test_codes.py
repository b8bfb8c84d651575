from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhash.numeric import codes, kernels
from stillhash.numeric.kernels import HUGE_PAGE, advise_huge_pages

shapes = st.tuples(st.integers(0, 2500), st.integers(8, 512), st.integers(0, 2**31))


def test_the_bit_order_is_little_endian(lanes: str) -> None:
    projections = -np.ones((1, 16), np.float32)
    projections[0, [0, 9]] = 1
    assert codes.pack(projections).tolist() == [[1, 2]]


def test_zero_counts_as_plus_one_and_minus_zero_too(lanes: str) -> None:
    packed = codes.pack(np.array([[0.0, -0.0] + [-1.0] * 6], np.float32))
    assert packed.tolist() == [[3]]


@given(shapes)
def test_signs_undo_pack(shape: tuple[int, int, int]) -> None:
    n, bits, seed = shape
    n %= 50
    Z = np.random.default_rng(seed).standard_normal((n, bits)).astype(np.float32)
    for lanes in kernels.available():
        with kernels.using(lanes):
            packed = codes.pack(Z)
        assert packed.shape == (n, codes.width(bits))
        np.testing.assert_array_equal(codes.signs(packed, bits), np.where(Z >= 0, 1, -1))


@given(shapes)
def test_tiles_keep_every_code(shape: tuple[int, int, int]) -> None:
    n, bits, seed = shape
    packed = np.random.default_rng(seed).integers(0, 256, (n, codes.width(bits)), dtype=np.uint8)
    for lanes in kernels.available():
        with kernels.using(lanes):
            tiles = codes.to_tiles(packed, bits)
            assert tiles.shape == (-(-n // codes.TILE), codes.width(bits), codes.TILE)
            np.testing.assert_array_equal(codes.from_tiles(tiles, n), packed)
    if n:
        np.testing.assert_array_equal(tiles[0, 0, : min(n, codes.TILE)], packed[: codes.TILE, 0])  # plane 0 is byte 0
        assert not tiles.transpose(0, 2, 1).reshape(-1, codes.width(bits))[n:].any()


@pytest.mark.parametrize("start", [0, 1, 255, 256, 1023, 1500])
def test_tiles_are_written_from_any_row(lanes: str, start: int) -> None:
    packed = np.random.default_rng(start).integers(0, 256, (600, 5), dtype=np.uint8)
    tiles = codes.empty_tiles(3000, 40)
    kernels.write_tiles(tiles, start, packed)
    np.testing.assert_array_equal(kernels.read_tiles(tiles, np.arange(start, start + 600)), packed)


@pytest.mark.parametrize("rows", [1, 300, 40_000, 1_000_000])
def test_empty_tiles_begin_at_a_cache_line_and_large_ones_at_a_huge_page(lanes: str, rows: int) -> None:
    tiles = codes.empty_tiles(rows, 64)
    step = codes.CACHE_LINE if tiles.nbytes < HUGE_PAGE else HUGE_PAGE
    assert tiles.shape == (-(-rows // codes.TILE), 8, codes.TILE) and tiles.flags.c_contiguous
    assert (tiles.size == 0 or tiles.ctypes.data % step == 0) and not tiles.any()


def test_huge_pages_can_be_requested_for_any_tiles(tmp_path: Path) -> None:
    """Mapped tiles that begin anywhere in a page, read-only ones, small ones and none: the tiles stay as they are."""
    content = np.random.default_rng(0).integers(0, 256, 6 + 2 * HUGE_PAGE, dtype=np.uint8)
    content.tofile(tmp_path / "tiles")
    shape = (HUGE_PAGE // codes.TILE, 2, codes.TILE)
    mapped: Any = np.memmap(tmp_path / "tiles", np.uint8, "r", offset=6, shape=shape)
    for tiles in (mapped, np.asarray(mapped)[:1], np.zeros((0, 2, codes.TILE), np.uint8)):
        assert advise_huge_pages(tiles) in (True, False)
    np.testing.assert_array_equal(mapped.reshape(-1), content[6:])
