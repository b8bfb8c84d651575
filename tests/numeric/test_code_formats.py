"""Packings of other libraries: each is compared with the bits themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhash import codes
from stillhash.errors import InvalidInput, StillhashError, WrongType
from stillhash.numeric.codes import ONES_IN_BYTE, count_ones

shapes = st.tuples(st.integers(0, 40), st.integers(8, 512), st.integers(0, 2**31))


def bits_of(n: int, bits: int, seed: int) -> Any:
    return np.random.default_rng(seed).random((n, bits)) < 0.5


@given(shapes)
def test_every_packing_has_the_same_bits(shape: tuple[int, int, int]) -> None:
    n, bits, seed = shape
    rows = bits_of(n, bits, seed)
    expected = codes.from_bits(rows)
    assert np.array_equal(codes.signs(expected, bits) > 0, rows)
    big = np.packbits(rows, axis=1)
    signed = (big.astype(int) - 128).astype(np.int8)  # as sentence-transformers does
    texts = [
        f"{int(''.join('01'[bit] for bit in row.astype(int)), 2):0{-(-bits // 4)}x}" for row in rows
    ]  # as imagehash does
    assert np.array_equal(codes.from_packbits(big, bits), expected)
    assert np.array_equal(codes.to_packbits(expected, bits), big)
    assert np.array_equal(codes.from_int8(signed, bits), expected)
    assert np.array_equal(codes.from_hex(texts, bits), expected) and codes.to_hex(expected, bits) == texts
    assert np.array_equal(codes.from_floats(np.where(rows, 0.3, -0.0)), expected)
    assert np.array_equal(codes.hamming(expected[:, None], expected), (rows[:, None] != rows).sum(axis=2))


def test_one_code_is_one_row() -> None:
    one = codes.from_hex("8000000000000001")
    assert one.tolist() == [1, 0, 0, 0, 0, 0, 0, 128] and codes.to_hex(one) == "8000000000000001"
    assert np.array_equal(codes.from_packbits(np.uint8([128, 0, 0, 0, 0, 0, 0, 1])), one)
    assert np.array_equal(codes.from_bits([True, *[False] * 62, True]), one)
    assert codes.hamming(one, codes.from_hex("0000000000000000")) == 2
    assert codes.from_hex([], 64).shape == (0, 8)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: codes.from_hex("12 4"),
        lambda: codes.from_hex("0x12345678"[:9], 36),
        lambda: codes.from_hex("zz34"),
        lambda: codes.from_hex(["1234", "123"]),
        lambda: codes.from_hex("80", 7),
        lambda: codes.from_hex("800", 9),
        lambda: codes.from_hex([]),
        lambda: codes.from_hex("1"),
        lambda: codes.from_hex(["1234", 7]),  # type: ignore[list-item]
        lambda: codes.from_hex(b"1234"),  # type: ignore[arg-type]
        lambda: codes.from_packbits(np.zeros((2, 2))),
        lambda: codes.from_packbits(np.uint8([[0, 1]]), 12),
        lambda: codes.from_packbits(np.zeros((1, 2, 2), np.uint8)),
        lambda: codes.from_packbits(np.zeros((2, 65), np.uint8)),
        lambda: codes.from_int8(np.uint8([[0, 1]])),
        lambda: codes.from_bits([[0, 2, 0, 0, 0, 0, 0, 0]]),
        lambda: codes.from_bits(np.zeros((1, 7), bool)),
        lambda: codes.from_bits(np.bool_(True)),
        lambda: codes.from_floats([[np.nan] * 8]),
        lambda: codes.from_floats([[1] * 8]),
        lambda: codes.hamming(np.zeros((2, 3), np.uint8), np.zeros(2, np.uint8)),
        lambda: codes.to_hex(np.uint8([255, 255]), 12),
    ],
)
def test_what_is_no_code_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidInput):
        bad()
    assert issubclass(WrongType, StillhashError)


@given(st.integers(0, 2**31), st.sampled_from([np.uint8, np.uint64]))
def test_count_ones_is_that_of_the_bytes(seed: int, dtype: Any) -> None:
    words = np.random.default_rng(seed).integers(0, 2**63, (5, 3)).astype(dtype)
    parts = ONES_IN_BYTE[words.view(np.uint8)].reshape(5, 3, -1).sum(axis=2)
    assert np.array_equal(count_ones(words), parts)
    assert np.array_equal(parts, [[int(word).bit_count() for word in row] for row in words])
