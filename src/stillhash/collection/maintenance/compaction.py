"""Rewrite segments of a collection that have deleted or changed rows, or are small, and remove the files they were in.

Each step replaces a group of neighbouring segments in one transaction. Its files are written before, while others read
and write; so is memory bounded by about two segments. Answers are the same before and after each step, and a
compaction that is interrupted leaves a sound collection; the next one goes on. Tombstones stay until the last step, so
that a reader at an earlier commit learns of every deletion; then readers start over, once.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

from stillhash.collection.maintenance.compaction_plan import SegmentGroup, plan_compaction
from stillhash.collection.read_view import ReadView
from stillhash.collection.storage.segments import CodedRows, even_rows
from stillhash.collection.storage.store import Store

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
