"""What a filter selects of the values of a field: words, intervals of numbers and of texts, and single values.

Numbers compare as SQLite compares them: 64-bit integers and doubles exactly, larger integers as doubles.
"""

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
