"""Read rows of a store for publishing, and write them to a storage: codes and items, in bounded memory."""

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from sqlite3 import Connection

import numpy as np
from numpy.typing import NDArray

from stillhash.cluster.items_file import StoredItem, write_items
from stillhash.cluster.manifest import ITEM_SUFFIXES, UNPLACED, PatchEntry, SegmentEntry
from stillhash.cluster.partition import (
    RESCORING_SUFFIX,
    LivePartition,
    Patch,
    beside,
    live_items,
    with_items,
    write_partition,
)
from stillhash.cluster.segment_cache import seal_checksum
from stillhash.cluster.storage import Storage
from stillhash.collection.storage.database import connect
from stillhash.collection.storage.row_arrays import RESCORING, RowArrayTable, find_lost, map_array
from stillhash.collection.storage.schema import batches
from stillhash.collection.storage.segments import CodedRows, read_segment, write_segment
from stillhash.collection.storage.store import Store
from stillhash.errors import BadState

SLICE_ROWS = 1 << 16  # that are not sealed, at a time
ROWS_PER_COMPARISON = 1 << 12  # at a time


def rows_after(store: Store, connection: Connection, last: int, most: int) -> Iterator[CodedRows]:
    """Yield the items past a row with their codes, ascending, at most so many at a time."""
    bits = store.settings["bits"]
    waiting: list[CodedRows] = []
    for part in _coded_slices(store, connection, last):
        waiting.append(part.select(np.isin(part.numbers, _existing(connection, part.numbers), assume_unique=True)))
        while sum(len(rows.numbers) for rows in waiting) >= most:
            joined = CodedRows.join(waiting, bits)
            yield joined.select(np.arange(most))
            waiting = [joined.select(np.arange(most, len(joined.numbers)))]
    joined = CodedRows.join(waiting, bits)
    if len(joined.numbers):
        yield joined


def _coded_slices(store: Store, connection: Connection, last: int) -> Iterator[CodedRows]:
    """Yield the rows past this one that have codes, deleted ones perhaps among them."""
    for segment in store.codes.segments(connection, last):
        for part in segment.parts():
            yield part.select(part.numbers > last)
    while len((part := store.codes.unsealed(connection, last, SLICE_ROWS)).numbers):
        yield part
        last = int(part.numbers[-1])


def _existing(connection: Connection, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of items between the first and the last of these."""
    if not len(numbers):
        return numbers
    sql = "SELECT row FROM items WHERE row BETWEEN ? AND ?"
    rows = connection.execute(sql, [int(numbers[0]), int(numbers[-1])]).fetchall()
    return np.array(rows, np.int64).reshape(-1)


def stored_items(connection: Connection, numbers: list[int]) -> Iterator[StoredItem]:
    """Yield those of these ascending rows that are items."""
    for marks, batch in batches(numbers):
        sql = f"SELECT row, id, labels, metadata FROM items WHERE row IN ({marks}) ORDER BY row"
        yield from connection.execute(sql, batch)


def write_rows(
    storage: Storage, store: Store, connection: Connection, rows: CodedRows, shard: int = UNPLACED
) -> SegmentEntry:
    """Write ascending rows of items to a new segment of a storage, with their items, columns and rescoring codes."""
    name, bits = f"segments/{uuid.uuid4().hex}.seg", store.settings["bits"]
    with tempfile.TemporaryDirectory(prefix="stillhash-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "segment"
        write_segment(path, rows, bits, store.codes.collection)
        items = stored_items(connection, rows.numbers.tolist())
        write_partition(read_segment(path, bits, check=False), items, store.settings["filter_fields"])
        if store.rescoring is not None:
            _write_rescoring(store, store.rescoring, connection, path, rows.numbers)
        for suffix in (*ITEM_SUFFIXES, ""):
            if (file := beside(path, suffix)).exists():  # without columns, filters take longer
                storage.put_file(file, name + suffix)
        first, last = int(rows.numbers[0]), int(rows.numbers[-1])
        entry = SegmentEntry(name, len(rows.numbers), seal_checksum(path), first, last, shard, owned=True)
        return with_items(entry, path)


def _write_rescoring(
    store: Store, table: RowArrayTable, connection: Connection, segment: Path, numbers: NDArray[np.int64]
) -> None:
    """Write the rescoring codes of a new segment beside it; BadState if a later commit has removed their files."""
    table.write(connection, segment, 0, numbers)
    codes = map_array(beside(segment, RESCORING_SUFFIX), RESCORING, len(numbers))
    if find_lost(codes).any():  # in the store too, or by its writer just now
        with closing(connect(store.path, "ro")) as latest:
            removed = set(store.codes.segment_files(connection)).difference(store.codes.segment_files(latest))
        if removed:
            raise BadState("rescoring codes: expected the files of a commit, which a later one has replaced")


def write_patch(storage: Storage, store: Store, connection: Connection, numbers: list[int]) -> PatchEntry:
    """Write these ascending rows as they are now to a new patch of a storage."""
    name = f"patches/{uuid.uuid4().hex}.items"
    with tempfile.TemporaryDirectory(prefix="stillhash-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "patch"
        count = write_items(path, stored_items(connection, numbers), named=store.settings["filter_fields"])
        return PatchEntry(name, storage.put_file(path, name), count, numbers[0], numbers[-1])


def compare_items(
    connection: Connection, part: LivePartition, patches: list[Patch]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which items of a published segment are deleted in the store, and which have changed."""
    deleted: list[int] = []
    changed: list[int] = []
    published = live_items(part, patches)
    while some := [item for _, item in zip(range(ROWS_PER_COMPARISON), published, strict=False)]:
        stored = {item[0]: item for item in stored_items(connection, [item[0] for item in some])}
        deleted += [item[0] for item in some if item[0] not in stored]
        changed += [item[0] for item in some if item[0] in stored and stored[item[0]] != item]
    return np.array(deleted, np.int64), np.array(changed, np.int64)
