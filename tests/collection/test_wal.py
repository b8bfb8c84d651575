"""Checksums of SQLite's log equal those of its documentation, computed word by word."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhash.collection.storage import wal as wal_module
from stillhash.collection.storage.verify_pages import PAGE_SIZE
from stillhash.collection.storage.wal import FRAME_HEADER, FRAME_SIZE, WAL_HEADER, read_wal, wal_sums
from stillhash.files import checksum_pair


def plain_sums(covered: bytes, start: bytes, order: str) -> bytes:
    """Compute the checksums of some bytes, as https://www.sqlite.org/walformat.html does."""
    a, b = struct.unpack(">II", start)
    for x, y in struct.iter_unpack(order + "II", covered):
        a = (a + x + b) % 2**32
        b = (b + y + a) % 2**32
    return struct.pack(">II", a, b)


@given(st.integers(0, 2**32), st.sampled_from(["<", ">"]))
def test_checksums_are_those_of_the_documentation(seed: int, order: str) -> None:
    rng = np.random.default_rng(seed)
    data, starts = rng.integers(0, 256, WAL_HEADER, np.uint8), rng.integers(0, 256, (3, 8), np.uint8)
    data[3] = data[3] & 254 | (order == ">")
    frames = rng.integers(0, 256, (3, FRAME_SIZE), np.uint8)
    for frame, start, result in zip(frames, starts, wal_sums(frames, starts, data), strict=True):
        covered = frame[:8].tobytes() + frame[FRAME_HEADER:].tobytes()
        assert result.tobytes() == plain_sums(covered, start.tobytes(), order)
    (header,) = wal_sums(data[None], starts[:1], data)
    assert header.tobytes() == plain_sums(data[:24].tobytes(), starts[0].tobytes(), order)


@pytest.mark.parametrize("pages", [1, 30])
def test_a_log_is_read_up_to_its_first_damaged_frame(tmp_path: Path, pages: int) -> None:
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (data BLOB)")
        before = len(read_wal(tmp_path).frames)
        connection.execute("INSERT INTO t VALUES (?)", [bytes(pages * PAGE_SIZE)])
        wal = read_wal(tmp_path)
        assert len(wal.frames) > before and wal.page_count >= pages
        (count,) = connection.execute("PRAGMA page_count").fetchone()
        assert wal.page_count == count
        data = bytearray((tmp_path / "store.db-wal").read_bytes())
        data[WAL_HEADER + before * FRAME_SIZE + FRAME_HEADER + 5] ^= 1
        (tmp_path / "copy").mkdir()
        (tmp_path / "copy" / "store.db-wal").write_bytes(data)
        assert len(read_wal(tmp_path / "copy").frames) == before


@pytest.mark.parametrize("frames_per_read", [1, 3, 1024])
def test_checksums_are_of_the_last_committed_pages(
    tmp_path: Path, frames_per_read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_module, "FRAMES_PER_READ", frames_per_read)
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA cache_size = 2")  # so that pages of a transaction are written before it ends
        connection.execute("CREATE TABLE t (data BLOB)")
        for size in (1, 9, 2, 5):
            connection.execute("INSERT INTO t VALUES (?)", [bytes([size]) * size * PAGE_SIZE])
        committed = len(read_wal(tmp_path).frames)
        connection.execute("BEGIN")
        connection.execute("UPDATE t SET data = ?", [b"x" * 9 * PAGE_SIZE])
        log = (tmp_path / "store.db-wal").read_bytes()
        assert len(log) > WAL_HEADER + committed * FRAME_SIZE  # it has pages of no commit
        wal = read_wal(tmp_path, checksums=True)
        assert len(wal.frames) == len(wal.checksums) == committed
        for place in dict(zip(wal.page_numbers.tolist(), range(committed), strict=True)).values():
            start = WAL_HEADER + place * FRAME_SIZE
            assert wal.frames[place].tobytes() == log[start : start + FRAME_HEADER]
            assert tuple(wal.checksums[place]) == checksum_pair(log[start + FRAME_HEADER : start + FRAME_SIZE])
        connection.execute("ROLLBACK")
