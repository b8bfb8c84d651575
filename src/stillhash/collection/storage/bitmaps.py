"""Which rows or values a filter selects.

Bitmaps by row have one bit each, in little-endian bit order. Of the values of a field a filter selects words, intervals
of numbers and of texts, and single values. Numbers compare as SQLite compares them: 64-bit integers and doubles
exactly, larger integers as doubles.
"""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.validation import Mask
from stillhash.search.blocks import Bitmap

BITS_OF_BYTE = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
SPARSE = 64  # rows so far apart are set one by one


def set_span(bitmap: Bitmap, first: int, values: Mask) -> None:
    """Set the bits of rows first, first + 1, ...; all others stay."""
    if not len(values):
        return
    lead, last = first % 8, first + len(values) - 1
    packed = np.packbits(np.concatenate([np.zeros(lead, bool), values]) if lead else values, bitorder="little")
    target = bitmap[first // 8 : last // 8 + 1]
    before, after = target[0] & ((1 << lead) - 1), target[-1] & (0xFF << (last % 8 + 1) & 0xFF)
    target[:] = packed
    target[0] |= before
    target[-1] |= after


def read_span(bitmap: Bitmap, first: int, count: int) -> Mask:
    """Return the bits of rows first, first + 1, ..., so many."""
    bits = np.unpackbits(bitmap[first // 8 : -(-(first + count) // 8)], bitorder="little")
    return bits[first % 8 : first % 8 + count].view(bool)


def set_rows(bitmap: Bitmap, rows: NDArray[np.int64], values: Mask) -> None:
    """Set the bits of these rows; all others stay. Of a row that comes more than once, the last value counts."""
    if not len(rows):
        return
    if not (np.diff(rows) > 0).all():
        rows, last = np.unique(rows[::-1], return_index=True)
        values = values[::-1][last]
    start = int(rows.min()) // 8 * 8
    stop = int(rows.max()) + 1
    if stop - start > SPARSE * len(rows):
        bits = (1 << (rows % 8)).astype(np.uint8)
        np.bitwise_and.at(bitmap, rows // 8, ~bits)
        np.bitwise_or.at(bitmap, rows[values] // 8, bits[values])
        return
    span = np.unpackbits(bitmap[start // 8 : -(-stop // 8)], bitorder="little")
    span[rows - start] = values
    bitmap[start // 8 : -(-stop // 8)] = np.packbits(span, bitorder="little")


def count_bits(bitmap: Bitmap) -> int:
    """Count the rows in a bitmap."""
    return int(BITS_OF_BYTE[bitmap].sum(dtype=np.int64))


def list_rows(bitmap: Bitmap, size: int) -> Iterator[NDArray[np.int64]]:
    """Yield the rows in a bitmap, rising, so many at a time; the last time perhaps fewer."""
    span, waiting = max(1, size // 8), np.empty(0, np.int64)
    for start in range(0, len(bitmap), span):
        rows = np.flatnonzero(np.unpackbits(bitmap[start : start + span], bitorder="little")) + 8 * start
        waiting = np.concatenate([waiting, rows])
        while len(waiting) >= size:
            yield waiting[:size]
            waiting = waiting[size:]
    if len(waiting):
        yield waiting


WORDS = 5  # so many words


class Word:
    """What is neither a number nor a text. As keys of a dictionary, True and False would be the same as 1 and 0."""

    def __init__(self, code: int) -> None:
        self.code = code


MISSING, NULL, FALSE, TRUE, OTHER = map(Word, range(WORDS))  # OTHER: lists and objects


class Interval(NamedTuple):
    """Values between two; None is no bound. A bound belongs to it unless it is open."""

    low: Any = None
    high: Any = None
    open_low: bool = False
    open_high: bool = False


class Points:
    """Many numbers to look up."""

    def __init__(self, numbers: set[int | float]) -> None:
        self._numbers = numbers

    @cached_property
    def doubles(self) -> NDArray[np.float64]:
        """Return those that are doubles, in order."""
        return np.unique(np.array(list(set(map(float, self._numbers)) & self._numbers), np.float64))

    @cached_property
    def integers(self) -> NDArray[np.int64]:
        """Return those that are 64-bit integers, in order."""
        whole = set(map(int, self._numbers)) & self._numbers
        if len(whole) and not -(2**63) <= min(whole) <= max(whole) < 2**63:
            whole = {number for number in whole if -(2**63) <= number < 2**63}
        return np.unique(np.array(list(map(int, whole)), np.int64))

    def of_kind(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return those that an array of doubles, or of integers, can hold."""
        return self.doubles if dtype.kind == "f" else self.integers


class Selection(NamedTuple):
    """Which values of a field match. Few single values are intervals, many are points."""

    words: frozenset[Word] = frozenset()
    numbers: tuple[Interval, ...] = ()
    texts: tuple[Interval, ...] = ()  # of UTF-8
    points: Points | None = None
    text_points: frozenset[bytes] = frozenset()


def closed_interval(interval: Interval, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the least and the largest number of this type in an interval, None for no bound.

    A bound may be past all numbers of the type, so that nothing is between them.
    """
    low, high, open_low, open_high = interval
    if dtype.kind == "f":
        return _round_double(low, open_low, math.inf), _round_double(high, open_high, -math.inf)
    low = None if low is None else math.floor(low) + 1 if open_low else math.ceil(low)
    high = None if high is None else math.ceil(high) - 1 if open_high else math.floor(high)
    limits = np.iinfo(np.int64)
    if (low is not None and low > limits.max) or (high is not None and high < limits.min):
        return limits.max, limits.min  # nothing
    return (
        None if low is None or low < limits.min else np.int64(low),
        None if high is None or high > limits.max else np.int64(high),
    )


def _round_double(bound: Any, is_open: bool, towards: float) -> Any:
    """Return the bound, or the next double towards the inside, if the bound itself is none or does not belong."""
    if bound is None:
        return None
    number = float(bound)
    outside = number < bound if towards > 0 else number > bound
    return math.nextafter(number, towards) if outside or (is_open and number == bound) else number
