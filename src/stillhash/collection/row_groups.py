"""Groups of rows with their columns: of a segment's file, or of rows that were read from SQLite."""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filter_matching import NotInColumns, match_tree
from stillhash.collection.storage.bitmaps import set_rows, set_span
from stillhash.collection.storage.column_builder import LABELS, TableBuilder
from stillhash.collection.storage.columns import Column, LabelColumn
from stillhash.numeric.labels import Labels, from_json
from stillhash.search.blocks import Bitmap

GROUP_ROWS = 1 << 14  # unsealed rows with columns of their own

ItemTexts = tuple[int, str, str | None]  # row, labels and metadata


class ColumnSource(Protocol):
    """Columns of some rows, in memory or in a file."""

    rows: int
    complete: bool

    def names(self) -> Iterable[str]: ...
    def column(self, name: str) -> Column | None: ...


class RowGroup(NamedTuple):
    """Rows first, first + 1, ..., or `numbers`, and their columns."""

    first: int
    numbers: NDArray[np.int64] | None
    source: ColumnSource  # may have got more rows since
    rows: int

    def column(self, name: str) -> Column | None:
        """Return the column of a field; None if no row has it."""
        if name not in self.source.names() and self.source.complete:
            return None
        column = self.source.column(name) if name in self.source.names() else None
        if column is None:
            raise NotInColumns
        return column

    def places_of(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which of these rows the group has, and their places in it: of a row that is there twice the last."""
        if self.numbers is None:
            which = np.flatnonzero((rows >= self.first) & (rows < self.first + self.rows))
            return which, rows[which] - self.first
        order = np.arange(self.rows)
        if (np.diff(self.numbers) <= 0).any():
            order = np.argsort(self.numbers, kind="stable")
        at = np.searchsorted(self.numbers, rows, "right", sorter=order) - 1
        which = np.flatnonzero((at >= 0) & (self.numbers[order[at]] == rows))
        return which, order[at[which]]

    def set_matches(self, tree: Any, columns: dict[str, Column | None], bitmap: Bitmap) -> None:
        """Set which rows match, in a bitmap of all rows."""
        matcher = match_tree(tree, columns)
        matches = np.full(self.rows, matcher) if isinstance(matcher, bool) else matcher()
        if self.numbers is None:
            set_span(bitmap, self.first, matches)
        else:
            set_rows(bitmap, self.numbers, matches)


class LabelReader:
    """Reads the labels of rows from groups. It gives each label a number, and keeps those of the sets of a column."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._sets: dict[int, tuple[Any, NDArray[np.int64], NDArray[np.int64]]] = {}  # by the identity of a column
        self._texts: dict[str, list[int]] = {}  # sets of rows that were read from SQLite

    def read(self, groups: Iterable[RowGroup], rows: NDArray[np.int64]) -> Labels:
        """Return the labels of these rows; a later group has a row as it changed."""
        listed = list(groups)
        group_of, places = np.full(len(rows), -1), np.zeros(len(rows), np.int64)
        for number, group in enumerate(listed):
            which, at = group.places_of(rows)
            group_of[which], places[which] = number, at
        counts, parts = np.zeros(len(rows), np.int64), []
        for number in np.unique(group_of[group_of >= 0]).tolist():
            inside = np.flatnonzero(group_of == number)
            labels, starts, sizes = self._labels_of(listed[number], places[inside])
            counts[inside] = sizes
            parts.append((inside, labels, starts, sizes))
        indptr = np.concatenate([[0], np.cumsum(counts)])
        indices = np.empty(indptr[-1], np.int64)
        for inside, labels, starts, sizes in parts:
            within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            indices[np.repeat(indptr[inside], sizes) + within] = labels[np.repeat(starts, sizes) + within]
        return Labels(indptr, indices, list(self._numbers))

    def _labels_of(
        self, group: RowGroup, places: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return labels, and where in them those of each place begin, and how many they are."""
        source = group.source
        if isinstance(source, TableBuilder) and source.growing:
            codes, texts = source.labels.sets()
            sets = [self._numbers_of(texts[code]) for code in codes[places].tolist()]
            sizes = np.fromiter(map(len, sets), np.int64, len(sets))
            return np.array([n for some in sets for n in some], np.int64), np.cumsum(sizes) - sizes, sizes
        column = group.column(LABELS)
        if not isinstance(column, LabelColumn):
            raise NotInColumns
        if id(column) not in self._sets:
            labels, starts = column.labels_of_sets
            numbers = [self._numbers.setdefault(name, len(self._numbers)) for name in column.names]
            self._sets[id(column)] = column, np.array(numbers, np.int64)[labels], starts
        _, labels, starts = self._sets[id(column)]
        codes = column.codes[places].astype(np.int64)
        return labels, starts[codes], starts[codes + 1] - starts[codes]

    def _numbers_of(self, text: str) -> list[int]:
        """Return the numbers of the labels of a set as it is stored."""
        if text not in self._texts:
            names = map(from_json, json.loads(text))
            self._texts[text] = [self._numbers.setdefault(name, len(self._numbers)) for name in names]
        return self._texts[text]


class GrowingRows:
    """Rows that were read from SQLite, in groups; a group that is full is never changed again."""

    def __init__(self, named: list[str] | None) -> None:
        self._named = named
        self._full: list[RowGroup] = []
        self._start_group()

    def __len__(self) -> int:
        return sum(len(group.numbers) for group in self._full if group.numbers is not None) + len(self._numbers)

    def _start_group(self) -> None:
        self._builder, self._numbers = TableBuilder(self._named), np.empty(0, np.int64)

    def append(self, rows: list[ItemTexts]) -> None:
        """Append rows with their labels and metadata."""
        for start in range(0, len(rows), GROUP_ROWS):
            numbers, labels, metadata = map(list, zip(*rows[start : start + GROUP_ROWS], strict=True))
            self._builder.append(labels, metadata)
            self._numbers = np.concatenate([self._numbers, np.array(numbers, np.int64)])
            if len(self._numbers) >= GROUP_ROWS:
                self._full.append(self._group())
                self._builder.freeze()
                self._start_group()

    def drop_until(self, last: int) -> None:
        """Drop the groups that hold no row past this one."""
        self._full = [group for group in self._full if group.numbers is not None and group.numbers[-1] > last]
        if len(self._numbers) and self._numbers[-1] <= last:
            self._start_group()

    def groups(self) -> list[RowGroup]:
        """Return all groups, in order."""
        return [*self._full, self._group()] if len(self._numbers) else self._full

    def _group(self) -> RowGroup:
        return RowGroup(0, self._numbers, self._builder, len(self._numbers))
