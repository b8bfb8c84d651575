"""Rewrite the segments of a shard without their deleted rows, and merge small ones, in bounded memory.

A group of segments that are neighbours by id becomes one segment. Its codes are read from the mapped files and written
a megabyte at a time; in memory are only the ids and places of the rows of one group, which are those of one
segment at most. Nothing changes before the caller commits `with_compaction`.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from stillhash.cluster.deletions import load_deletions
from stillhash.cluster.manifest import CLUSTER_SEGMENT_ROWS, ClusterManifest, SegmentEntry
from stillhash.cluster.merged_rows import MergedRows, SegmentRows
from stillhash.cluster.segment_cache import SegmentCache
from stillhash.cluster.segment_files import write_entry_from
from stillhash.cluster.storage import Storage
from stillhash.errors import Conflict, InvalidInput, StoreFailed
from stillhash.search.blocks import Bitmap, is_set

DELETED_SHARE = 0.2  # from which a segment is rewritten
SMALL_SHARE = 0.5  # of the most rows: a segment with fewer is merged with its neighbours
GROUP_SEGMENTS = 128  # at most: each is an open file

MergeItems = Callable[[Sequence[tuple[SegmentEntry, Bitmap]], SegmentEntry], SegmentEntry]


class Compaction(NamedTuple):
    """Segments to remove from a manifest, and those that replace them."""

    removed: tuple[SegmentEntry, ...] = ()
    added: tuple[SegmentEntry, ...] = ()


def plan_compaction(
    manifest: ClusterManifest, shard: int, *, most_rows: int = CLUSTER_SEGMENT_ROWS
) -> list[tuple[SegmentEntry, ...]]:
    """Return groups of segments of a shard to rewrite, each into one segment: neighbours by id that are small or have
    many deleted rows.

    Segments with items and those without are in different groups. Segments that are not owned stay as they are.
    """
    groups: list[tuple[SegmentEntry, ...]] = []
    for with_items in (False, True):
        entries = [entry for entry in manifest.of_shard(shard) if entry.owned and entry.items == with_items]
        group: list[SegmentEntry] = []
        for entry in sorted(entries, key=lambda entry: (entry.first, entry.last)):
            due = entry.live < SMALL_SHARE * most_rows or entry.deleted >= DELETED_SHARE * entry.rows
            full = sum(each.live for each in group) + entry.live > most_rows or len(group) == GROUP_SEGMENTS
            if group and (full or not due):
                groups.append(tuple(group))
                group = []
            if due:
                group.append(entry)
        if group:
            groups.append(tuple(group))
    return [group for group in groups if len(group) > 1 or group[0].deleted]


def compact_group(
    cache: SegmentCache,
    manifest: ClusterManifest,
    group: Sequence[SegmentEntry],
    merge_items: MergeItems | None = None,
) -> list[SegmentEntry]:
    """Write the live rows of some segments of one shard to a new one; none if all are deleted.

    merge_items : called for segments with items, with the old entries, their deleted rows, and the new entry; writes
        the items beside the new segment, and returns its entry.
    """
    if cache.storage is None or len({(entry.shard, entry.items) for entry in group}) != 1:
        raise InvalidInput("group: expected segments of one shard of a storage, with items or without, got others")
    entries_have_items = group[0].items
    if entries_have_items and merge_items is None:
        raise InvalidInput("merge_items: expected a function for segments with items, got None")
    deletions = [load_deletions(cache.storage, entry) for entry in group]
    parts = [_live_part(cache, manifest, *each) for each in zip(group, deletions, strict=True)]
    rows = MergedRows([part for part in parts if len(part.rows)], manifest.bits)
    if not len(rows.numbers):
        return []
    if not (rows.numbers[1:] > rows.numbers[:-1]).all():
        raise InvalidInput("group: expected each id once, got one twice")
    entry = write_entry_from(cache.storage, rows, group[0].shard)
    try:
        if merge_items is not None and entries_have_items:
            entry = merge_items(list(zip(group, deletions, strict=True)), entry)
        return [entry]
    except BaseException:
        _delete(cache.storage, entry)
        raise


def with_compaction(manifest: ClusterManifest, compaction: Compaction) -> ClusterManifest:
    """Return the manifest after a compaction; Conflict if a segment has changed since, or is gone."""
    removed = set(compaction.removed)
    staying = tuple(entry for entry in manifest.segments if entry not in removed)
    if len(staying) + len(removed) != len(manifest.segments):
        raise Conflict("compaction: expected the segments that were rewritten, got a manifest in which they changed")
    return manifest._replace(segments=staying + compaction.added)


def _live_part(cache: SegmentCache, manifest: ClusterManifest, entry: SegmentEntry, deleted: Bitmap) -> SegmentRows:
    """Map a segment, and list its live rows."""
    segment = cache.open(entry, manifest.bits)
    rows = np.arange(segment.rows)
    return SegmentRows(segment, rows[~is_set(deleted, rows)].astype(np.uint32))


def _delete(storage: Storage, entry: SegmentEntry) -> None:
    for name in entry._replace(items=True).files():  # some of the items may be written
        with suppress(StoreFailed):  # garbage collection deletes it later
            storage.delete(name)
