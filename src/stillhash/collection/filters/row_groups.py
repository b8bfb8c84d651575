"""Groups of rows with their columns: of a segment's file, or of rows that were read from SQLite."""

import json
from collections.abc import Hashable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filters.matching import NotInColumns, match_tree
from stillhash.collection.storage.bitmaps import set_rows, set_span
from stillhash.collection.storage.columns import LABELS, Column, LabelColumn, TableBuilder
from stillhash.errors import BadState
from stillhash.numeric import kernels
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
        self.seq = -1  # the commit that the groups are of
        self._parts: list[tuple[Any, ...]] = []  # the groups, as `kernels.read_labels` takes them
        self._names: list[Hashable] = []
        self._numbers: dict[Any, int] = {}
        self._sets: dict[int, tuple[Any, NDArray[np.int64], NDArray[np.int64]]] = {}  # by the identity of a column
        self._texts: dict[str, list[int]] = {}  # sets of rows that were read from SQLite

    def use(self, groups: Iterable[RowGroup], seq: int) -> None:
        """Read from these groups from now on; a later group has a row as it changed."""
        self._parts, self.seq = [self._part(group) for group in groups if group.rows], seq
        columns = {id(part[4]) for part in self._parts}
        self._sets = {key: sets for key, sets in self._sets.items() if id(sets[0].codes) in columns}

    def read(self, rows: NDArray[np.int64]) -> Labels:
        """Return the labels of these rows."""
        read = kernels.read_labels(self._parts, rows)
        if read is None:
            raise NotInColumns
        return Labels(*read, self._names)

    def _part(self, group: RowGroup) -> tuple[Any, ...]:
        sets: tuple[Any, ...] = None, None, None
        with suppress(BadState, OSError, NotInColumns):  # SQLite has the labels of its rows
            sets = self._sets_of(group)
        if group.numbers is None:
            return group.first, group.first + group.rows - 1, None, None, *sets
        numbers, places = group.numbers, None
        if (np.diff(numbers) <= 0).any():
            places = np.argsort(numbers, kind="stable")
            numbers = numbers[places]
        return int(numbers[0]), int(numbers[-1]), numbers, places, *sets

    def _sets_of(self, group: RowGroup) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
        """Return the set of each row, where the labels of each set begin, and these labels."""
        if isinstance(group.source, TableBuilder) and group.source.growing:
            codes, texts = group.source.labels.sets()
            sets = [self._numbers_of(text) for text in texts]
            starts = np.cumsum([0, *map(len, sets)], dtype=np.int64)
            return codes, starts, np.array([number for some in sets for number in some], np.int64)
        column = group.column(LABELS)
        if not isinstance(column, LabelColumn):
            raise NotInColumns
        if id(column) not in self._sets:
            labels, starts = column.labels_of_sets
            if len(column.codes) != group.rows or column.codes.max(initial=0) >= len(starts) - 1:
                raise NotInColumns  # the kernel trusts its arrays
            numbers = np.array([self._number(name) for name in column.names], np.int64)
            self._sets[id(column)] = column, starts, numbers[labels]
        _, starts, labels = self._sets[id(column)]
        return column.codes, starts, labels

    def _numbers_of(self, text: str) -> list[int]:
        """Return the numbers of the labels of a set as it is stored."""
        if text not in self._texts:
            self._texts[text] = [self._number(from_json(name)) for name in json.loads(text)]
        return self._texts[text]

    def _number(self, name: Hashable) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self._names)
            self._names.append(name)
        return self._numbers[name]


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
