"""Build columns of labels and metadata, row by row, as they are stored: JSON texts."""

import json
from collections.abc import Iterable
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.columns import Column, DictionaryColumn, LabelColumn, NumberColumn, column_bytes
from stillhash.collection.storage.selections import FALSE, MISSING, NULL, OTHER, TRUE, WORDS, Word

LABELS = "labels"  # the name of their column; a field of the metadata with this name cannot be tested
MAX_FIELDS = 64  # that get columns, the first ones seen, unless fields are named
MAX_CATEGORIES = 65_536  # numbers that are listed; more are stored themselves
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
