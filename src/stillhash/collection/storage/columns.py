"""Columns: the values of one field, or the labels, of many rows, in arrays that a filter compares at once.

    dictionary    the distinct values in order, and a code for each row: a comparison is a range of codes
    numbers       the numbers themselves, and which rows have none
    labels        the distinct sets of labels, a code for each row, and for each label the sets that hold it

Numbers compare as SQLite compares them: 64-bit integers and doubles exactly, larger integers as doubles.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.validation import Mask

WORDS = 5  # codes below are those of words; those of numbers follow, then those of texts
MAX_RANGES = 4  # of codes that are compared one by one; more go through a table

Arrays = dict[str, NDArray[Any]]
CodeRange = tuple[int, int]  # from, up to and without
Matcher = bool | Callable[[], Mask]  # which rows match: all, none, or what it returns


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


class Selection(NamedTuple):
    """Which values of a field match."""

    words: frozenset[Word] = frozenset()
    numbers: tuple[Interval, ...] = ()
    texts: tuple[Interval, ...] = ()  # of UTF-8


class SortedTexts(Sequence[bytes]):
    """Texts in order, as UTF-8 in one array."""

    def __init__(self, data: NDArray[np.uint8], ends: NDArray[np.uint64]) -> None:
        self.data, self.ends = data, ends

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, place: Any) -> Any:
        return self.data[int(self.ends[place - 1]) if place else 0 : int(self.ends[place])].tobytes()


class SortedValues(NamedTuple):
    """Distinct numbers in order, then distinct texts in order."""

    numbers: NDArray[Any]  # int64 or float64
    text_data: NDArray[np.uint8]
    text_ends: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.numbers) + len(self.text_ends)

    def ranges(self, selection: Selection) -> list[CodeRange]:
        """Return the places of what is selected."""
        texts, first_text = SortedTexts(self.text_data, self.text_ends), len(self.numbers)
        chosen: list[CodeRange] = []
        intervals = selection.numbers
        if len(intervals) > MAX_RANGES and (points := exact_points(intervals, self.numbers.dtype)) is not None:
            starts, stops = (np.searchsorted(self.numbers, points, side).tolist() for side in ("left", "right"))
            chosen, intervals = list(zip(starts, stops, strict=True)), ()
        for interval in intervals:
            low, high = closed_interval(interval, self.numbers.dtype)
            start = 0 if low is None else int(np.searchsorted(self.numbers, low, "left"))
            chosen.append((start, first_text if high is None else int(np.searchsorted(self.numbers, high, "right"))))
        for low, high, open_low, open_high in selection.texts:
            start = 0 if low is None else (bisect_right if open_low else bisect_left)(texts, low)
            stop = len(texts) if high is None else (bisect_left if open_high else bisect_right)(texts, high, lo=start)
            chosen.append((first_text + start, first_text + stop))
        return [(start, stop) for start, stop in chosen if start < stop]


class DictionaryColumn(NamedTuple):
    """A code for each row: of a word, or of a value."""

    codes: NDArray[Any]  # the smallest unsigned integers that fit
    numbers: NDArray[Any]
    text_data: NDArray[np.uint8]
    text_ends: NDArray[np.uint64]

    def matcher(self, selection: Selection) -> Matcher:
        """Return which rows match."""
        values = SortedValues(self.numbers, self.text_data, self.text_ends)
        ranges = [(word.code, word.code + 1) for word in selection.words]
        ranges += [(WORDS + start, WORDS + stop) for start, stop in values.ranges(selection)]
        return code_matcher(self.codes, ranges, WORDS + len(values))


class NumberColumn(NamedTuple):
    """A number for each row; rows without one have 0, and their word."""

    values: NDArray[Any]  # float64, or the smallest integers that fit
    words: NDArray[np.uint8]  # WORDS for a number; empty if all rows have one
    bounds: NDArray[Any]  # the least and the largest number, if there is one

    def matcher(self, selection: Selection) -> Matcher:
        """Return which rows match."""
        words = [(word.code, word.code + 1) for word in selection.words]
        by_word = code_matcher(self.words, words, WORDS + 1) if len(self.words) else False
        wide = np.dtype(np.float64 if self.values.dtype.kind == "f" else np.int64)
        if len(selection.numbers) > MAX_RANGES and (points := exact_points(selection.numbers, wide)) is not None:
            return any_of([by_word, all_of([lambda: np.isin(self.values, points), self._is_number()])])
        parts = [by_word, *(self._within(*closed_interval(interval, wide)) for interval in selection.numbers)]
        return any_of(parts)

    def _is_number(self) -> Matcher:
        return (lambda: self.words == WORDS) if len(self.words) else len(self.bounds) > 0

    def _within(self, low: Any, high: Any) -> Matcher:
        """Return which rows have a number from low to high."""
        if not len(self.bounds) or (low is not None and low > self.bounds[1]):
            return False
        if high is not None and high < self.bounds[0]:
            return False
        comparisons: list[tuple[Any, Any]] = []
        if low is not None and low > self.bounds[0]:
            comparisons.append((np.greater_equal, self.values.dtype.type(low)))
        if high is not None and high < self.bounds[1]:
            comparisons.append((np.less_equal, self.values.dtype.type(high)))
        return all_of([*(partial(compare, self.values, value) for compare, value in comparisons), self._is_number()])


class LabelColumn(NamedTuple):
    """A set of labels for each row; set 0 has none."""

    codes: NDArray[Any]  # the set of each row
    numbers: NDArray[Any]
    text_data: NDArray[np.uint8]
    text_ends: NDArray[np.uint64]
    starts: NDArray[np.uint64]  # of each label's sets
    sets: NDArray[Any]  # that hold the first label, the second, ...
    set_count: NDArray[np.uint64]  # (1,)

    def matcher(self, selection: Selection) -> Matcher:
        """Return which rows have one of these labels; MISSING selects rows without labels, OTHER those with any."""
        if OTHER in selection.words:
            return code_matcher(self.codes, [(1, int(self.set_count[0]))], int(self.set_count[0]))
        table = np.zeros(int(self.set_count[0]), bool)
        table[0] = MISSING in selection.words
        for start, stop in SortedValues(self.numbers, self.text_data, self.text_ends).ranges(selection):
            table[self.sets[int(self.starts[start]) : int(self.starts[stop])]] = True
        return table_matcher(self.codes, table)


Column = DictionaryColumn | NumberColumn | LabelColumn
COLUMN_LAYOUTS: dict[str, Any] = {"dictionary": DictionaryColumn, "numbers": NumberColumn, "labels": LabelColumn}


def layout_of(column: Column) -> str:
    """Return the name of a column's layout."""
    return next(name for name, kind in COLUMN_LAYOUTS.items() if isinstance(column, kind))


def column_bytes(column: Column) -> int:
    """Return the bytes of a column's arrays."""
    return sum(int(array.nbytes) for array in column)


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


def exact_points(intervals: Sequence[Interval], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return the numbers of this type that these intervals consist of, if each is a single number; otherwise None."""
    if any(low is None or low != high or open_low or open_high for low, high, open_low, open_high in intervals):
        return None
    closed = [closed_interval(interval, dtype) for interval in intervals]
    return np.array(sorted({low for low, high in closed if low is not None and low == high}), dtype)


def _round_double(bound: Any, is_open: bool, towards: float) -> Any:
    """Return the bound, or the next double towards the inside, if the bound itself is none or does not belong."""
    if bound is None:
        return None
    number = float(bound)
    outside = number < bound if towards > 0 else number > bound
    return math.nextafter(number, towards) if outside or (is_open and number == bound) else number


def code_matcher(codes: NDArray[Any], ranges: Iterable[CodeRange], count: int) -> Matcher:
    """Return which rows have a code in one of these ranges; there are `count` codes."""
    merged: list[CodeRange] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    if len(merged) <= MAX_RANGES:
        return any_of([_range_matcher(codes, start, stop, count) for start, stop in merged])
    table = np.zeros(count, bool)
    for start, stop in merged:
        table[start:stop] = True
    return lambda: table.take(codes)


def table_matcher(codes: NDArray[Any], table: Mask) -> Matcher:
    """Return which rows have a code that is true in the table."""
    edges = np.flatnonzero(np.diff(table, prepend=False, append=False))
    if len(edges) <= 2 * MAX_RANGES:
        return code_matcher(codes, zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True), len(table))
    return lambda: table.take(codes)


def _range_matcher(codes: NDArray[Any], start: int, stop: int, count: int) -> Matcher:
    if start == 0 and stop >= count:
        return True
    kind = codes.dtype.type
    if stop == start + 1:
        return lambda: codes == kind(start)
    return lambda: (codes - kind(start)) < kind(stop - start)  # unsigned: less than start wraps to the largest


def any_of(parts: Iterable[Matcher]) -> Matcher:
    """Return the rows that match one of the parts."""
    return _joined(parts, True, np.logical_or)


def all_of(parts: Iterable[Matcher]) -> Matcher:
    """Return the rows that match all parts."""
    return _joined(parts, False, np.logical_and)


def negated(part: Matcher) -> Matcher:
    """Return the rows that do not match."""
    return not part if isinstance(part, bool) else lambda: np.logical_not(part())


def _joined(parts: Iterable[Matcher], decisive: bool, join: Any) -> Matcher:
    """Join matchers; a constant part decides, or changes nothing."""
    masks: list[Callable[[], Mask]] = []
    for part in parts:
        if isinstance(part, bool):
            if part is decisive:
                return decisive
        else:
            masks.append(part)
    if not masks:
        return not decisive
    return masks[0] if len(masks) == 1 else lambda: _reduce(masks, join)


def _reduce(masks: list[Callable[[], Mask]], join: Any) -> Mask:
    result = masks[0]()
    for mask in masks[1:]:
        join(result, mask(), out=result)
    return result
