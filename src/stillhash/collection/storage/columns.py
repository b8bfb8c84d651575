"""Columns: the values of one field, or the labels, of many rows, in arrays that a filter compares at once.

dictionary    the distinct values in order, and a code for each row: a comparison is a range of codes
numbers       the numbers themselves, and which rows have none
labels        the distinct sets of labels, a code for each row, and for each label the sets that hold it

They are built row by row from labels and metadata as they are stored: JSON texts. Files beside segments have those of
their rows, for filters. They only save time: SQLite has it all.

    bytes 0-55    magic, format, bytes of the directory, commit, rows, first and last row, the segment's identity
    bytes 56-     the directory as JSON: for each block of rows its fields, and where their arrays are
    then          the arrays of each field, which begin at a multiple of 4,096 bytes

It is a sealed file (files.py). The checksums of the directory are verified when the file is opened, those of a
field before its first use. A file that is absent, damaged, or of another segment is not used.
"""

import json
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property, partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.bitmaps import (
    FALSE,
    MISSING,
    NULL,
    OTHER,
    TRUE,
    WORDS,
    Selection,
    Word,
    closed_interval,
)
from stillhash.collection.storage.schema import parse_json
from stillhash.errors import BadState, StillhashError
from stillhash.files import (
    BLOCK_SIZE,
    content_size,
    damaged_blocks,
    display_name,
    map_file,
    open_regular,
    unpack_checksums,
    write_sealed,
)
from stillhash.numeric.validation import Mask

MAX_TABLE = 1 << 20  # entries
MAX_LISTED_TEXTS = 4096
NO_CODES = np.empty(0, np.int64)
MAX_RANGES = 4  # ranges of codes are compared one by one; more go through a table

Arrays = dict[str, NDArray[Any]]
CodeRange = tuple[int, int]  # from, up to and without
Matcher = bool | Callable[[], Mask]  # which rows match: all, none, or what it returns


class SortedTexts(Sequence[bytes]):
    """Texts in order, as UTF-8 in one array."""

    def __init__(self, data: NDArray[np.uint8], ends: NDArray[np.uint64]) -> None:
        self.data, self.ends = data, ends

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, place: Any) -> Any:
        return self.data[int(self.ends[place - 1]) if place else 0 : int(self.ends[place])].tobytes()


@dataclass(eq=False)
class SortedValues:
    """Distinct numbers in order, then distinct texts in order."""

    numbers: NDArray[Any]  # int64 or float64
    text_data: NDArray[np.uint8]
    text_ends: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.numbers) + len(self.text_ends)

    @cached_property
    def texts(self) -> Sequence[bytes]:
        """Return the texts; few are kept as a list, which is faster."""
        texts = SortedTexts(self.text_data, self.text_ends)
        return list(texts) if len(texts) <= MAX_LISTED_TEXTS else texts

    def ranges(self, selection: Selection) -> list[CodeRange]:
        """Return the places of what is selected."""
        chosen, first_text = [], len(self.numbers)
        for interval in selection.numbers:
            low, high = closed_interval(interval, self.numbers.dtype)
            start = 0 if low is None else int(self.numbers.searchsorted(low, "left"))
            chosen.append((start, first_text if high is None else int(self.numbers.searchsorted(high, "right"))))
        for low, high, open_low, open_high in selection.texts:
            start = 0 if low is None else (bisect_right if open_low else bisect_left)(self.texts, low)
            if low is not None and low == high:
                stop = start + (start < len(self.texts) and self.texts[start] == low)
            elif high is None:
                stop = len(self.texts)
            else:
                stop = (bisect_left if open_high else bisect_right)(self.texts, high, lo=start)
            chosen.append((first_text + start, first_text + stop))
        return [(start, stop) for start, stop in chosen if start < stop]

    def places(self, selection: Selection) -> NDArray[np.int64]:
        """Return the places of the points that are selected."""
        places = np.empty(0, np.int64)
        if selection.points is not None:
            points = selection.points.of_kind(self.numbers.dtype)
            starts, stops = (np.searchsorted(self.numbers, points, side) for side in ("left", "right"))
            places = starts[starts < stops]
        if selection.text_points:
            texts, sought = self.texts, selection.text_points
            if len(texts) < len(sought) * len(texts).bit_length():
                same = [place for place, text in enumerate(texts) if text in sought]
            else:
                near = [(bisect_left(texts, point), point) for point in sought]
                same = [place for place, point in near if place < len(texts) and texts[place] == point]
            places = np.concatenate([places, len(self.numbers) + np.array(same, np.int64)])
        return places


@dataclass(eq=False)
class DictionaryColumn:
    """A code for each row: of a word, or of a value."""

    codes: NDArray[Any]  # the smallest unsigned integers that fit
    numbers: NDArray[Any]
    text_data: NDArray[np.uint8]
    text_ends: NDArray[np.uint64]

    @cached_property
    def values(self) -> SortedValues:
        return SortedValues(self.numbers, self.text_data, self.text_ends)

    def matcher(self, selection: Selection) -> Matcher:
        """Return which rows match."""
        values = self.values
        ranges = [(word.code, word.code + 1) for word in selection.words]
        ranges += [(WORDS + start, WORDS + stop) for start, stop in values.ranges(selection)]
        return code_matcher(self.codes, ranges, WORDS + len(values), WORDS + values.places(selection))


@dataclass(eq=False)
class NumberColumn:
    """A number for each row; rows without one have 0, and their word."""

    values: NDArray[Any]  # float64, or the smallest integers that fit
    words: NDArray[np.uint8]  # WORDS for a number; empty if all rows have one
    bounds: NDArray[Any]  # the least and the largest number, if there is one

    def matcher(self, selection: Selection) -> Matcher:
        """Return which rows match."""
        words = [(word.code, word.code + 1) for word in selection.words]
        by_word = code_matcher(self.words, words, WORDS + 1) if len(self.words) else False
        wide = np.dtype(np.float64 if self.values.dtype.kind == "f" else np.int64)
        parts = [by_word, *(self._within(*closed_interval(interval, wide)) for interval in selection.numbers)]
        return any_of(parts if selection.points is None else [*parts, self._one_of(selection.points.of_kind(wide))])

    def _one_of(self, points: NDArray[Any]) -> Matcher:
        """Return which rows have one of these numbers."""
        if not len(self.bounds):
            return False
        low, high = self.bounds.tolist()
        points = points[(points >= low) & (points <= high)].astype(self.values.dtype)
        if self.values.dtype.kind == "f" or high - low >= MAX_TABLE:
            return all_of([lambda: np.isin(self.values, points), self._is_number()])
        table = np.zeros(high - low + 1, bool)
        table[points.astype(np.int64) - low] = True
        # A row without a number has 0, which may be outside the table; its word decides.
        unsigned = self.values.view(f"u{self.values.itemsize}")  # so that the difference wraps
        first = self.bounds[:1].astype(self.values.dtype).view(unsigned.dtype)[0]
        return all_of([table_matcher(unsigned, table, int(first)), self._is_number()])

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


@dataclass(eq=False)
class LabelColumn:
    """A set of labels for each row; set 0 has none."""

    codes: NDArray[Any]  # the set of each row
    numbers: NDArray[Any]
    text_data: NDArray[np.uint8]
    text_ends: NDArray[np.uint64]
    starts: NDArray[np.uint64]  # of each label's sets
    sets: NDArray[Any]  # that hold the first label, the second, ...
    set_count: NDArray[np.uint64]  # (1,)

    @cached_property
    def values(self) -> SortedValues:
        return SortedValues(self.numbers, self.text_data, self.text_ends)

    @cached_property
    def names(self) -> list[Any]:
        """Return all labels, numbers before texts."""
        return [*self.values.numbers.tolist(), *(text.decode() for text in self.values.texts)]

    @cached_property
    def labels_of_sets(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the labels of all sets one after another, as places in `names`, and where those of each set begin."""
        counts = np.bincount(self.sets, minlength=int(self.set_count[0]))
        labels = np.repeat(np.arange(len(self.starts) - 1), (self.starts[1:] - self.starts[:-1]).astype(np.int64))
        return labels[np.argsort(self.sets, kind="stable")], np.concatenate([[0], np.cumsum(counts)])

    def matcher(self, selection: Selection) -> Matcher:
        """Return which rows have one of these labels; MISSING selects rows without labels, OTHER those with any."""
        if OTHER in selection.words:
            return code_matcher(self.codes, [(1, int(self.set_count[0]))], int(self.set_count[0]))
        table = np.zeros(int(self.set_count[0]), bool)
        table[0] = MISSING in selection.words
        values = self.values
        for start, stop in [*values.ranges(selection), *((place, place + 1) for place in values.places(selection))]:
            table[self.sets[int(self.starts[start]) : int(self.starts[stop])]] = True
        return table_matcher(self.codes, table)


Column = DictionaryColumn | NumberColumn | LabelColumn
COLUMN_LAYOUTS: dict[str, Any] = {"dictionary": DictionaryColumn, "numbers": NumberColumn, "labels": LabelColumn}


def layout_of(column: Column) -> str:
    """Return the name of a column's layout."""
    return next(name for name, kind in COLUMN_LAYOUTS.items() if isinstance(column, kind))


def column_arrays(column: Column) -> list[NDArray[Any]]:
    """Return the arrays of a column, in the order in which its class takes them."""
    return [getattr(column, field.name) for field in fields(column)]


def column_bytes(column: Column) -> int:
    """Return the bytes of a column's arrays."""
    return sum(array.nbytes for array in column_arrays(column))


def code_matcher(
    codes: NDArray[Any], ranges: Iterable[CodeRange], count: int, others: NDArray[np.int64] = NO_CODES
) -> Matcher:
    """Return which rows have a code in one of these ranges, or one of the others; there are `count` codes."""
    merged: list[CodeRange] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    if len(merged) <= MAX_RANGES and not len(others):
        if merged == [(0, count)]:
            return True
        return any_of([_range_matcher(codes, start, stop) for start, stop in merged])
    table = np.zeros(count, bool)
    table[others] = True
    for start, stop in merged:
        table[start:stop] = True
    return table_matcher(codes, table) if len(others) else lambda: table.take(codes)


def table_matcher(codes: NDArray[Any], table: Mask, first: int = 0) -> Matcher:
    """Return which rows have a code that is true in the table, whose first entry is that of the code `first`."""
    if (ranges := _true_ranges(table, first)) is not None:
        return any_of([_range_matcher(codes, start, stop) for start, stop in ranges])
    start = codes.dtype.type(first)
    return (lambda: table.take(codes - start, mode="clip")) if first else (lambda: table.take(codes))


def _true_ranges(table: Mask, first: int) -> list[CodeRange] | None:
    """Return where a table is true, None if that is in more than MAX_RANGES places."""
    places = np.flatnonzero(table[1:] != table[:-1])
    if len(places) > 2 * MAX_RANGES:
        return None
    edges = [0] * bool(table[0]) + (places + 1).tolist() + [len(table)] * bool(table[-1])
    return [(first + start, first + stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def _range_matcher(codes: NDArray[Any], start: int, stop: int) -> Matcher:
    """Return which rows have a code in a range, which may begin past the largest code and then wraps."""
    size = 1 << 8 * codes.itemsize
    if stop - start >= size:
        return True
    first = codes.dtype.type(start % size)
    if stop == start + 1:
        return lambda: codes == first
    width = codes.dtype.type(stop - start)
    return lambda: (codes - first) < width  # unsigned: codes before the first wrap to the largest


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


LABELS = "labels"  # the name of their column; a field of the metadata with this name cannot be tested
MAX_FIELDS = 64  # fields get columns, the first ones seen, unless fields are named
MAX_CATEGORIES = 65_536  # numbers are listed; more are stored themselves
NO_FIELDS: dict[str, Any] = {}
NO_LABELS = "[]"
EXACT_INTEGERS = 2**53  # doubles up to here hold every integer


PLAIN_TYPES = {int, float, str, Word}


class FieldBuilder:
    """Collects the values of one field."""

    def __init__(self, rows: int) -> None:
        self.places: dict[Any, int] = {MISSING: 0}  # of each distinct value
        self.chunks: list[NDArray[Any]] = [np.zeros(rows, np.uint32)]  # places, or numbers
        self.words: list[NDArray[np.uint8]] = []  # beside numbers
        self.supported = True  # otherwise SQL answers

    def append(self, values: list[Any]) -> None:
        """Append a value for each row, MISSING where there is none."""
        if not self.supported:
            return
        if not set(map(type, values)) <= PLAIN_TYPES:
            values = [value if type(value) in PLAIN_TYPES else _word(value) for value in values]
        if self.words:
            self._append_numbers(values)
            return
        for value in dict.fromkeys(values):
            self.places.setdefault(value, len(self.places))
        self.chunks.append(np.fromiter(map(self.places.__getitem__, values), np.uint32, len(values)))
        if len(self.places) > MAX_CATEGORIES and not any(isinstance(value, str) for value in self.places):
            listed, chunks = list(self.places), self.chunks
            self.places, self.chunks = {}, []
            for chunk in chunks:
                self._append_numbers([listed[place] for place in chunk.tolist()])

    def _append_numbers(self, values: list[Any]) -> None:
        if not self.supported:
            return
        words = [value.code if isinstance(value, Word) else WORDS for value in values]
        numbers = number_array([0 if isinstance(value, Word) else value for value in values])
        if numbers is None:  # or a text among many numbers
            self.supported, self.places, self.chunks, self.words = False, {}, [], []
            return
        self.chunks.append(numbers)
        self.words.append(np.array(words, np.uint8))

    def column(self) -> Column | None:
        """Return the column of all values so far, None if only SQL can compare them."""
        if not self.supported:
            return None
        if self.words:
            numbers = _concatenate_numbers(self.chunks)
            return None if numbers is None else _number_column(numbers, np.concatenate(self.words))
        return self._dictionary()

    def _dictionary(self) -> Column | None:
        listed = list(self.places)
        words, values = [v.code for v in listed if isinstance(v, Word)], [v for v in listed if not isinstance(v, Word)]
        ordered = sorted_values(values)
        if ordered is None:
            return None
        rank, (numbers, *texts) = ordered
        order = np.empty(len(listed), np.int64)
        order[[isinstance(v, Word) for v in listed]] = words
        order[[not isinstance(v, Word) for v in listed]] = WORDS + rank
        places = np.concatenate(self.chunks)
        codes = order.astype(_code_type(WORDS + len(values)))[places]
        dictionary = DictionaryColumn(codes, numbers, texts[0], texts[1])
        if len(texts[1]) or not len(numbers):
            return dictionary
        word = np.minimum(order, WORDS).astype(np.uint8)
        by_place = np.where(order < WORDS, 0, numbers[np.maximum(order - WORDS, 0)])
        column = _number_column(by_place[places], word[places])
        return column if column_bytes(column) < column_bytes(dictionary) else dictionary


class LabelBuilder:
    """Collects the labels of rows, which are JSON lists."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {NO_LABELS: 0}  # of each distinct set
        self.chunks: list[NDArray[np.uint32]] = [np.zeros(0, np.uint32)]

    def append(self, texts: list[str]) -> None:
        """Append the labels of rows."""
        for text in dict.fromkeys(texts):
            self.places.setdefault(text, len(self.places))
        self.chunks.append(np.fromiter(map(self.places.__getitem__, texts), np.uint32, len(texts)))

    def sets(self) -> tuple[NDArray[np.uint32], list[str]]:
        """Return the set of each row so far, and the sets as they are stored."""
        self.chunks = [np.concatenate(self.chunks)]
        return self.chunks[0], list(self.places)

    def column(self) -> Column | None:
        """Return the column of all labels so far, None if only SQL can compare them."""
        sets: list[list[Any]] = json.loads(f"[{','.join(self.places)}]")
        labels: dict[Any, int] = {}
        flat = np.array([labels.setdefault(label, len(labels)) for some in sets for label in some], np.int64)
        ordered = sorted_values(list(labels))
        if ordered is None:
            return None
        rank, values = ordered
        places = np.concatenate(self.chunks)
        order = _order_sets(sets, labels, np.bincount(places, minlength=len(sets)))
        holders = np.repeat(order, list(map(len, sets)))
        flat = rank[flat]
        starts = np.concatenate([[0], np.cumsum(np.bincount(flat, minlength=len(labels)))]).astype(np.uint64)
        smallest = _code_type(len(sets))
        held = holders[np.argsort(flat, kind="stable")].astype(smallest)
        codes = order.astype(smallest)[places]
        return LabelColumn(codes, *values, starts, held, np.array([len(sets)], np.uint64))


def _order_sets(sets: list[list[Any]], labels: dict[Any, int], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a code for each set of labels, 0 for the empty one.

    The sets of the most frequent label are side by side, those of the next one in two places, and so on, so that the
    codes of a frequent label are few ranges.
    """
    counts = [0] * len(labels)
    for some, count in zip(sets, rows.tolist(), strict=True):
        for label in some:
            counts[labels[label]] += count
    by_count = np.argsort(np.argsort(-np.array(counts, np.int64), kind="stable")).tolist()
    keys = [sorted(by_count[labels[label]] for label in some) for some in sets]
    return np.argsort(np.array(sorted(range(len(sets)), key=keys.__getitem__), np.int64))


class TableBuilder:
    """Collects labels and metadata of rows; the fields of the metadata are stored, or named."""

    def __init__(self, named: Iterable[str] | None = None) -> None:
        self.rows = 0
        self.complete = named is None  # False once a field was left out
        self.labels = LabelBuilder()
        self.growing = True  # until `freeze`
        self._automatic = named is None
        self._fields = {name: FieldBuilder(0) for name in named or ()}
        self._columns: dict[str, Column | None] = {}  # of all rows so far

    def append(self, label_texts: list[str], metadata_texts: list[str | None]) -> None:
        """Append rows."""
        self._columns.clear()
        self.labels.append(label_texts)
        values: dict[str, list[Any]] = {}
        if any(metadata_texts):
            rows = json.loads(f"[{','.join([text or '{}' for text in metadata_texts])}]")
            self._collect(values, rows, "")
        for name, some in values.items():
            if name not in self._fields:
                self._fields[name] = FieldBuilder(self.rows)
            self._fields[name].append(some)
        absent = [MISSING] * len(label_texts)
        for name in self._fields.keys() - values.keys():
            self._fields[name].append(absent)
        self.rows += len(label_texts)

    def _collect(self, values: dict[str, list[Any]], objects: list[dict[str, Any]], prefix: str) -> None:
        """Collect the values of each field of these objects, and of the objects in them."""
        for key in dict.fromkeys(chain.from_iterable(objects)):
            name = prefix + key
            if "." in key or name == LABELS or name.startswith("$"):  # which no filter can name
                continue
            if not self._takes(name, values):
                continue
            try:
                stored = list(map(itemgetter(key), objects))  # which is faster, where all have it
            except KeyError:
                stored = [each.get(key, MISSING) for each in objects]
            if self._automatic or name in self._fields:
                values[name] = stored
            if dict in set(map(type, stored)):
                below = [value if type(value) is dict else NO_FIELDS for value in stored]
                self._collect(values, below, f"{name}.")

    def _takes(self, name: str, values: dict[str, list[Any]]) -> bool:
        """Return whether this field, or one below it, gets a column."""
        if not self._automatic:
            return name in self._fields or any(field.startswith(f"{name}.") for field in self._fields)
        if name in self._fields or len(self._fields.keys() | values.keys()) < MAX_FIELDS:
            return True
        self.complete = False
        return False

    def column(self, name: str) -> Column | None:
        """Return the column of a field, or of LABELS; None if SQL must compare it, or no row has it."""
        if name not in self._columns:
            builder = self.labels if name == LABELS else self._fields[name]
            self._columns[name] = builder.column()
        return self._columns[name]

    def freeze(self) -> "TableBuilder":
        """Build all columns, and forget what they were built from: no more rows can be appended."""
        for name in self.names():
            self.column(name)
        self.growing = False
        self.labels, self._fields = LabelBuilder(), dict.fromkeys(self._fields, FieldBuilder(0))
        return self

    def names(self) -> list[str]:
        """Return the fields so far, and LABELS."""
        return [LABELS, *self._fields]


def _word(value: Any) -> Word:
    return NULL if value is None else TRUE if value is True else FALSE if value is False else OTHER


def _code_type(count: int) -> Any:
    """Return the smallest unsigned integers for so many codes."""
    return np.min_scalar_type(max(0, count - 1)).type


def number_array(values: list[Any]) -> NDArray[Any] | None:
    """Return numbers as int64 or float64; None if neither holds all of them exactly, or they are no numbers."""
    if set(map(type, values)) <= {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass
    try:  # integers beyond 64 bits count as doubles
        values = [float(v) if type(v) is int and not -(2**63) <= v < 2**63 else v for v in values]
    except OverflowError:
        return None
    if not set(map(type, values)) <= {int, float}:
        return None
    if any(type(v) is int and abs(v) > EXACT_INTEGERS for v in values):
        return None
    return np.array(values, np.float64)


def _concatenate_numbers(chunks: list[NDArray[Any]]) -> NDArray[Any] | None:
    if len({chunk.dtype for chunk in chunks}) > 1 and any(
        chunk.dtype.kind == "i" and len(chunk) and max(abs(int(chunk.min())), int(chunk.max())) > EXACT_INTEGERS
        for chunk in chunks
    ):
        return None
    return np.concatenate(chunks)


def _number_column(numbers: NDArray[Any], words: NDArray[np.uint8]) -> NumberColumn:
    present = words == WORDS
    chosen = numbers if present.all() else numbers[present]
    bounds = np.array([chosen.min(), chosen.max()] if len(chosen) else [], numbers.dtype)
    if numbers.dtype.kind == "i" and len(bounds):
        low, high = (np.min_scalar_type(int(bound) if bound < 0 else -int(bound) - 1) for bound in bounds)
        numbers = numbers.astype(np.promote_types(low, high))
    return NumberColumn(numbers, words[:0] if len(chosen) == len(numbers) else words, bounds)


def sorted_values(values: list[Any]) -> tuple[NDArray[np.int64], tuple[Any, Any, Any]] | None:
    """Return the rank of each of these distinct numbers and texts, and them in order, as SortedValues has them."""
    texts = [value for value in values if isinstance(value, str)]
    numbers = number_array([value for value in values if not isinstance(value, str)])
    if numbers is None:
        return None
    distinct, rank = np.unique(numbers, return_inverse=True)
    try:
        data = [text.encode() for text in sorted(texts)]
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    is_text = np.array([isinstance(value, str) for value in values], bool)
    ranks = np.empty(len(values), np.int64)
    ranks[~is_text] = rank
    ranks[is_text] = len(distinct) + np.argsort(np.array(sorted(range(len(texts)), key=texts.__getitem__), np.int64))
    ends = np.cumsum([len(text) for text in data], dtype=np.uint64)
    return ranks, (distinct, np.frombuffer(b"".join(data), np.uint8), ends)


COLUMNS_MAGIC, COLUMNS_FORMAT = b"STILLCOL", 1
COLUMNS_HEADER = struct.Struct("<8sIIqqqq8s")  # magic, format, directory's bytes, commit, rows, first, last, identity
COLUMN_ROWS = 1 << 20  # rows are one block, with dictionaries of its own
ROWS_PER_READ = 1 << 14  # rows are read from SQLite at a time
ARRAY_ALIGNMENT = 64  # bytes
COLUMN_TYPES = frozenset(("|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8", "<f8"))

LabelsAndMetadata = tuple[list[str], list[str | None]]  # JSON texts of some rows


def columns_file(segment_file: str) -> str:
    """Return the name of the columns of a segment."""
    return f"{Path(segment_file).stem}.columns"


def segment_contents(connection: Connection, numbers: NDArray[np.int64]) -> Iterator[LabelsAndMetadata]:
    """Yield labels and metadata of these ascending rows, some at a time; rows without an item have none."""
    for start in range(0, len(numbers), ROWS_PER_READ):
        part = numbers[start : start + ROWS_PER_READ].tolist()
        sql = "SELECT row, labels, metadata FROM items WHERE row BETWEEN ? AND ? ORDER BY row"
        stored = connection.execute(sql, [part[0], part[-1]]).fetchall()
        if [row for row, _, _ in stored] != part:
            known = {row: (row, labels, metadata) for row, labels, metadata in stored}
            stored = [known.get(row, (row, NO_LABELS, None)) for row in part]
        yield [labels for _, labels, _ in stored], [metadata for _, _, metadata in stored]


def build_blocks(contents: Iterable[LabelsAndMetadata], named: list[str] | None) -> Iterator[TableBuilder]:
    """Yield builders of the columns of all rows, each of about COLUMN_ROWS."""
    builder = TableBuilder(named)
    for labels, metadata in contents:
        builder.append(labels, metadata)
        if builder.rows >= COLUMN_ROWS:
            yield builder
            builder = TableBuilder(named)
    if builder.rows:
        yield builder


def write_columns(
    segment: Path,
    contents: Iterable[LabelsAndMetadata],
    record: tuple[int, int, int],
    seq: int,
    named: list[str] | None,
    path: Path | None = None,
) -> None:
    """Write the columns of a segment that has `record` (rows, first, last), as of a commit; failures are ignored.

    path: of the file; otherwise it is beside the segment.
    """
    path = path or segment.with_suffix(".columns")
    with suppress(OSError, StillhashError, RecursionError):  # the last from objects in objects
        path.unlink(missing_ok=True)
        _write(path, build_blocks(contents, named), record, seq, segment_identity(segment))


def _write(path: Path, builders: Iterable[TableBuilder], record: tuple[int, int, int], seq: int, own: bytes) -> None:
    blocks: list[dict[str, Any]] = []
    parts: list[bytes] = []
    place = 0  # after the directory
    for builder in builders:
        fields: dict[str, Any] = {}
        for name in builder.names():
            column = builder.column(name)
            data = (
                b""
                if column is None
                else b"".join(_aligned(array.tobytes(), ARRAY_ALIGNMENT) for array in column_arrays(column))
            )
            shapes = [] if column is None else [[array.dtype.str, len(array)] for array in column_arrays(column)]
            fields[name] = [None if column is None else layout_of(column), place, shapes]
            parts.append(_aligned(data, BLOCK_SIZE))
            place += len(parts[-1])
        blocks.append({"rows": builder.rows, "complete": builder.complete, "fields": fields})
    directory = json.dumps(blocks).encode()
    head = COLUMNS_HEADER.pack(COLUMNS_MAGIC, COLUMNS_FORMAT, len(directory), seq, *record, own)
    write_sealed(path, [_aligned(head + directory, BLOCK_SIZE), *(part for part in parts if part)])


def _aligned(data: bytes, size: int) -> bytes:
    return data.ljust(-(-len(data) // size) * size, b"\0")


def segment_identity(segment: Path) -> bytes:
    """Return the last bytes of a segment: checksums of its checksums."""
    with open_regular(segment) as file:
        file.seek(-8, 2)
        return file.read()


class MappedContent:
    """The content of a file of columns, mapped, and its checksums."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, content_size(path)
        data = map_file(path).view(np.ndarray)
        self._data, self._checksums = data[: self.size], unpack_checksums(data[self.size :].tobytes(), path.name)

    def read(self, start: int, size: int) -> NDArray[np.uint8]:
        """Return some bytes; raise BadState if a block of them does not match its checksum."""
        first, end = start // BLOCK_SIZE, -(-(start + size) // BLOCK_SIZE)
        blocks = self._data[first * BLOCK_SIZE : end * BLOCK_SIZE]
        if damaged_blocks(blocks, self._checksums[first:end]):
            raise BadState(f"{display_name(self.path)}: damaged")
        return self._data[start : start + size]


class ColumnFile:
    """The columns of a segment. The blocks share its content, and do not know it, so that both are freed at once."""

    def __init__(self, segment: Path, record: tuple[int, int, int], path: Path | None = None) -> None:
        """Open the file, at a path or beside its segment; raise BadState or OSError if it cannot be used."""
        self.path = path or segment.with_suffix(".columns")
        content = MappedContent(self.path)
        if content.size < COLUMNS_HEADER.size:
            raise BadState(f"{display_name(self.path)}: shorter than its header")
        head = COLUMNS_HEADER.unpack(content.read(0, COLUMNS_HEADER.size).tobytes())
        magic, format_, directory_bytes, self.seq, *rows, identity = head
        expected = COLUMNS_MAGIC, COLUMNS_FORMAT, record, segment_identity(segment)
        if (magic, format_, tuple(rows), identity) != expected:
            raise BadState(f"{display_name(self.path)}: of another segment or format")
        end = COLUMNS_HEADER.size + directory_bytes
        blocks = parse_json(content.read(0, end)[COLUMNS_HEADER.size :].tobytes(), list, display_name(self.path))
        arrays = -(-end // BLOCK_SIZE) * BLOCK_SIZE
        try:
            self.blocks = [FileBlock(content, arrays, **block) for block in blocks]
            if sum(block.rows for block in self.blocks) != record[0]:
                raise ValueError("other rows than the segment")
        except (TypeError, ValueError, AttributeError) as error:
            raise BadState(f"{display_name(self.path)}: expected blocks of columns, got {error}") from error


def columns_seq(segment: Path, record: tuple[int, int, int]) -> int | None:
    """Return the commit that the columns of a segment are of; None if there is no file that can be used."""
    try:
        return int(ColumnFile(segment, record).seq)
    except (BadState, OSError, ValueError):
        return None


class FileBlock:
    """The columns of consecutive rows of a segment, read when they are first used."""

    def __init__(self, content: MappedContent, arrays: int, rows: int, complete: bool, fields: dict[str, Any]) -> None:
        if not isinstance(rows, int) or not isinstance(fields, dict):
            raise TypeError("no rows or fields")
        self.rows, self.complete = rows, complete
        self._content, self._arrays, self._fields = content, arrays, fields
        self._columns: dict[str, Column | None] = {}

    def names(self) -> Iterable[str]:
        """Return the fields of which there are columns, or which only SQL can compare."""
        return self._fields.keys()

    def column(self, name: str) -> Column | None:
        """Return the column of a field, None if only SQL can compare it; raise BadState if it is damaged."""
        if name not in self._columns:
            self._columns[name] = self._read(*self._fields[name])
        return self._columns[name]

    def _read(self, layout: str | None, start: int, shapes: list[tuple[str, int]]) -> Column | None:
        if layout is None:
            return None
        try:
            if not all(kind in COLUMN_TYPES for kind, _ in shapes):
                raise ValueError("arrays of another type")
            sizes = [np.dtype(kind).itemsize * count for kind, count in shapes]
            ends = np.cumsum([0, *(-(-size // ARRAY_ALIGNMENT) * ARRAY_ALIGNMENT for size in sizes)]).tolist()
            data = self._content.read(self._arrays + start, ends[-1])
            arrays = [data[s : s + size].view(kind) for s, size, (kind, _) in zip(ends, sizes, shapes, strict=False)]
            if len(arrays[0]) != self.rows:
                raise ValueError("other rows than the block")
            column: Column = COLUMN_LAYOUTS[layout](*arrays)
        except (TypeError, ValueError, LookupError, OverflowError) as error:
            if isinstance(error, BadState):
                raise
            raise BadState(f"{display_name(self._content.path)}: expected a column, got {error}") from error
        return column
