"""Count the values of a field, or the labels, of some rows: from columns, or by reading the items."""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from sqlite3 import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filters.matching import WORD_OF, sql_numbers
from stillhash.collection.filters.row_groups import RowGroup
from stillhash.collection.storage.bitmaps import (
    FALSE,
    MISSING,
    NULL,
    OTHER,
    TRUE,
    WORDS,
    Word,
    read_span,
    set_rows,
    set_span,
)
from stillhash.collection.storage.columns import LABELS, Column, LabelColumn, NumberColumn, SortedValues
from stillhash.collection.storage.items import MAX_SQL_SECONDS, RowNumbers
from stillhash.collection.storage.schema import MAX_ROW_NUMBER, parse_json
from stillhash.errors import TooLarge
from stillhash.numeric.validation import Mask
from stillhash.search.blocks import Bitmap, is_set

MAX_FACET_VALUES = 1 << 12  # distinct values of a field that are counted one by one
MAX_COUNTED_LABELS = 1 << 15  # distinct labels
ROWS_PER_CHECK = 1 << 12  # of items that are read, between looks at the clock
COUNTED_WORDS = (NULL, FALSE, TRUE)

Counts = NDArray[np.int64]


class CountedRows(NamedTuple):
    """Rows of a group that count."""

    numbers: RowNumbers  # less the offset
    mask: Mask | None  # which of the group these are; None for all
    offset: int = 0

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of these rows, of those of the group."""
        return values if self.mask is None else values[self.mask]

    def firsts(self, codes: NDArray[Any], size: int) -> RowNumbers:
        """Return the first row of each code below `size`, from a code for each of these rows."""
        firsts = np.full(size, MAX_ROW_NUMBER, np.int64)
        np.minimum.at(firsts, codes, self.numbers)
        return firsts + self.offset


class ValueCount(NamedTuple):
    """How many rows have a value, and the first of them."""

    rows: int
    first: int


@dataclass
class ValueCounts:
    """How many rows have a field, and each of its values; numbers as they are, texts as UTF-8, others as words."""

    most: int  # values that are counted
    items: int = 0
    counts: dict[Any, ValueCount] = field(default_factory=dict)  # empty once there are too many
    complete: bool = True  # False once there are too many
    low: Any = None  # the least number
    high: Any = None
    only_numbers: bool = True  # and null

    @classmethod
    def of(cls, name: str) -> "ValueCounts":
        """Return no counts yet, of a field or of LABELS."""
        return cls(MAX_COUNTED_LABELS if name == LABELS else MAX_FACET_VALUES)

    def add(self, values: Iterable[Any], rows: Iterable[int], firsts: Iterable[int]) -> None:
        """Add values, each once, with the number of their rows and the first of these."""
        if not self.complete:
            return
        for value, count, first in zip(values, rows, firsts, strict=True):
            before = self.counts.get(value)
            if before is not None:
                count, first = before.rows + count, min(before.first, first)
            self.counts[value] = ValueCount(count, first)
        self._leave_out_beyond(len(self.counts))

    def add_bounds(self, low: Any, high: Any) -> None:
        """Add the least and the largest of some numbers."""
        self.low = low if self.low is None else min(low, self.low)
        self.high = high if self.high is None else max(high, self.high)

    def _leave_out_beyond(self, values: int) -> None:
        """Stop counting values one by one if there are too many."""
        if values > self.most:
            self.complete, self.counts = False, {}

    def add_column(self, column: Column | None, rows: CountedRows) -> None:
        """Add some rows of a column; no row has the field where there is no column."""
        if isinstance(column, LabelColumn):
            self._add_labels(column, rows)
        elif isinstance(column, NumberColumn):
            self._add_numbers(column, rows)
        elif column is not None:
            codes, values = rows.of(column.codes), column.values
            counts = np.bincount(codes, minlength=WORDS + len(values))
            self._leave_out_beyond(int(np.count_nonzero(counts[WORDS:])))
            firsts = rows.firsts(codes, len(counts)) if self.complete else counts
            self._add_words(counts, firsts)
            self._add_sorted(values, counts[WORDS:], firsts[WORDS:])
            self.items += int(counts[WORDS:].sum())

    def _add_labels(self, column: LabelColumn, rows: CountedRows) -> None:
        codes, labels, sets = rows.of(column.codes), len(column.values), int(column.set_count[0])
        counts, starts = np.bincount(codes, minlength=sets), column.starts[:labels].astype(np.int64)
        self.items += int(counts[1:].sum())
        if labels:  # each is in some set
            firsts = np.minimum.reduceat(rows.firsts(codes, sets)[column.sets], starts)
            self._add_sorted(column.values, np.add.reduceat(counts[column.sets], starts), firsts)

    def _add_numbers(self, column: NumberColumn, rows: CountedRows) -> None:
        numbers = rows.of(column.values)
        if len(column.words):
            words, size = rows.of(column.words), WORDS + 1
            self._add_words(np.bincount(words, minlength=size), rows.firsts(words, size))
            numbers, rows = numbers[words == WORDS], rows._replace(numbers=rows.numbers[words == WORDS])
        if not len(numbers):
            return
        self.items += len(numbers)
        self.add_bounds(numbers.min().item(), numbers.max().item())
        if self.complete:
            distinct, counts = np.unique(numbers, return_counts=True)
            self._leave_out_beyond(len(distinct))
        if self.complete:
            firsts = rows.firsts(np.searchsorted(distinct, numbers), len(distinct))
            self.add(distinct.tolist(), counts.tolist(), firsts.tolist())

    def _add_sorted(self, values: SortedValues, counts: Counts, firsts: Counts) -> None:
        """Add the values of a dictionary; those that no row has are left out."""
        places, first_text = np.flatnonzero(counts), len(values.numbers)
        self._leave_out_beyond(len(places))
        numbers = places[places < first_text]
        if len(numbers):
            self.add_bounds(values.numbers[numbers[0]].item(), values.numbers[numbers[-1]].item())
        self.only_numbers &= len(numbers) == len(places)
        if self.complete:
            texts = [values.texts[place] for place in (places[len(numbers) :] - first_text).tolist()]
            self.add([*values.numbers[numbers].tolist(), *texts], counts[places].tolist(), firsts[places].tolist())

    def _add_words(self, counts: Counts, firsts: Counts) -> None:
        """Add the rows of each word; of lists and objects only that they have the field."""
        self.items += int(counts[:WORDS].sum() - counts[MISSING.code])
        self.only_numbers &= not (counts[FALSE.code] or counts[TRUE.code] or counts[OTHER.code])
        for word in COUNTED_WORDS:
            if counts[word.code]:
                self.add([word], [int(counts[word.code])], [int(firsts[word.code])])


def current_rows(groups: list[RowGroup], rows: Bitmap) -> list[CountedRows]:
    """Return which rows of each group count: a row that changed counts in the last group that has it.

    rows: those to count, of all.
    """
    left, counted = rows.copy(), []
    places = np.arange(max((group.rows for group in groups), default=0))  # once, since it takes a while
    for group in reversed(groups):
        offset = 0
        if group.numbers is None:
            numbers, offset = places[: group.rows], group.first
            mask = read_span(left, group.first, group.rows)
            set_span(left, group.first, np.zeros(group.rows, bool))
        else:
            numbers = group.numbers
            mask = _last_of_each(numbers) & is_set(left, numbers)
            set_rows(left, numbers, np.zeros(group.rows, bool))
        every = bool(mask.all())
        counted.append(CountedRows(numbers if every else numbers[mask], None if every else mask, offset))
    return counted[::-1]


def _last_of_each(numbers: RowNumbers) -> Mask:
    """Return which entries are the last ones of their row."""
    last = np.ones(len(numbers), bool)
    if not (np.diff(numbers) > 0).all():
        last[:] = False
        last[len(numbers) - 1 - np.unique(numbers[::-1], return_index=True)[1]] = True
    return last


def count_by_reading(connection: Connection, rows: Bitmap, name: str) -> ValueCounts:
    """Count the values of a field, or LABELS, by reading all items; TooLarge if that takes too long."""
    counts, bits = ValueCounts.of(name), rows.tobytes()
    for row, values in _read_values(connection, name):
        if not bits[row >> 3] >> (row & 7) & 1:
            continue
        counts.items += 1
        for value in values:
            if isinstance(value, Word):
                counts.only_numbers &= value is NULL
            elif isinstance(value, bytes):
                counts.only_numbers = False
            else:
                counts.add_bounds(value, value)
            if value is not OTHER:
                counts.add([value], [1], [row])
    return counts


def _read_values(connection: Connection, name: str) -> Iterator[tuple[int, list[Any]]]:
    """Yield the rows that have a field, in order, with its value as it is counted; or with all labels."""
    column = "labels" if name == LABELS else "metadata"
    cursor = connection.execute(f"SELECT row, {column} FROM items ORDER BY row")
    deadline = time.monotonic() + MAX_SQL_SECONDS
    while rows := cursor.fetchmany(ROWS_PER_CHECK):
        if time.monotonic() > deadline:
            raise TooLarge(f"fields: {name!r} takes more than {MAX_SQL_SECONDS} seconds. Name it in filter_fields.")
        for row, text in rows:
            if name == LABELS:
                if labels := parse_json(text, list, "labels"):
                    yield row, [_counted(label) for label in labels]
            elif text is not None:
                value = _value_at(json.loads(text), name.split("."))
                if value is not MISSING:
                    yield row, [_counted(value)]


def _value_at(value: Any, path: list[str]) -> Any:
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return MISSING
        value = value[key]
    return value


def _counted(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return WORD_OF[value]
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    return sql_numbers([value]).pop() if isinstance(value, int | float) else OTHER
