"""Choose which segments a compaction rewrites, and which neighbours together."""

from collections.abc import Iterable, Iterator
from sqlite3 import Connection
from typing import NamedTuple

import numpy as np

from stillhash.collection.storage.column_files import columns_seq
from stillhash.collection.storage.schema import get_meta
from stillhash.collection.storage.segments import CodeTable, SegmentRecord


class SegmentState(NamedTuple):
    """A segment, and what a compaction would gain."""

    record: SegmentRecord
    live: int  # rows that are not deleted
    outdated: bool  # rows were deleted or changed since it was written, or it has no columns


class SegmentGroup(NamedTuple):
    """Neighbouring segments that are rewritten together."""

    records: list[SegmentRecord]
    live: int


class CompactionPlan(NamedTuple):
    """What to rewrite, as of a commit."""

    seq: int
    rows: int  # of all segments
    groups: list[SegmentGroup]


def plan_compaction(codes: CodeTable, connection: Connection) -> CompactionPlan:
    """Return which segments are to be rewritten, as of the commit of this transaction."""
    states = [segment_state(codes, connection, record) for record in codes.segment_records(connection)]
    groups = list(group_segments(states, codes.segment_rows))
    return CompactionPlan(int(get_meta(connection, "seq")), sum(state.record.rows for state in states), groups)


def segment_state(codes: CodeTable, connection: Connection, record: SegmentRecord) -> SegmentState:
    """Return how many of its rows are not deleted, and whether it lacks a change."""
    span = [record.first, record.last]
    sql = "SELECT row FROM tombstones WHERE row BETWEEN ? AND ? ORDER BY row"
    deleted = np.fromiter((row for (row,) in connection.execute(sql, span)), np.int64)
    if len(deleted) and record.last - record.first + 1 != record.rows:  # others are of rows that were never sealed
        numbers = codes.read_segment(record, check=False).row_numbers()
        at = np.minimum(np.searchsorted(numbers, deleted), len(numbers) - 1)
        deleted = deleted[numbers[at] == deleted]
    written = columns_seq(codes.folder / record.file, record.shape())
    sql = "SELECT EXISTS (SELECT 1 FROM changed_rows WHERE row BETWEEN ? AND ? AND seq > ?)"
    changed = written is None or bool(connection.execute(sql, [*span, written]).fetchone()[0])
    return SegmentState(record, record.rows - len(deleted), changed or len(deleted) > 0)


def group_segments(states: Iterable[SegmentState], most: int) -> Iterator[SegmentGroup]:
    """Yield groups of neighbours: those that lack a change, have too many rows, or less than half of what they may.

    A group ends where it would have too many rows, unless it has less than half without the next one: then both are
    divided evenly. A small segment between full ones stays as it is.
    """
    group: list[SegmentState] = []
    for state in states:
        rewritten = state.outdated or state.record.rows > most or 2 * state.live < most
        rows = sum(other.live for other in group)
        if not rewritten or (2 * rows >= most and rows + state.live > most):
            yield from _worthwhile(group, most)
            group = []
        if rewritten:
            group.append(state)
    yield from _worthwhile(group, most)


def _worthwhile(group: list[SegmentState], most: int) -> Iterator[SegmentGroup]:
    """Yield the group, unless it is empty, or one segment that would be written again as it is."""
    if len(group) > 1 or any(state.outdated or state.record.rows > most for state in group):
        yield SegmentGroup([state.record for state in group], sum(state.live for state in group))
