"""Groups of rows with their columns: of a segment's file, or of rows that were read from SQLite."""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filter_matching import NotInColumns, match_tree
from stillhash.collection.storage.bitmaps import set_rows, set_span
from stillhash.collection.storage.column_builder import TableBuilder
from stillhash.collection.storage.columns import Column
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
