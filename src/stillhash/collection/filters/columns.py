"""Answer filters by columns of labels and metadata in memory, brought up to date commit by commit.

Rows of segments have columns in files beside them (storage/column_files.py). Later rows are read from SQLite, and so
are rows that changed after their file was written, and rows whose file cannot be used. What columns cannot answer, SQL
does.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from sqlite3 import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filters.column_use import ColumnUse, GroupColumns, column_names, group_blocks, match_groups
from stillhash.collection.filters.language import Condition
from stillhash.collection.filters.matching import NotInColumns, column_tree
from stillhash.collection.filters.row_groups import (
    GROUP_ROWS,
    ColumnSource,
    GrowingRows,
    ItemTexts,
    LabelReader,
    RowGroup,
)
from stillhash.collection.filters.tree import valued_fields
from stillhash.collection.storage.column_files import ColumnFile, build_blocks, segment_contents
from stillhash.collection.storage.columns import LABELS, MAX_FIELDS
from stillhash.collection.storage.schema import batches, get_meta
from stillhash.collection.storage.segments import read_segment
from stillhash.collection.storage.store import Store
from stillhash.collection.values import brief
from stillhash.errors import BadState, UnknownField, warn_caller
from stillhash.files import stored_file
from stillhash.numeric.labels import Labels
from stillhash.search.blocks import Bitmap

MAX_CACHED_FILTERS = 16  # bitmaps of the latest filters, of one commit


class SegmentGroups(NamedTuple):
    """The rows of a segment, as of a commit."""

    first: int
    last: int
    seq: int
    groups: list[RowGroup]


class ColumnTable(NamedTuple):
    """Columns of some fields and of the labels, of all rows as of a commit."""

    groups: GroupColumns
    names: set[str]  # of the columns; other fields are left to SQL
    deleted: Bitmap


class MovedOn(Exception):
    """The columns are of a later commit than the transaction."""


class FilterColumns:
    """The columns of a read view, of the latest commit that a filter was compared at."""

    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self._named: list[str] | None = store.settings["filter_fields"]
        self.warn_unknown, self._unknown = True, set[str]()  # the fields that a warning named
        self._reset(-1)

    def _reset(self, generation: int) -> None:
        self._generation, self._seq, self._last_row = generation, -1, -1
        self._segments: dict[str, SegmentGroups] = {}  # by file
        self._recent, self._changed = GrowingRows(self._named), GrowingRows(self._named)
        self._max_changed = GROUP_ROWS
        self._deleted = np.zeros(0, np.uint8)  # a bitmap
        self._use = ColumnUse()
        self._labels = LabelReader()
        self._cache: OrderedDict[Any, Bitmap] = OrderedDict()

    def matching(self, connection: Connection, condition: Condition) -> Bitmap:
        """Return the rows that meet a condition, as a bitmap, at the commit of this transaction.

        Raises MovedOn if a later commit was seen before.
        """
        seq = int(get_meta(connection, "seq"))
        with self._lock:
            try:
                self._update(connection, seq)
                if (cached := self._cache.get(condition.key)) is not None:
                    self._cache.move_to_end(condition.key)
                    return cached
                tree = column_tree(condition.tree)
                columns = self._columns_of(connection, condition)
                unknown = self._unknown_fields(condition, columns)
            except (NotInColumns, BadState, OSError, RecursionError):  # BadState: another process replaced segments
                columns, unknown = None, set()
            deleted = self._deleted
        if columns is None:
            bitmap = self._store.items.matching(connection, condition.sql)
        else:
            bitmap = np.zeros(-(-get_meta(connection, "next_row") // 8), np.uint8)
            match_groups(columns, tree, bitmap)
            bitmap[: len(deleted)] &= ~deleted
        bitmap.setflags(write=False)
        with self._lock:
            if self._seq == seq:
                self._cache[condition.key] = bitmap
            if len(self._cache) > MAX_CACHED_FILTERS:
                self._cache.popitem(last=False)
        for name in sorted(unknown):
            warn_caller(f"where: no item has the field {brief(name)}", UnknownField)
        return bitmap

    def table(self, connection: Connection, fields: Iterable[str] | None = None) -> ColumnTable:
        """Return the columns of the labels and of these fields, or of all that have some, at this transaction's commit.

        A row may be in several groups, and counts in the last one. Files stay mapped as long as the table is used; they
        do not count as columns in use. Raises MovedOn as `matching` does.
        """
        with self._lock:
            try:
                self._update(connection, int(get_meta(connection, "seq")))
                every = {name for group in self._groups() for name in group.source.names()}
                names = {LABELS, *(every if fields is None else fields)}
                self._restore_damaged(connection, sorted(names))
                groups: GroupColumns = [(group, {}) for group in self._groups()]
            except (BadState, OSError, RecursionError):  # as in `matching`
                return ColumnTable([], set(), self._deleted)
            for name in sorted(names):
                try:
                    for group, by_name in groups:
                        by_name[name] = group.column(name)
                except NotInColumns:
                    names.discard(name)
            return ColumnTable(groups, names, self._deleted)

    def labels_of(self, connection: Connection, rows: NDArray[np.int64]) -> Labels:
        """Return the labels of these rows at this transaction's commit. Raises MovedOn as `matching` does."""
        with self._lock:
            self._update(connection, seq := int(get_meta(connection, "seq")))
            if self._labels.seq != seq:
                self._labels.use(self._groups(), seq)
            return self._labels.read(rows)

    def release(self) -> None:
        """Unmap all columns; the next filter maps them again."""
        with self._lock:
            self._reset(-1)

    def _unknown_fields(self, condition: Condition, columns: GroupColumns) -> set[str]:
        """Return the fields that the filter compares and no row has, each once, and none where there are no rows."""
        if not columns or not self.warn_unknown or len(self._unknown) > MAX_FIELDS:  # names come from callers
            return set()
        fields = valued_fields(condition.tree) - self._unknown
        unknown = {name for name in fields if all(by_name[name] is None for _, by_name in columns)}
        self._unknown |= unknown
        return unknown

    def stats(self) -> dict[str, Any]:
        """Return the bytes of the columns that filters have used, their fields, and the fields that SQL compares."""
        with self._lock:
            return self._use.stats()

    def _columns_of(self, connection: Connection, condition: Condition) -> GroupColumns:
        """Return each group of rows with the columns of the fields that are compared."""
        names = column_names(condition.tree)
        self._restore_damaged(connection, names)
        return self._use.columns_of(self._groups(), names)

    def _groups(self) -> list[RowGroup]:
        """Return all groups of rows; a later one has a row as it changed."""
        segments = [group for segment in self._segments.values() for group in segment.groups]
        return [*segments, *self._recent.groups(), *self._changed.groups()]

    def _restore_damaged(self, connection: Connection, names: list[str]) -> None:
        """Build the columns of segments again of which one of these is damaged."""
        for file, segment in self._segments.items():
            try:
                for group in segment.groups:
                    for name in set(names).intersection(group.source.names()):
                        group.source.column(name)
            except BadState:
                self._segments[file] = self._build(connection, file, segment.first, segment.last)

    def _update(self, connection: Connection, seq: int) -> None:
        """Bring the columns to the commit of this transaction."""
        if seq < self._seq:
            raise MovedOn
        if seq == self._seq:
            return
        try:
            self._apply_changes(connection)
        except BaseException:
            self._reset(-1)  # incomplete; the next update starts over
            raise
        self._seq = seq

    def _apply_changes(self, connection: Connection) -> None:
        generation = get_meta(connection, "generation")
        starts_over = generation != self._generation or len(self._changed) > self._max_changed
        if starts_over:
            self._reset(generation)
        since, last_read = self._seq, self._last_row
        self._cache.clear()
        self._use.count_again()
        opened = self._open_segments(connection)
        last_sealed = max((segment.last for segment in opened), default=-1)
        self._recent.drop_until(last_sealed)
        self._last_row = max(last_read, last_sealed)
        for rows in self._read_after(connection, self._last_row):
            self._recent.append(rows)
            self._last_row = rows[-1][0]
        changes = connection.execute("SELECT row, seq FROM changed_rows WHERE seq > ?", [since])
        while some := changes.fetchmany(GROUP_ROWS):
            changed = [row for row, seq in some if row <= last_read or not self._as_new(row, seq, opened)]
            for marks, batch in batches(changed):
                sql = f"SELECT row, labels, metadata FROM items WHERE row IN ({marks})"
                self._changed.append(connection.execute(sql, batch).fetchall())
        if starts_over:
            self._max_changed = max(GROUP_ROWS, 2 * len(self._changed))  # rows that change again and again count again
        deleted = self._store.codes.deleted_after(connection, since)
        if len(deleted):
            bitmap = np.zeros(-(-get_meta(connection, "next_row") // 8), np.uint8)
            bitmap[: len(self._deleted)] = self._deleted
            np.bitwise_or.at(bitmap, deleted // 8, (1 << (deleted % 8)).astype(np.uint8))
            self._deleted = bitmap

    @staticmethod
    def _as_new(row: int, seq: int, opened: list[SegmentGroups]) -> bool:
        """Return whether a row that changed was read after that: in a segment's file, or just now."""
        return all(segment.seq >= seq for segment in opened if segment.first <= row <= segment.last)

    @staticmethod
    def _read_after(connection: Connection, last: int) -> Iterator[list[ItemTexts]]:
        cursor = connection.execute("SELECT row, labels, metadata FROM items WHERE row > ? ORDER BY row", [last])
        while rows := cursor.fetchmany(GROUP_ROWS):
            yield rows

    def _open_segments(self, connection: Connection) -> list[SegmentGroups]:
        """Open the columns of the segments that are new, and drop those of segments that were replaced."""
        opened, records = [], self._store.codes.segment_records(connection)
        for file in self._segments.keys() - {record.file for record in records}:
            del self._segments[file]
        for record in records:
            (rows, first, last), file = record.shape(), record.file
            if file not in self._segments:
                segment = stored_file(self._store.path / "segments", file)
                try:
                    columns = ColumnFile(segment, (rows, first, last))
                    opened.append(self._group_rows(file, first, last, columns.seq, columns.blocks))
                except (BadState, OSError, ValueError):
                    opened.append(self._build(connection, file, first, last))
                self._segments[file] = opened[-1]
        return opened

    def _build(self, connection: Connection, file: str, first: int, last: int) -> SegmentGroups:
        """Build the columns of a segment from SQLite."""
        numbers = read_segment(self._store.path / "segments" / file, self._store.settings["bits"], check=False)
        contents = segment_contents(connection, numbers.row_numbers())
        blocks = [builder.freeze() for builder in build_blocks(contents, self._named)]
        return self._group_rows(file, first, last, int(get_meta(connection, "seq")), blocks)

    def _group_rows(self, file: str, first: int, last: int, seq: int, blocks: Sequence[ColumnSource]) -> SegmentGroups:
        rows, numbers = sum(block.rows for block in blocks), None
        if last - first != rows - 1:
            path = self._store.path / "segments" / file
            numbers = read_segment(path, self._store.settings["bits"], check=False).row_numbers()
        return SegmentGroups(first, last, seq, group_blocks(first, numbers, blocks))
