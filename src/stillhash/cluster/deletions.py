"""Deleted rows of segments: bitmaps in files of their own, or a few rows in the manifest itself.

    deleted/<32 hex>.del    a sealed file: magic, format, rows of the segment, its checksum, and the bitmap
    inline:<base64>         the deleted rows as uint32, ascending

A bitmap has one bit for each row, in little-endian order; a set bit is a deleted row. Both are written before the
commit that names them, so a removal takes effect with its commit or not at all.
"""

import base64
import struct
import uuid
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stillhash.cluster.manifest import ClusterManifest, SegmentEntry
from stillhash.cluster.segment_cache import SegmentCache
from stillhash.cluster.storage import Storage
from stillhash.errors import BadState
from stillhash.files import seal, unseal
from stillhash.search.blocks import NO_IDS, Bitmap, IdArray, is_set

INLINE_ROWS = 16  # the most deleted rows of a segment that the manifest lists
INLINE = "inline:"
DELETIONS_MAGIC, DELETIONS_FORMAT = b"STILLDEL", 1
DELETIONS_HEADER = struct.Struct("<8sIIQ8s")  # magic, format, deleted rows, rows, checksum of the segment


def load_deletions(storage: Storage, entry: SegmentEntry) -> Bitmap:
    """Return the deleted rows of a segment as a bitmap."""
    if not entry.deleted:
        return np.zeros(-(-entry.rows // 8), np.uint8)
    bitmap = _inline(entry) if entry.deletions.startswith(INLINE) else _stored(storage, entry)
    if np.unpackbits(bitmap, count=entry.rows, bitorder="little").sum() != entry.deleted:
        raise BadState(f"{entry.name}: expected {entry.deleted} deleted rows, got another number")
    return bitmap


def store_deletions(storage: Storage, entry: SegmentEntry, bitmap: Bitmap) -> SegmentEntry:
    """Write the deleted rows of a segment, and return its entry with them, for the next manifest."""
    rows = np.flatnonzero(np.unpackbits(bitmap, count=entry.rows, bitorder="little"))
    if len(rows) <= INLINE_ROWS:
        inline = INLINE + base64.b64encode(rows.astype("<u4").tobytes()).decode() if len(rows) else ""
        return entry._replace(deleted=len(rows), deletions=inline)
    checksum = bytes.fromhex(entry.checksum)
    head = DELETIONS_HEADER.pack(DELETIONS_MAGIC, DELETIONS_FORMAT, len(rows), entry.rows, checksum)
    name = f"deleted/{uuid.uuid4().hex}.del"
    storage.create(name, seal(head + bitmap.tobytes()))
    return entry._replace(deleted=len(rows), deletions=name)


def without_ids(cache: SegmentCache, manifest: ClusterManifest, ids: IdArray) -> tuple[ClusterManifest, int]:
    """Return a manifest without these ids, to be committed under the next number, and how many there were."""
    storage, changed = _storage(cache), {}
    for place, rows, bitmap in _live_rows(cache, manifest, ids):
        entry = manifest.segments[place]
        deleted = np.unpackbits(bitmap, count=entry.rows, bitorder="little")
        deleted[rows] = 1
        changed[place] = store_deletions(storage, entry, np.packbits(deleted, bitorder="little"))
    entries = [changed.get(place, entry) for place, entry in enumerate(manifest.segments)]
    after = manifest._replace(segments=tuple(entry for entry in entries if entry.live))
    return after, manifest.rows - after.rows


def existing_ids(cache: SegmentCache, manifest: ClusterManifest, ids: IdArray) -> IdArray:
    """Return those of the ids that exist, ascending."""
    parts = [NO_IDS]
    for place, rows, _ in _live_rows(cache, manifest, ids):
        entry = manifest.segments[place]
        parts.append(entry.first + rows if entry.consecutive else cache.row_numbers(entry, manifest.bits)[rows])
    return np.sort(np.concatenate(parts))


def _live_rows(
    cache: SegmentCache, manifest: ClusterManifest, ids: IdArray
) -> Iterator[tuple[int, NDArray[np.int64], Bitmap]]:
    """Yield the place of each segment that has some of these ids, their live rows, and the bitmap of deleted rows."""
    ids = np.sort(ids)  # and each once, several times faster than np.unique
    ids = ids[np.append(True, ids[1:] != ids[:-1])[: len(ids)]]
    ids = ids[: np.searchsorted(ids, manifest.next_id)]
    if not len(ids) or not manifest.segments:
        return
    starts = np.searchsorted(ids, [entry.first for entry in manifest.segments])
    ends = np.searchsorted(ids, [entry.last for entry in manifest.segments], "right")
    for place in np.flatnonzero(ends > starts).tolist():
        entry, inside = manifest.segments[place], ids[starts[place] : ends[place]]
        rows = inside - entry.first
        if not entry.consecutive:
            numbers = cache.row_numbers(entry, manifest.bits)
            rows = np.searchsorted(numbers, inside)
            rows = rows[numbers[np.minimum(rows, len(numbers) - 1)] == inside]
        bitmap = load_deletions(_storage(cache), entry)
        rows = rows[~is_set(bitmap, rows)]
        if len(rows):
            yield place, rows, bitmap


def _storage(cache: SegmentCache) -> Storage:
    if cache.storage is None:
        raise ValueError("cache: expected one of a storage, got one without")
    return cache.storage


def _inline(entry: SegmentEntry) -> Bitmap:
    try:
        rows = np.frombuffer(base64.b64decode(entry.deletions[len(INLINE) :], validate=True), "<u4")
    except ValueError as error:
        raise BadState(f"{entry.name}: expected deleted rows in the manifest, got {error}") from error
    if len(rows) and int(rows.max()) >= entry.rows:
        raise BadState(f"{entry.name}: expected deleted rows below {entry.rows}, got {int(rows.max())}")
    deleted = np.zeros(entry.rows, np.uint8)
    deleted[rows] = 1
    return np.packbits(deleted, bitorder="little")


def _stored(storage: Storage, entry: SegmentEntry) -> Bitmap:
    content = unseal(storage.read(entry.deletions), entry.deletions)
    if len(content) < DELETIONS_HEADER.size or content[:8] != DELETIONS_MAGIC:
        raise BadState(f"{entry.deletions}: expected deleted rows, got another file")
    _, format_, _, rows, checksum = DELETIONS_HEADER.unpack_from(content)
    if format_ != DELETIONS_FORMAT:
        raise BadState(f"{entry.deletions}: expected format {DELETIONS_FORMAT}, got {format_}")
    bitmap = np.frombuffer(content, np.uint8, offset=DELETIONS_HEADER.size).copy()
    if (rows, checksum.hex(), len(bitmap)) != (entry.rows, entry.checksum, -(-entry.rows // 8)):
        raise BadState(f"{entry.deletions}: expected the deleted rows of {entry.name}, got those of another segment")
    return bitmap
