"""Use columns to answer filters: which fields have columns in use, their bytes, and which fields SQL compares."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filters.matching import NotInColumns
from stillhash.collection.filters.row_groups import ColumnSource, RowGroup
from stillhash.collection.filters.tree import FilterTree, compared_fields
from stillhash.collection.storage.columns import LABELS, MAX_FIELDS, Column, column_bytes
from stillhash.search.blocks import Bitmap

MAX_COLUMN_BYTES = 1 << 30  # of all columns in use; SQL answers for further fields

GroupColumns = list[tuple[RowGroup, dict[str, Column | None]]]


class ColumnUse:
    """The fields that filters have compared so far."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}  # bytes of each field's columns
        self._counted: set[str] = set()  # fields whose bytes are those of this commit
        self._by_sql: set[str] = set()  # the fields that SQL compares

    def count_again(self) -> None:
        """Count the bytes of columns again, since a commit has changed them."""
        self._counted.clear()

    def columns_of(self, groups: Iterable[RowGroup], names: Iterable[str]) -> GroupColumns:
        """Return each group of rows with the columns of these fields; NotInColumns if SQL must compare one."""
        columns: GroupColumns = [(group, {}) for group in groups]
        for name in names:
            try:
                self._use(name, columns)
            except NotInColumns:
                if len(self._by_sql) < MAX_FIELDS:  # names come from callers
                    self._by_sql.add(name)
                raise
        return columns

    def _use(self, name: str, columns: GroupColumns) -> None:
        """Add the columns of a field, unless all columns in use would be too large."""
        if name in self._by_sql:
            raise NotInColumns
        for group, by_name in columns:
            by_name[name] = group.column(name)
        if name in self._counted:
            return
        self._counted.add(name)
        size = sum(column_bytes(column) for _, by_name in columns if (column := by_name[name]) is not None)
        others = sum(self._used.values()) - self._used.get(name, 0)
        if size + others > MAX_COLUMN_BYTES:
            self._used.pop(name, None)
            self._counted.discard(name)
            raise NotInColumns
        if size:
            self._used[name] = size

    def stats(self) -> dict[str, Any]:
        """Return the bytes of the columns that filters have used, their fields, and the fields that SQL compares."""
        return {"bytes": sum(self._used.values()), "fields": sorted(self._used), "by_sql": sorted(self._by_sql)}


def column_names(tree: FilterTree) -> list[str]:
    """Return the names of the columns that a filter compares."""
    fields, labels = compared_fields(tree)
    return sorted(fields | {LABELS} if labels else fields)


def match_groups(columns: GroupColumns, tree: Any, bitmap: Bitmap) -> None:
    """Set which rows match in a bitmap of all rows; of a row in several groups, the last one counts."""
    for group, by_name in columns:
        group.set_matches(tree, by_name, bitmap)


def group_blocks(first: int, numbers: NDArray[np.int64] | None, blocks: Sequence[ColumnSource]) -> list[RowGroup]:
    """Return blocks of columns as groups of rows: first, first + 1, ..., or `numbers`."""
    groups, start = [], 0
    for block in blocks:
        own = None if numbers is None else numbers[start : start + block.rows]
        groups.append(RowGroup(first + start, own, block, block.rows))
        start += block.rows
    return groups
