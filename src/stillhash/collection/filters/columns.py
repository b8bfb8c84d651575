"""Which rows meet a filter: a bitmap, from columns of labels and metadata in memory, up to date commit by commit.

Rows of segments have columns in files beside them (storage/columns.py). Later rows are read from SQLite, and so
are rows that changed after their file was written, and rows whose file cannot be used. What columns cannot answer, SQL
does. The columns that filters use are kept within a bound of bytes.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from sqlite3 import Connection
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filters.language import (
    AllOf,
    AnyOf,
    Condition,
    FieldTest,
    FilterTree,
    Negation,
    compared_fields,
    valued_fields,
)
from stillhash.collection.storage.bitmaps import (
    FALSE,
    MISSING,
    NULL,
    OTHER,
    TRUE,
    Interval,
    Points,
    Selection,
    set_rows,
    set_span,
)
from stillhash.collection.storage.columns import (
    LABELS,
    MAX_FIELDS,
    MAX_RANGES,
    Column,
    ColumnFile,
    LabelColumn,
    Matcher,
    TableBuilder,
    all_of,
    any_of,
    build_blocks,
    column_bytes,
    negated,
    segment_contents,
)
from stillhash.collection.storage.schema import batches, get_meta
from stillhash.collection.storage.segments import read_segment
from stillhash.collection.storage.store import Store
from stillhash.collection.values import brief
from stillhash.errors import BadState, UnknownField, warn_caller
from stillhash.files import stored_file
from stillhash.numeric import kernels
from stillhash.numeric.labels import Labels, from_json
from stillhash.search.blocks import Bitmap

ANY_VALUE = Selection(frozenset({NULL, FALSE, TRUE, OTHER}), (Interval(),), (Interval(),))
WORD_OF = {None: NULL, False: FALSE, True: TRUE}
NO_VALUE = Selection(frozenset({MISSING}))


class NotInColumns(Exception):
    """Only SQL can answer."""


class ColumnTest(NamedTuple):
    """Which values of a column match."""

    name: str
    selection: Selection


def column_tree(tree: FilterTree) -> Any:
    """Return the tree with the values that each test selects; raise NotInColumns if columns cannot tell."""
    if isinstance(tree, AllOf | AnyOf):
        return type(tree), [column_tree(part) for part in tree.parts]
    if isinstance(tree, Negation):
        return Negation, [column_tree(tree.part)]
    name = tree.field if isinstance(tree, FieldTest) else LABELS
    return ColumnTest(name, select_values(tree.operator, tree.value))


def select_values(operator: str, value: Any) -> Selection:
    """Return the values that meet a test."""
    if operator == "$exists":
        return ANY_VALUE if value else NO_VALUE
    if operator in ("$eq", "$in"):
        values = value if operator == "$in" else [value]
        plain = set(map(type, values)) <= {int, float}
        numbers = sql_numbers(values if plain else [each for each in values if type(each) in (int, float)])
        others = [] if plain else values
        words = frozenset(WORD_OF[each] for each in others if each is None or type(each) is bool)
        texts = frozenset(_utf8(each) for each in others if type(each) is str)
        if len(numbers) + len(texts) <= MAX_RANGES:
            return Selection(words, _intervals(numbers), _intervals(texts))
        return Selection(words, points=Points(numbers) if numbers else None, text_points=texts)
    bound = _utf8(value) if isinstance(value, str) else sql_numbers([value]).pop()
    is_open = operator in ("$gt", "$lt")
    upper = operator in ("$lt", "$lte")
    interval = Interval(high=bound, open_high=is_open) if upper else Interval(low=bound, open_low=is_open)
    return Selection(texts=(interval,)) if isinstance(value, str) else Selection(numbers=(interval,))


def _intervals(values: Iterable[Any]) -> tuple[Interval, ...]:
    return tuple(Interval(value, value) for value in values)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        raise NotInColumns from None


def sql_numbers(numbers: list[int | float]) -> set[int | float]:
    """Return numbers as SQLite reads them: integers beyond 64 bits are doubles."""
    if numbers and min(numbers) >= -(2**63) and max(numbers) < 2**63:
        return set(numbers)
    return {n if type(n) is float or -(2**63) <= n < 2**63 else float(n) for n in numbers}


def match_tree(tree: Any, columns: dict[str, Column | None]) -> Matcher:
    """Return which rows match, by their columns; None is a column that no row has."""
    if isinstance(tree, ColumnTest):
        column = columns[tree.name]
        return MISSING in tree.selection.words if column is None else column.matcher(tree.selection)
    kind, parts = tree
    matchers = (match_tree(part, columns) for part in parts)
    return negated(next(matchers)) if kind is Negation else (all_of if kind is AllOf else any_of)(matchers)


GROUP_ROWS = 1 << 14  # unsealed rows have columns of their own

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


MAX_COLUMN_BYTES = 1 << 30  # are all columns in use; SQL answers for further fields

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


MAX_CACHED_FILTERS = 16  # bitmaps of the latest filters are kept, of one commit


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
