"""Segments: reading gives what was written, or an error; never other codes."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash.collection.storage.segments import (
    SEGMENT_HEADER,
    TILES_OFFSET,
    CodedRows,
    Segment,
    SegmentIdentity,
    read_segment,
    write_segment,
)
from stillhash.errors import BadState, StoreFailed
from stillhash.files import write_durably
from stillhash.numeric.codes import NO_DIGEST, from_tiles
from stillhash.platform import SYSTEM
from tests.contracts.searchers import random_codes

SIZES, BITS = (1, 1023, 1024, 1025, 3000), (8, 13, 64, 100)


def row_numbers(rng: np.random.Generator, rows: int, *, gappy: bool) -> np.ndarray:
    start = int(rng.integers(0, 1000))
    gaps = rng.integers(1, 5, rows) if gappy else np.ones(rows, np.int64)
    return start + np.cumsum(gaps)


def write_random(path: Path, rows: int, bits: int, *, gappy: bool, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    codes, numbers = random_codes(rng, rows, bits), row_numbers(rng, rows, gappy=gappy)
    digests = np.where(rng.random(rows) < 0.7, rng.integers(-5, 5, rows) << 40, NO_DIGEST)  # some more than once
    write_segment(path, CodedRows(numbers, codes, digests), bits, b"c" * 16, 7)
    return codes, numbers


@pytest.mark.parametrize("gappy", [False, True])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("rows", SIZES)
def test_a_segment_comes_back_as_it_was_written(tmp_path: Path, rows: int, bits: int, gappy: bool) -> None:
    path = tmp_path / "one.tiles"
    codes, numbers = write_random(path, rows, bits, gappy=gappy)
    segment = read_segment(path, bits)
    assert (segment.bits, segment.rows) == (bits, rows)
    np.testing.assert_array_equal(from_tiles(segment.tiles, rows), codes)
    np.testing.assert_array_equal(segment.row_numbers(), numbers)
    assert (segment.numbers is None) == (not gappy or rows == 1)
    assert [file.name for file in tmp_path.iterdir()] == ["one.tiles"]


def test_segment_is_mapped_read_only(tmp_path: Path) -> None:
    write_random(tmp_path / "one.tiles", 1500, 64, gappy=True)
    segment = read_segment(tmp_path / "one.tiles", 64)
    assert isinstance(segment.tiles, np.memmap) and isinstance(segment.numbers, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        segment.tiles[0, 0, 0] = 1


# ---- whole or not at all ----


class FailingParts:
    """Parts of which the last raises an error: what was written so far must not stay."""

    def __init__(self, parts: list[bytes], error: BaseException) -> None:
        self.parts, self.error = parts, error

    def __iter__(self) -> Any:
        yield from self.parts
        raise self.error


@pytest.mark.parametrize(
    ("error", "raised"), [(OSError(errno.ENOSPC, "full"), StoreFailed), (KeyboardInterrupt(), KeyboardInterrupt)]
)
@pytest.mark.parametrize("before", [None, b"what was there"])
def test_a_failure_in_the_middle_leaves_nothing(
    tmp_path: Path, error: BaseException, raised: type[BaseException], before: bytes | None
) -> None:
    path = tmp_path / "one.tiles"
    if before is not None:
        path.write_bytes(before)
    with pytest.raises(raised):
        write_durably(path, FailingParts([b"a" * 100_000, b"b"], error))
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([] if before is None else [before])


@pytest.mark.parametrize("limit", [0, 2000, TILES_OFFSET, TILES_OFFSET + 5000])
def test_full_disk_leaves_nothing(tmp_path: Path, limit: int) -> None:
    resource = pytest.importorskip("resource", reason="limits the size of files, as POSIX systems can")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(StoreFailed, match=r"one\.tiles: .*File too large"):
            write_random(tmp_path / "one.tiles", 1500, 64, gappy=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_failing_sync_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StoreFailed, match=r"one\.tiles: .*Input/output error"):
        write_random(tmp_path / "one.tiles", 1500, 64, gappy=True)
    assert not list(tmp_path.iterdir())


def test_missing_folder_is_a_failed_write(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed):
        write_random(tmp_path / "nowhere" / "one.tiles", 10, 64, gappy=False)


@pytest.mark.skipif(not SYSTEM.open_files_can_move, reason="no mapped file can be replaced here; no name is used twice")
def test_writing_again_replaces_a_segment_that_stays_mapped(tmp_path: Path) -> None:
    path = tmp_path / "one.tiles"
    first, _ = write_random(path, 1025, 64, gappy=False, seed=1)
    segment = read_segment(path, 64)
    second, _ = write_random(path, 1025, 64, gappy=False, seed=2)
    np.testing.assert_array_equal(from_tiles(segment.tiles, 1025), first)
    np.testing.assert_array_equal(from_tiles(read_segment(path, 64).tiles, 1025), second)


# ---- damage ----


def read_if_sound(path: Path, bits: int) -> Segment | None:
    """Return the segment, or None if the damage is detected."""
    try:
        return read_segment(path, bits)
    except BadState as error:
        assert path.name in str(error)
        return None


@pytest.mark.parametrize(("rows", "bits", "gappy"), [(1, 8, False), (1025, 13, True), (1500, 64, False)])
def test_no_flipped_bit_gives_other_codes(tmp_path: Path, rows: int, bits: int, gappy: bool) -> None:
    path = tmp_path / "one.tiles"
    codes, numbers = write_random(path, rows, bits, gappy=gappy)
    whole = path.read_bytes()
    rng = np.random.default_rng(3)
    header = [(byte, bit) for byte in range(SEGMENT_HEADER.size) for bit in range(8)]
    beyond = [(int(byte), int(rng.integers(8))) for byte in rng.integers(SEGMENT_HEADER.size, TILES_OFFSET, 60)]
    content = [(int(byte), int(rng.integers(8))) for byte in rng.integers(TILES_OFFSET, len(whole), 250)]
    ends = [(TILES_OFFSET, 0), (len(whole) - 1, 7)]
    detected = 0
    for byte, bit in header + beyond + content + ends:
        damaged = bytearray(whole)
        damaged[byte] ^= 1 << bit
        path.write_bytes(damaged)
        segment = read_if_sound(path, bits)
        if segment is None:
            detected += 1
        else:
            np.testing.assert_array_equal(from_tiles(segment.tiles, rows), codes)
            np.testing.assert_array_equal(segment.row_numbers(), numbers)
    assert detected == len(header + beyond + content + ends)  # padding is under the checksum too
    path.write_bytes(whole)
    assert read_if_sound(path, bits) is not None


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda whole: b"", "not a segment"),
        (lambda whole: whole[:20], "header"),
        (lambda whole: whole[: TILES_OFFSET - 1], "damaged"),
        (lambda whole: whole[:TILES_OFFSET], "damaged"),
        (lambda whole: whole[:-1], "damaged"),
        (lambda whole: whole + b"\0", "damaged"),
        (lambda whole: b"\0" * len(whole), "segment"),
        (lambda whole: whole[:8] + b"\1" + whole[9:], "format"),
    ],
)
def test_damaged_file_is_refused(tmp_path: Path, damage: Any, match: str) -> None:
    path = tmp_path / "one.tiles"
    write_random(path, 1500, 64, gappy=True)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadState, match=match):
        read_segment(path, 64)


def test_other_bits_and_missing_files_are_refused(tmp_path: Path) -> None:
    write_random(tmp_path / "one.tiles", 10, 64, gappy=False)
    with pytest.raises(BadState, match=r"one\.tiles: .*bits"):
        read_segment(tmp_path / "one.tiles", 32)
    with pytest.raises(BadState, match=r"two\.tiles"):
        read_segment(tmp_path / "two.tiles", 64)
    with pytest.raises(BadState, match=tmp_path.name):
        read_segment(tmp_path, 64)


def test_a_swapped_segment_is_not_taken_for_another(tmp_path: Path) -> None:
    """The checksum of one file does not pass the content of another."""
    one, two = tmp_path / "one.tiles", tmp_path / "two.tiles"
    write_random(one, 1500, 64, gappy=False, seed=1)
    write_random(two, 1500, 64, gappy=False, seed=2)
    one.write_bytes(one.read_bytes()[:TILES_OFFSET] + two.read_bytes()[TILES_OFFSET:])
    assert read_if_sound(one, 64) is None


# ---- digests of features ----


@pytest.mark.parametrize("gappy", [False, True])
def test_rows_are_found_by_the_digest_of_their_features(tmp_path: Path, gappy: bool) -> None:
    rng = np.random.default_rng(4)
    codes, numbers = random_codes(rng, 3000, 64), row_numbers(rng, 3000, gappy=gappy)
    digests = np.where(rng.random(3000) < 0.7, rng.integers(-500, 500, 3000), NO_DIGEST)
    rows = CodedRows(numbers, codes, digests)
    write_segment(tmp_path / "one.tiles", rows, 64)
    segment = read_segment(tmp_path / "one.tiles", 64)
    for digest in range(-502, 503):
        expected = [] if digest == NO_DIGEST else numbers[digests == digest].tolist()
        assert segment.rows_with(digest) == expected
    for part, stored in zip(segment.coded_rows(), rows, strict=True):
        np.testing.assert_array_equal(part, stored)


# ---- identity ----


def test_a_segment_of_another_collection_number_or_content_is_refused(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(5), tmp_path / "one.tiles"
    rows = CodedRows.without_digests(np.arange(100), random_codes(rng, 100, 64))
    content = write_segment(path, rows, 64, b"c" * 16, 7)
    own = SegmentIdentity(b"c" * 16, 7, content)
    assert read_segment(path, 64, (100, own)).identity == own
    others = [own._replace(collection=b"d" * 16), own._replace(number=8), own._replace(content=b"x" * 16)]
    for expected in [(100, other) for other in others] + [(99, own)]:
        with pytest.raises(BadState, match=r"one\.tiles: expected segment \d of this collection, got another"):
            read_segment(path, 64, expected)
