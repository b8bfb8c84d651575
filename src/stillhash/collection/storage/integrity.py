"""Detect damage of store.db: checksums of its pages, which SQLite lacks, and the number of its last commit.

    store.sums    checksums of the pages of store.db, as of the last checkpoint
    acked         the number of the last commit that was acknowledged

A checkpoint moves pages from the WAL to store.db. Only the one writing process does that, and it writes the checksums
that will hold before it begins. A page that is in the WAL is read from there, and SQLite checks it; any other page must
match store.sums, before the checkpoint as after. So a crash at any moment leaves both consistent.

To SQLite a damaged WAL ends where the damage begins, and later commits are silently lost. `acked` is written after
every commit and is not fsynced; it reveals lost commits: what is committed is never less than what was acknowledged.

A store is created with `acked`, fsynced, and says so in `meta`. Each later commit overwrites one of its two records in
place, and the next commit the other, so that a power cut leaves the old number or the new one, even where it cuts a
record in two. In such a store `acked` is missing only if it was removed, and that is damage: nothing else would reveal
that the log was cut. Stores of earlier releases lack the entry in `meta`, until their first write.
"""

import sqlite3
import struct
import subprocess
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from stillhash.collection.storage.connections import TrackedConnection, check_files, connect, in_use, wal_bytes
from stillhash.collection.storage.schema import get_meta, set_meta
from stillhash.collection.storage.verify_pages import PAGE_SIZE, mismatched_pages, mismatched_pages_in_subprocess
from stillhash.collection.storage.wal import read_wal
from stillhash.errors import BadState
from stillhash.files import (
    BlockChecksums,
    checksum_pair,
    open_regular,
    open_to_write,
    pack_checksums,
    read_regular,
    translate_read_errors,
    unpack_checksums,
    write_durably,
)

ACKED_RECORD = struct.Struct("<QI")  # a commit's number, and a checksum
ACKED_KEY = "acked"  # in `meta`, where the file of this name is never missing
ACKED_RECORDS = 2  # written in turn
READ_ATTEMPTS = 3  # where a file handle lacks for a moment, say
MAX_CHECKSUM_BYTES = 1 << 16  # of store.sums, beside twice those of the pages that there are


def find_damage(
    path: Path,
    check: Callable[[sqlite3.Connection], None] | None = None,
    on_bytes: Callable[[int], object] | None = None,
) -> list[str]:
    """Describe what is wrong with the database file in this folder, one sentence for each problem.

    check: raises BadState for what else is wrong. on_bytes: called with the bytes that are compared, part by part.
    """
    acknowledged = acknowledged_commit(path)
    try:
        check_files(path)
        pages = damaged_pages(path, on_bytes)
        with closing(connect(path, "ro")) as connection:
            seq = committed_seq(connection)
            if not pages and check is not None:
                check(connection)
            if acknowledged is None and lacks_acknowledgement(connection, path):
                return ["acked: missing or damaged, so that commits may be lost from store.db-wal unnoticed"]
    except (BadState, sqlite3.DatabaseError) as error:
        return [str(error)]
    if acknowledged is not None and seq < acknowledged:
        return [f"store.db-wal: lost the last {acknowledged - seq} of {acknowledged} acknowledged commits"]
    return [f"store.db: page {page} does not match its checksum" for page in pages]


def committed_seq(connection: sqlite3.Connection) -> int:
    """Return the number of the last commit that this connection sees."""
    seq = get_meta(connection, "seq")
    if not isinstance(seq, int):
        raise BadState(f"seq: expected the number of a commit, got {seq!r:.100}")
    return seq


def damaged_pages(path: Path, on_bytes: Callable[[int], object] | None = None) -> list[int]:
    """List the pages of store.db that do not match their checksums.

    Another process may be moving pages meanwhile. It writes new checksums first, so a mismatch is checked again.
    """
    while True:
        checksums = read_page_checksums(path)
        try:
            in_wal = set(read_wal(path).page_numbers.tolist())
            with TrackedConnection.file_lock:
                compare = mismatched_pages_in_subprocess if in_use(path) else mismatched_pages
                mismatched = compare(str(path / "store.db"), str(path / "store.sums"), on_bytes)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise BadState(f"store.db: cannot be verified: {error}") from error
        damaged = [page for page in mismatched if page not in in_wal]
        if not damaged or np.array_equal(read_page_checksums(path), checksums):
            return damaged


def read_page_checksums(path: Path) -> BlockChecksums:
    file = path / "store.sums"
    with translate_read_errors(file):
        pages = ((path / "store.db").stat().st_size + wal_bytes(path)) // PAGE_SIZE
        return unpack_checksums(read_regular(file, 16 * pages + MAX_CHECKSUM_BYTES), file.name)


def write_page_checksums(path: Path) -> None:
    """Write the checksums that hold once the WAL is moved to store.db."""
    wal = read_wal(path, checksums=True)
    if not wal.page_count:
        return
    checksums = np.tile(np.array(checksum_pair(bytes(PAGE_SIZE)), np.uint32), (wal.page_count, 1))  # unwritten: zeros
    previous = read_page_checksums(path)[: wal.page_count]
    checksums[: len(previous)] = previous
    latest = dict(zip(wal.page_numbers.tolist(), range(len(wal.frames)), strict=True))
    for page, frame in latest.items():
        if page < wal.page_count:
            checksums[page] = wal.checksums[frame]
    write_durably(path / "store.sums", [pack_checksums(checksums)])


def acknowledged_commit(path: Path) -> int | None:
    """Return the number of the last acknowledged commit, None if it is not known."""
    for _ in range(READ_ATTEMPTS):
        with suppress(OSError, BadState), open_regular(path / "acked") as file:
            data = file.read(ACKED_RECORDS * ACKED_RECORD.size)
            whole = data[: len(data) - len(data) % ACKED_RECORD.size]
            records = ACKED_RECORD.iter_unpack(whole)
            if numbers := [seq for seq, crc in records if zlib.crc32(seq.to_bytes(8, "little")) == crc]:
                return int(max(numbers))
    return None


def lacks_acknowledgement(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether `acked` is missing or damaged in a store that was created with it."""
    return get_meta(connection, ACKED_KEY) is not None and acknowledged_commit(path) is None


def acknowledge(path: Path, seq: int, *, durably: bool = False) -> None:
    """Record that this commit was acknowledged, without waiting for the disk unless `durably`."""
    record = ACKED_RECORD.pack(seq, zlib.crc32(seq.to_bytes(8, "little")))
    if durably:
        write_durably(path / "acked", [record] * ACKED_RECORDS)
    else:
        with open_to_write(path / "acked") as file:
            file.seek(seq % ACKED_RECORDS * ACKED_RECORD.size)
            file.write(record)


def begin_acknowledging(connection: sqlite3.Connection, path: Path) -> None:
    """Make sure that `acked` is on disk and never missing from now on, in a store of an earlier release."""
    if get_meta(connection, ACKED_KEY) is None:
        acknowledge(path, committed_seq(connection), durably=True)
        set_meta(connection, ACKED_KEY, 1)
