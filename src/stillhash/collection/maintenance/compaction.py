"""Rewrite segments of a collection that have deleted or changed rows, or are small, and remove the files they were in.

Each step replaces a group of neighbouring segments in one transaction. Its files are written before, while others read
and write; so is memory bounded by about two segments. Answers are the same before and after each step, and a
compaction that is interrupted leaves a sound collection; the next one goes on. Tombstones stay until the last step, so
that a reader at an earlier commit learns of every deletion; then readers start over, once.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from sqlite3 import Connection
from typing import NamedTuple

import numpy as np

from stillhash.collection.read_view import ReadView
from stillhash.collection.storage.columns import columns_seq
from stillhash.collection.storage.schema import get_meta
from stillhash.collection.storage.segments import CodedRows, CodeTable, SegmentRecord, even_rows
from stillhash.collection.storage.store import Store


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


LOG_REMAINS = "store.db-wal: another process reads an earlier commit. Run compact once it has ended."
FILES_REMAIN = "segments, learner: files of earlier commits are in use, and cannot be removed yet. Run compact later."

ReportRows = Callable[[int, int], object]  # called with the rows that are done, and all


class CompactionReport(NamedTuple):
    """How many deleted rows were dropped, and a sentence for each file that still has some."""

    dropped: int
    remains: list[str]


def compact(
    store: Store, view: ReadView, write_lock: threading.RLock, progress: ReportRows | None = None
) -> CompactionReport:
    """Compact a collection.

    write_lock : held for moments, and at the end while files are removed; no two compactions may run at a time.
    progress : called with the rows of segments that are done, and of all. If it raises an error, the steps so far stay.

    On Windows no file can be removed while a search has it mapped: this view gives up its own, and those that others
    still use are removed by the next compaction, or before the first write after the collection is opened again.
    """
    with write_lock:
        store.seal()
    with store.reading() as connection:
        plan = plan_compaction(store.codes, connection)
    done = plan.rows - sum(record.rows for group in plan.groups for record in group.records)
    for group in plan.groups:
        if progress is not None:
            progress(done, plan.rows)
        rewrite_group(store, group, write_lock)
        done += sum(record.rows for record in group.records)
    if progress is not None:
        progress(done, plan.rows)
    with write_lock:
        dropped = store.finish_compaction(plan.seq, changed=bool(plan.groups))
        return CompactionReport(dropped, remove_files(store, view))


def rewrite_group(store: Store, group: SegmentGroup, write_lock: threading.RLock) -> None:
    """Replace segments by new ones without deleted rows; what is deleted meanwhile keeps its tombstone."""
    with store.reading() as connection:
        rows = even_rows(group.live, store.codes.segment_rows)
        live = store.codes.live_parts(connection, group.records)
        records = store.segment_writer.write(connection, CodedRows.regroup(live, rows, store.codes.bits))
    with write_lock:
        store.replace_segments(group.records, records)


def remove_files(store: Store, view: ReadView) -> list[str]:
    """Remove the files that are not needed any more, and what store.db has unused; return what remains."""
    removed = store.remove_obsolete_files()
    if not removed:
        view.release()
        removed = store.remove_obsolete_files()
    remains = [] if removed else [FILES_REMAIN]
    return remains if store.shrink(removed) else [*remains, LOG_REMAINS]
