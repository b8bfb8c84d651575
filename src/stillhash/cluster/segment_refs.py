"""Segments of an index whose map of ids is in memory: written, opened and deleted by their paths or URLs."""

import uuid
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.cluster.remote_files import RemoteFiles
from stillhash.cluster.segment_cache import SEAL_BYTES, SegmentCache, seal_checksum
from stillhash.cluster.segment_files import write_segment_file
from stillhash.cluster.storage import STORAGE_TIMEOUT, Storage, absolute_url, is_remote
from stillhash.collection.storage.segments import CodedRows, Segment
from stillhash.errors import NotFound, StoreFailed
from stillhash.numeric.validation import Codes


class SegmentRef(NamedTuple):
    """Where a sealed segment is stored, and how to recognise it."""

    name: str  # a path or a URL
    rows: int
    checksum: str


def write_ref(storage: Storage, codes: Codes, ids: NDArray[np.int64], bits: int) -> SegmentRef:
    """Write codes with ascending ids to a new segment; it is on disk when this returns."""
    name = f"segments/{uuid.uuid4().hex}.seg"
    checksum = write_segment_file(storage, name, CodedRows.without_digests(ids, codes), bits)
    return SegmentRef(storage.url_of(name), len(codes), checksum)


def delete_ref(storage: Storage, ref: SegmentRef) -> None:
    """Delete a segment of this storage; one that cannot be removed is left behind."""
    with suppress(StoreFailed):
        storage.delete(ref.name.removeprefix(storage.url).lstrip("/"))


def open_segment(url: str | Path, bits: int, cache: SegmentCache) -> tuple[SegmentRef, Segment]:
    """Open a segment that exists already, by its path or URL."""
    url = absolute_url(url)
    if is_remote(url):
        parent, _, name = url.rpartition("/")
        files = RemoteFiles(parent, STORAGE_TIMEOUT)
        try:
            size = files.status(name).size
            checksum = files.read(name, size - SEAL_BYTES, size).hex()
        except NotFound as error:
            raise StoreFailed(f"cannot use {url}: no such file") from error
    else:
        checksum = seal_checksum(Path(url))
    segment = cache.open(SegmentRef(url, 0, checksum), bits)
    return SegmentRef(url, segment.rows, checksum), segment
