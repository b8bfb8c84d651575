"""Bitmaps: what is set in bits is what is set in an array of booleans."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stillhash.collection.storage.bitmaps import count_bits, list_rows, set_rows, set_span

BITS = st.lists(st.booleans(), min_size=1, max_size=200)


@given(BITS, st.data())
def test_a_span_is_set_and_nothing_else(bits: list[bool], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(bits) - 1))
    values = data.draw(st.lists(st.booleans(), max_size=len(bits) - first))
    bitmap, expected = np.packbits(bits, bitorder="little"), np.array(bits)
    set_span(bitmap, first, np.array(values, bool))
    expected[first : first + len(values)] = values
    assert bitmap.tolist() == np.packbits(expected, bitorder="little").tolist()
    assert count_bits(bitmap) == np.count_nonzero(expected)


@given(BITS, st.integers(1, 40), st.data())
def test_rows_are_set_and_nothing_else(bits: list[bool], spread: int, data: st.DataObject) -> None:
    bits = [bit for bit in bits for _ in range(spread)]
    rows = data.draw(st.lists(st.integers(0, len(bits) - 1), max_size=20))
    values = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    bitmap, expected = np.packbits(bits, bitorder="little"), np.array(bits)
    set_rows(bitmap, np.array(rows, np.int64), np.array(values, bool))
    for row, value in zip(rows, values, strict=True):  # of a row that comes again, the last value counts
        expected[row] = value
    assert bitmap.tolist() == np.packbits(expected, bitorder="little").tolist()


@given(BITS, st.integers(1, 30))
def test_rows_are_listed_some_at_a_time(bits: list[bool], size: int) -> None:
    parts = [part.tolist() for part in list_rows(np.packbits(bits, bitorder="little"), size)]
    assert [row for part in parts for row in part] == np.flatnonzero(bits).tolist()
    assert all(len(part) == size for part in parts[:-1]) and all(0 < len(part) <= size for part in parts)
