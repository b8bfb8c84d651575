"""Detect damage of store.db: checksums of its pages, which SQLite lacks, and the number of its last commit.

    store.sums    checksums of the pages of store.db, as of the last checkpoint
    acked         the number of the last commit that was acknowledged

A checkpoint moves pages from the WAL to store.db. Only the one writing process does that, and it writes the checksums
that will hold before it begins. A page that is in the WAL is read from there, and SQLite checks it; any other page must
match store.sums, before the checkpoint as after. So a crash at any moment leaves both consistent.

To SQLite a damaged WAL ends where the damage begins, and later commits are silently lost. `acked` is written after
every commit and is not fsynced; it reveals lost commits: what is committed is never less than what was acknowledged.
"""

import os
import sqlite3
import struct
import subprocess
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np

from stillhash.collection.storage.checksums import BlockChecksums, checksum_pair, pack_checksums, unpack_checksums
from stillhash.collection.storage.connections import TrackedConnection, connect, in_use
from stillhash.collection.storage.sealed_files import FILE_MODE, translate_read_errors, write_durably
from stillhash.collection.storage.verify_pages import PAGE_SIZE, mismatched_pages, mismatched_pages_in_subprocess
from stillhash.collection.storage.wal import FRAME_HEADER, read_wal
from stillhash.errors import BadState

ACKED_RECORD = struct.Struct("<QI")  # a commit's number, and a checksum


def find_damage(path: Path) -> list[str]:
    """Describe what is wrong with the database file in this folder, one sentence for each problem."""
    acknowledged = acknowledged_commit(path)
    try:
        pages = damaged_pages(path)
        with closing(connect(path, "ro")) as connection:
            seq = committed_seq(connection)
    except (BadState, TypeError, sqlite3.DatabaseError) as error:
        return [str(error)]
    if seq < acknowledged:
        return [f"store.db-wal: lost the last {acknowledged - seq} of {acknowledged} acknowledged commits"]
    return [f"store.db: page {page} does not match its checksum" for page in pages]


def committed_seq(connection: sqlite3.Connection) -> int:
    """Return the number of the last commit that this connection sees."""
    return int(connection.execute("SELECT value FROM meta WHERE key = 'seq'").fetchone()[0])


def damaged_pages(path: Path) -> list[int]:
    """List the pages of store.db that do not match their checksums.

    Another process may be moving pages meanwhile. It writes new checksums first, so a mismatch is checked again.
    """
    while True:
        checksums = read_page_checksums(path)
        try:
            in_wal = set(read_wal(path).page_numbers.tolist())
            with TrackedConnection.file_lock:
                compare = mismatched_pages_in_subprocess if in_use(path) else mismatched_pages
                mismatched = compare(str(path / "store.db"), str(path / "store.sums"))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise BadState(f"store.db: cannot be verified: {error}") from error
        damaged = [page for page in mismatched if page not in in_wal]
        if not damaged or np.array_equal(read_page_checksums(path), checksums):
            return damaged


def read_page_checksums(path: Path) -> BlockChecksums:
    with translate_read_errors(path / "store.sums"):
        return unpack_checksums((path / "store.sums").read_bytes(), "store.sums")


def write_page_checksums(path: Path) -> None:
    """Write the checksums that hold once the WAL is moved to store.db."""
    wal = read_wal(path)
    if not wal.page_count:
        return
    checksums = np.tile(np.array(checksum_pair(bytes(PAGE_SIZE)), np.uint32), (wal.page_count, 1))  # unwritten: zeros
    previous = read_page_checksums(path)[: wal.page_count]
    checksums[: len(previous)] = previous
    latest = dict(zip(wal.page_numbers.tolist(), range(len(wal.frames)), strict=True))
    for page, frame in latest.items():
        if page < wal.page_count:
            checksums[page] = checksum_pair(wal.frames[frame, FRAME_HEADER:])
    write_durably(path / "store.sums", [pack_checksums(checksums)])


def acknowledged_commit(path: Path) -> int:
    """Return the number of the last acknowledged commit, 0 if it is not known."""
    try:
        seq, crc = ACKED_RECORD.unpack((path / "acked").read_bytes())
    except (OSError, struct.error):
        return 0
    return seq if zlib.crc32(seq.to_bytes(8, "little")) == crc else 0


def acknowledge(path: Path, seq: int) -> None:
    """Record that this commit was acknowledged, without waiting for the disk."""
    with os.fdopen(os.open(path / "acked", os.O_WRONLY | os.O_CREAT, FILE_MODE), "wb") as file:
        file.write(ACKED_RECORD.pack(seq, zlib.crc32(seq.to_bytes(8, "little"))))
