"""Count the values of a field, or the labels, of some rows: from columns, or by reading the items."""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from sqlite3 import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filter_matching import WORD_OF, sql_numbers
from stillhash.collection.row_groups import RowGroup
from stillhash.collection.storage.bitmaps import read_span, set_rows, set_span
from stillhash.collection.storage.column_builder import LABELS
from stillhash.collection.storage.columns import Column, LabelColumn, NumberColumn, SortedValues
from stillhash.collection.storage.items import MAX_SQL_SECONDS
from stillhash.collection.storage.schema import parse_json
from stillhash.collection.storage.selections import FALSE, MISSING, NULL, OTHER, TRUE, WORDS, Word
from stillhash.errors import TooLarge
from stillhash.numeric.validation import Mask
from stillhash.search.blocks import Bitmap, is_set

MAX_FACET_VALUES = 1 << 12  # distinct values of a field that are counted one by one
MAX_COUNTED_LABELS = 1 << 15  # distinct labels
ROWS_PER_CHECK = 1 << 12  # of items that are read, between looks at the clock
COUNTED_WORDS = (NULL, FALSE, TRUE)

Counts = NDArray[np.int64]


@dataclass
class ValueCounts:
    """How many rows have a field, and each of its values; numbers as they are, texts as UTF-8, others as words."""

    most: int  # values that are counted
    items: int = 0
    counts: dict[Any, int] = field(default_factory=dict)  # empty once there are too many
    complete: bool = True  # False once there are too many
    low: Any = None  # the least number
    high: Any = None
    only_numbers: bool = True  # and null

    @classmethod
    def of(cls, name: str) -> "ValueCounts":
        """Return no counts yet, of a field or of LABELS."""
        return cls(MAX_COUNTED_LABELS if name == LABELS else MAX_FACET_VALUES)

    def add(self, values: Iterable[Any], counts: Iterable[int]) -> None:
        """Add values, each once, with the number of their rows."""
        if not self.complete:
            return
        for value, count in zip(values, counts, strict=True):
            self.counts[value] = self.counts.get(value, 0) + count
        if len(self.counts) > self.most:
            self.leave_out()

    def add_bounds(self, low: Any, high: Any) -> None:
        """Add the least and the largest of some numbers."""
        self.low = low if self.low is None else min(low, self.low)
        self.high = high if self.high is None else max(high, self.high)

    def leave_out(self) -> None:
        """Stop counting values one by one, since they are too many."""
        self.complete, self.counts = False, {}

    def add_column(self, column: Column | None, rows: Mask | None) -> None:
        """Add some rows of a column, None for all; no row has the field where there is no column."""
        if isinstance(column, LabelColumn):
            self._add_labels(column, rows)
        elif isinstance(column, NumberColumn):
            self._add_numbers(column, rows)
        elif column is not None:
            size = WORDS + len(column.values)
            by_code = np.bincount(column.codes if rows is None else column.codes[rows], minlength=size)
            self._add_words(by_code[:WORDS])
            self._add_sorted(column.values, by_code[WORDS:])
            self.items += int(by_code[WORDS:].sum())

    def _add_labels(self, column: LabelColumn, rows: Mask | None) -> None:
        codes, labels = column.codes if rows is None else column.codes[rows], len(column.values)
        by_set = np.bincount(codes, minlength=int(column.set_count[0]))
        self.items += int(by_set[1:].sum())
        if labels:  # each is in some set
            by_label = np.add.reduceat(by_set[column.sets], column.starts[:labels].astype(np.int64))
            self._add_sorted(column.values, by_label)

    def _add_numbers(self, column: NumberColumn, rows: Mask | None) -> None:
        numbers = column.values
        if len(column.words):
            self._add_words(np.bincount(column.words if rows is None else column.words[rows], minlength=WORDS)[:WORDS])
            rows = column.words == WORDS if rows is None else rows & (column.words == WORDS)
        numbers = numbers if rows is None else numbers[rows]
        if not len(numbers):
            return
        self.items += len(numbers)
        self.add_bounds(numbers.min().item(), numbers.max().item())
        if self.complete:
            distinct, counts = np.unique(numbers, return_counts=True)
            self._add_some(distinct, counts)

    def _add_some(self, numbers: NDArray[Any], counts: Counts) -> None:
        if len(numbers) > self.most:
            self.leave_out()
        else:
            self.add(numbers.tolist(), counts.tolist())

    def _add_sorted(self, values: SortedValues, counts: Counts) -> None:
        """Add the values of a dictionary; those that no row has are left out."""
        first_text = len(values.numbers)
        numbers, texts = np.flatnonzero(counts[:first_text]), np.flatnonzero(counts[first_text:])
        if len(numbers):
            self.add_bounds(values.numbers[numbers[0]].item(), values.numbers[numbers[-1]].item())
            self._add_some(values.numbers[numbers], counts[numbers])
        if len(texts):
            self.only_numbers = False
            if len(texts) > self.most:
                self.leave_out()
            if self.complete:
                listed = values.texts
                self.add([listed[place] for place in texts.tolist()], counts[first_text + texts].tolist())

    def _add_words(self, counts: Counts) -> None:
        """Add the rows of each word; of lists and objects only that they have the field."""
        self.items += int(counts.sum() - counts[MISSING.code])
        present = [word for word in COUNTED_WORDS if counts[word.code]]
        self.only_numbers &= not (counts[FALSE.code] or counts[TRUE.code] or counts[OTHER.code])
        self.add(present, [int(counts[word.code]) for word in present])


def current_rows(groups: list[RowGroup], rows: Bitmap) -> list[Mask | None]:
    """Return which rows of each group count, None for all: a row that changed counts in the last group that has it.

    rows: those to count, of all.
    """
    left, masks = rows.copy(), list[Mask | None]()
    for group in reversed(groups):
        numbers = group.numbers
        if numbers is None:
            mask = read_span(left, group.first, group.rows)
            set_span(left, group.first, np.zeros(group.rows, bool))
        else:
            mask = _last_of_each(numbers) & is_set(left, numbers)
            set_rows(left, numbers, np.zeros(group.rows, bool))
        masks.append(None if mask.all() else mask)
    return masks[::-1]


def _last_of_each(numbers: NDArray[np.int64]) -> Mask:
    """Return which entries are the last ones of their row."""
    last = np.ones(len(numbers), bool)
    if not (np.diff(numbers) > 0).all():
        last[:] = False
        last[len(numbers) - 1 - np.unique(numbers[::-1], return_index=True)[1]] = True
    return last


def count_by_reading(connection: Connection, rows: Bitmap, name: str) -> tuple[ValueCounts, dict[Any, int]]:
    """Count the values of a field, or LABELS, by reading all items, and return the first row of each value.

    TooLarge if that takes too long.
    """
    counts, first_rows, bits = ValueCounts.of(name), dict[Any, int](), rows.tobytes()
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
                counts.add([value], [1])
                if counts.complete:
                    first_rows.setdefault(value, row)
    return counts, first_rows if counts.complete else {}


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
