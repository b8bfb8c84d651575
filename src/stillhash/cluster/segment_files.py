"""Write codes to bounded segments of a storage: a large addition in several pieces, which go to different shards."""

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from stillhash.cluster.manifest import CLUSTER_SEGMENT_ROWS, UNPLACED, SegmentEntry
from stillhash.cluster.merged_rows import MergedRows
from stillhash.cluster.segment_cache import seal_checksum
from stillhash.cluster.storage import Storage
from stillhash.collection.storage.segments import CodedRows, write_segment
from stillhash.errors import StoreFailed
from stillhash.numeric.validation import Codes
from stillhash.search.blocks import IdArray

LEAST_PIECE_ROWS = 4096  # an addition is not split into smaller pieces


def write_segments(
    storage: Storage, codes: Codes, ids: IdArray, bits: int, *, shards: int, most_rows: int = CLUSTER_SEGMENT_ROWS
) -> list[SegmentEntry]:
    """Write codes (n, bytes) with ids, in any order, to new segments, on disk when this returns; no shard has them yet.

    If one cannot be written, all are deleted again.
    """
    ascending = len(ids) < 2 or bool((ids[1:] > ids[:-1]).all())
    if not ascending:
        order = ids.argsort()
        codes, ids = codes[order], ids[order]
    entries: list[SegmentEntry] = []
    try:
        for start, end in pieces(len(codes), shards, most_rows):
            rows = CodedRows.without_digests(ids[start:end], codes[start:end])
            entries.append(write_entry(storage, rows, bits))
    except BaseException:
        for entry in entries:
            with suppress(StoreFailed):  # garbage collection deletes it later
                storage.delete(entry.name)
        raise
    return entries


def write_entry(storage: Storage, rows: CodedRows, bits: int, shard: int = UNPLACED) -> SegmentEntry:
    """Write ascending rows to one new segment."""
    name = f"segments/{uuid.uuid4().hex}.seg"
    checksum = write_segment_file(storage, name, rows, bits)
    first, last = int(rows.numbers[0]), int(rows.numbers[-1])
    return SegmentEntry(name, len(rows.codes), checksum, first, last, shard, True)


def write_entry_from(storage: Storage, rows: MergedRows, shard: int) -> SegmentEntry:
    """Write the rows of other segments to one new segment."""
    name = f"segments/{uuid.uuid4().hex}.seg"
    with _written(storage, name) as path:
        rows.write(path)
        checksum = seal_checksum(path)
    first, last = int(rows.numbers[0]), int(rows.numbers[-1])
    return SegmentEntry(name, len(rows.numbers), checksum, first, last, shard, True)


def pieces(rows: int, shards: int, most_rows: int) -> list[tuple[int, int]]:
    """Return where pieces of an addition begin and end: equal ones, and as many for each shard if it is large."""
    count = -(-rows // most_rows)
    if rows >= shards * LEAST_PIECE_ROWS:
        count = -(-count // shards) * shards
    edges = [rows * number // max(1, count) for number in range(count + 1)]
    return list(pairwise(edges))


def write_segment_file(storage: Storage, name: str, rows: CodedRows, bits: int) -> str:
    """Write a segment under this name, and return the checksum by which it is recognised."""
    with _written(storage, name) as path:
        write_segment(path, rows, bits)
        return seal_checksum(path)


@contextmanager
def _written(storage: Storage, name: str) -> Iterator[Path]:
    """Yield a path for a new file of the storage: in its place on a disk, otherwise one that is then copied."""
    place = storage.new_local_path(name)
    if place is not None:
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="stillhash-") as folder:
        path = Path(folder) / "file"
        yield path
        storage.put_file(path, name)
