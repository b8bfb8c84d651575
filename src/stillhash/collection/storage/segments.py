"""The codes: in segments, and in rows of the table `items` that are not sealed yet.

Segments are immutable files of codes in the layout that the scan reads, mapped into memory:

    bytes 0-79    magic, format, bits, rows, the first row or -1, and which segment it is (SegmentIdentity)
    bytes 4096-   tiles (tiles, planes, TILE), then, if they are not consecutive, the row numbers as int64;
                  then digests of features, ascending, as int64, and the places of their rows as uint32

A segment is a sealed file (files.py). Its checksums are verified once, before the first search, and by `verify`.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.schema import MAX_ROW_NUMBER, RowNumbers, get_meta, parsing
from stillhash.errors import BadState, Conflict
from stillhash.files import (
    check_sealed,
    content_size,
    map_file,
    open_regular,
    stored_file,
    translate_read_errors,
    write_sealed,
)
from stillhash.numeric.codes import NO_DIGEST, TILE, Tiles, from_tiles, to_tiles, width
from stillhash.numeric.kernels import read_tiles
from stillhash.numeric.validation import Codes, Mask

SEGMENT_MAGIC, SEGMENT_FORMAT = b"STILLSEG", 2
SEGMENT_HEADER = struct.Struct("<8sIIQqQ16sQ16s")  # magic, format, bits, rows, first row or -1, digests, identity
TILES_OFFSET = 4096  # is where tiles begin: at a page, so that they can be mapped
CONTENT_DIGEST_BYTES = 16
SEGMENT_ROWS = 131_072  # a segment has at most so many; those of earlier releases may have more
PLACES_PART = 1 << 20  # digests are compared at a time


class CodedRows(NamedTuple):
    """Rows in ascending order with their codes and the digests of their features."""

    numbers: NDArray[np.int64]  # (n,)
    codes: Codes  # (n, bytes)
    digests: NDArray[np.int64]  # (n,), NO_DIGEST where the features were never known

    @classmethod
    def without_digests(cls, numbers: NDArray[np.int64], codes: Codes) -> "CodedRows":
        return cls(numbers, codes, np.full(len(codes), NO_DIGEST, np.int64))

    @classmethod
    def join(cls, parts: Iterable["CodedRows"], bits: int) -> "CodedRows":
        """Return the rows of all parts, in the order of the parts."""
        none = cls.without_digests(np.empty(0, np.int64), np.empty((0, width(bits)), np.uint8))
        return cls(*map(np.concatenate, zip(none, *parts, strict=True)))

    def select(self, keep: NDArray[Any] | slice) -> "CodedRows":
        """Return the rows that a mask or places choose."""
        return CodedRows(self.numbers[keep], self.codes[keep], self.digests[keep])

    @classmethod
    def regroup(cls, parts: Iterable["CodedRows"], rows: int, bits: int) -> Iterator["CodedRows"]:
        """Yield the rows of all parts again, so many at a time, and the rest at last."""
        waiting: list[CodedRows] = []
        count = 0
        for part in parts:
            waiting.append(part)
            count += len(part.numbers)
            if count >= rows:
                whole = cls.join(waiting, bits)
                for start in range(0, count - count % rows, rows):
                    yield whole.select(slice(start, start + rows))
                waiting, count = [whole.select(slice(count - count % rows, None))], count % rows
        if count:
            yield cls.join(waiting, bits)


def even_rows(total: int, most: int) -> int:
    """Return how many rows each segment gets, of so many in all: about as many as all others, and not too many."""
    return max(1, -(-total // max(1, -(-total // most))))


class SegmentIdentity(NamedTuple):
    """Which segment a file is: the same stands in the table of segments, so that no other file passes for it."""

    collection: bytes = bytes(16)  # the id of the collection, zero outside of one
    number: int = 0
    content: bytes = bytes(CONTENT_DIGEST_BYTES)  # BLAKE2b of what follows the header


class Segment(NamedTuple):
    """The codes of rows first, first + 1, ..., or of `numbers`."""

    path: Path
    bits: int
    rows: int
    first: int
    identity: SegmentIdentity
    tiles: Tiles
    numbers: NDArray[np.int64] | None
    digests: NDArray[np.int64]  # of features, ascending
    places: NDArray[np.uint32]  # the rows of the digests, from 0

    def row_numbers(self) -> NDArray[np.int64]:
        return np.arange(self.first, self.first + self.rows) if self.numbers is None else np.asarray(self.numbers)

    def bounds(self) -> tuple[int, int]:
        """Return the first and the last row number of a segment that is not empty."""
        if self.numbers is None:
            return self.first, self.first + self.rows - 1
        return int(self.numbers[0]), int(self.numbers[-1])

    def check_rows(self) -> None:
        """Raise BadState unless row numbers ascend from 0 or more, and digests belong to rows that there are."""
        numbers = self.numbers
        ascending = numbers is None or bool((numbers[:1] >= 0).all() and (numbers[1:] > numbers[:-1]).all())
        if not ascending or (len(self.places) and int(self.places.max()) >= self.rows):
            raise BadState(f"{self.path.parent.name}/{self.path.name}: expected ascending rows, got others")

    def rows_with(self, digest: int) -> list[int]:
        """Return the row numbers that have this digest."""
        start = self.digests.searchsorted(digest)
        if start == len(self.digests) or self.digests[start] != digest:
            return []
        places = self.places[start : self.digests.searchsorted(digest, "right")].astype(np.int64)
        return sorted((places + self.first if self.numbers is None else self.numbers[places]).tolist())

    def coded_rows(self) -> CodedRows:
        """Read all rows."""
        return self._read(0, self.rows)

    def parts(self, rows: int = SEGMENT_ROWS) -> Iterator[CodedRows]:
        """Read all rows, about so many at a time: whole tiles."""
        step = max(1, rows // TILE) * TILE
        return (self._read(start, min(start + step, self.rows)) for start in range(0, self.rows, step))

    def _read(self, start: int, stop: int) -> CodedRows:
        """Read the rows from one place, at which a tile begins, to another."""
        digests = np.full(stop - start, NO_DIGEST, np.int64)
        for begin in range(0, len(self.places), PLACES_PART):
            places = self.places[begin : begin + PLACES_PART].astype(np.int64) - start
            inside = np.flatnonzero((places >= 0) & (places < stop - start))
            digests[places[inside]] = self.digests[begin + inside]
        codes = from_tiles(self.tiles[start // TILE : -(-stop // TILE)], stop - start)
        if self.numbers is None:
            return CodedRows(np.arange(self.first + start, self.first + stop), codes, digests)
        return CodedRows(np.array(self.numbers[start:stop]), codes, digests)


class Layout(NamedTuple):
    """How many of everything follow the header."""

    bits: int
    rows: int
    numbers: int  # that are listed: all, or none if they are consecutive
    digests: int

    def ends(self) -> list[int]:
        """Return the ends of tiles, row numbers, digests and places."""
        tiles = -(-self.rows // TILE) * width(self.bits) * TILE
        return list(accumulate([tiles, 8 * self.numbers, 8 * self.digests, 4 * self.digests]))

    def split(self, content: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Return the bytes of each of the four parts."""
        return np.split(content, self.ends())[:4]


def write_segment(path: Path, rows: CodedRows, bits: int, collection: bytes = bytes(16), number: int = 0) -> bytes:
    """Write these rows, and return the digest of the content; the file is on disk when this returns."""
    numbers = rows.numbers
    consecutive = len(numbers) > 0 and int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1
    places = np.flatnonzero(rows.digests != NO_DIGEST)
    places = places[np.argsort(rows.digests[places], kind="stable")]
    parts = [to_tiles(rows.codes, bits), np.asarray(numbers[:0] if consecutive else numbers, "<i8")]
    parts += [rows.digests[places].astype("<i8"), places.astype("<u4")]
    content = b"".join(part.tobytes() for part in parts)
    digest = hashlib.blake2b(content, digest_size=CONTENT_DIGEST_BYTES).digest()
    shape = bits, len(rows.codes), int(numbers[0]) if consecutive else -1, len(places)
    head = SEGMENT_HEADER.pack(SEGMENT_MAGIC, SEGMENT_FORMAT, *shape, collection, number, digest)
    write_sealed(path, [head.ljust(TILES_OFFSET, b"\0"), content])
    return digest


def read_segment(
    path: Path,
    bits: int,
    expected: tuple[int, SegmentIdentity] | None = None,
    *,
    check: bool = True,
    on_bytes: Callable[[int], object] | None = None,
) -> Segment:
    """Map a segment of these rows and this identity, once its checksums are verified, unless they have been already."""
    name = f"{path.parent.name}/{path.name}"
    with translate_read_errors(path), open_regular(path) as file:
        head = file.read(SEGMENT_HEADER.size)
    if head[:8] != SEGMENT_MAGIC[: len(head)] or not head:
        raise BadState(f"{name}: not a segment file")
    if len(head) < SEGMENT_HEADER.size:
        raise BadState(f"{name}: expected a header of {SEGMENT_HEADER.size} bytes, got {len(head)}")
    _, format_, stored_bits, rows, first, digests, *identity = SEGMENT_HEADER.unpack(head)
    if format_ != SEGMENT_FORMAT:
        raise BadState(f"{name}: expected format {SEGMENT_FORMAT}, got {format_}")
    if expected is not None and expected != (rows, SegmentIdentity(*identity)):
        raise BadState(f"{name}: expected segment {expected[1].number} of this collection, got another")
    layout = Layout(bits, rows, rows if first < 0 else 0, digests)
    if stored_bits != bits or content_size(path) != TILES_OFFSET + layout.ends()[-1]:
        raise BadState(f"{name}: expected codes of {bits} bits, got {rows} of {stored_bits} bits")
    if check:
        check_sealed(path, on_bytes)
    parts = layout.split(map_file(path)[TILES_OFFSET:])
    tiles, numbers = parts[0].reshape(-1, width(bits), TILE), None if first >= 0 else parts[1].view("<i8")
    by_digest = np.asarray(parts[2].view("<i8")), np.asarray(parts[3].view("<u4"))  # found faster without the subclass
    segment = Segment(path, bits, rows, first, SegmentIdentity(*identity), tiles, numbers, *by_digest)
    if check:
        segment.check_rows()
    return segment


class SegmentRecord(NamedTuple):
    """A row of the table of segments."""

    number: int
    file: str
    rows: int
    first: int
    last: int
    content: bytes  # the digest of its content

    def check(self) -> None:
        """Raise BadState unless this can be a segment."""
        numbers = all(isinstance(value, int) for value in (self.rows, self.first, self.last))
        if not numbers or not 0 < self.rows <= self.last - self.first + 1 or not 0 <= self.first <= MAX_ROW_NUMBER:
            raise BadState(f"segments: expected rows of segment {self.number}, got {self.shape()!r:.100}")

    def shape(self) -> tuple[int, int, int]:
        """Return how many rows it has, and the first and the last."""
        return self.rows, self.first, self.last


class CodeTable:
    """Which codes there are. The rows up to the last sealed one have their codes in segments, later ones in `items`."""

    segment_rows = SEGMENT_ROWS  # that a new segment has at most

    def __init__(self, folder: Path, bits: int, collection: bytes) -> None:
        self.folder, self.bits, self.collection = folder, bits, collection

    def segments(self, connection: Connection, after: int = -1) -> Iterator[Segment]:
        """Map the segments that hold rows past this one."""
        return (self.read_segment(record) for record in self.segment_records(connection) if record.last > after)

    def segment_records(self, connection: Connection) -> list[SegmentRecord]:
        """Return which segments there are, in order of their rows."""
        rows = connection.execute("SELECT number, file, rows, first, last, content FROM segments ORDER BY first")
        records = [SegmentRecord(*row) for row in rows.fetchall()]
        for record in records:
            record.check()
        return records

    def segment_files(self, connection: Connection) -> list[str]:
        """Return the files of all segments, in order."""
        return [stored_file(self.folder, record.file).name for record in self.segment_records(connection)]

    def read_segment(
        self, record: SegmentRecord, *, check: bool = True, on_bytes: Callable[[int], object] | None = None
    ) -> Segment:
        """Map the segment of this record; BadState if the file is damaged, or another one."""
        identity = SegmentIdentity(self.collection, record.number, record.content)
        file = stored_file(self.folder, record.file)
        segment = read_segment(file, self.bits, (record.rows, identity), check=check, on_bytes=on_bytes)
        first, last = segment.bounds()
        if (first, last) != (record.first, record.last):
            expected = f"rows {record.first} to {record.last}"
            raise BadState(f"segments/{record.file}: expected {expected}, got {first} to {last}")
        return segment

    def add_segments(self, connection: Connection, records: Iterable[SegmentRecord]) -> None:
        """Register segments."""
        connection.executemany("INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?)", records)

    def remove_segments(self, connection: Connection, records: Iterable[SegmentRecord]) -> None:
        """Forget segments whose items others hold now; their tombstones stay, so readers need not start over."""
        for record in records:
            if connection.execute("DELETE FROM segments WHERE number = ?", [record.number]).rowcount != 1:
                raise Conflict(f"segments/{record.file}: expected to replace it, but another has done so")

    def after(self, connection: Connection, last: int) -> CodedRows:
        """Return the rows past this one, deleted ones perhaps among them."""
        parts = []
        for segment in self.segments(connection, last):
            rows = segment.coded_rows()
            parts.append(rows.select(rows.numbers > last))
        return CodedRows.join([*parts, self.unsealed(connection, last)], self.bits)

    @parsing("codes")
    def codes_of(self, connection: Connection, rows: RowNumbers) -> tuple[Codes, Mask]:
        """Return the codes of these rows, and which of them have one; zeros for the others."""
        codes, known = np.zeros((len(rows), width(self.bits)), np.uint8), np.zeros(len(rows), bool)
        for record in self.segment_records(connection):
            inside = np.flatnonzero((rows >= record.first) & (rows <= record.last))
            if len(inside):
                segment = self.read_segment(record, check=False)
                numbers = segment.row_numbers()
                places = np.minimum(np.searchsorted(numbers, rows[inside]), len(numbers) - 1)
                held = numbers[places] == rows[inside]
                codes[inside[held]], known[inside[held]] = read_tiles(segment.tiles, places[held]), True
        for place in np.flatnonzero(~known).tolist():
            stored = connection.execute("SELECT code FROM items WHERE row = ?", [int(rows[place])]).fetchone()
            if stored is not None and stored[0] is not None:
                codes[place], known[place] = np.frombuffer(stored[0], np.uint8), True
        return codes, known

    @parsing("codes")
    def sample(self, connection: Connection, count: int) -> Codes:
        """Return about this many codes of items, of rows at equal distances, whether sealed or not."""
        step = max(1, int(get_meta(connection, "next_row")) // count)
        deleted = connection.execute("SELECT row FROM tombstones WHERE row % ? = 0", [step]).fetchall()
        codes = []
        for record in self.segment_records(connection):
            segment = self.read_segment(record, check=False)
            rows = segment.row_numbers()
            places = np.flatnonzero(rows % step == 0)
            codes.append(read_tiles(segment.tiles, places[~np.isin(rows[places], deleted)]))
        sql = "SELECT code FROM items WHERE row > ? AND row % ? = 0 AND code NOT NULL ORDER BY row"
        unsealed = connection.execute(sql, [self.last_sealed(connection), step]).fetchall()
        packed = np.frombuffer(b"".join(code for (code,) in unsealed), np.uint8)
        codes.append(packed.reshape(len(unsealed), width(self.bits)))
        return np.concatenate(codes)

    def unsealed_rows(self, connection: Connection) -> RowNumbers:
        """Return the rows of items that have codes which are not sealed."""
        sql = "SELECT row FROM items WHERE row > ? AND code NOT NULL ORDER BY row"
        return np.array(connection.execute(sql, [self.last_sealed(connection)]).fetchall(), np.int64).reshape(-1)

    def unsealed_parts(self, connection: Connection, rows: int) -> Iterator[CodedRows]:
        """Yield the rows that are not sealed, so many at a time."""
        last = -1
        while len((part := self.unsealed(connection, last, rows)).numbers):
            yield part
            last = int(part.numbers[-1])

    @parsing("codes")
    def unsealed(self, connection: Connection, last: int = -1, most: int = -1) -> CodedRows:
        """Return the rows past this one that are not sealed, or the first of them."""
        sql = (
            "SELECT row, ifnull(feature_digest, ?), code FROM items "
            "WHERE row > ? AND code NOT NULL ORDER BY row LIMIT ?"
        )
        rows = connection.execute(sql, [NO_DIGEST, max(last, self.last_sealed(connection)), most]).fetchall()
        codes = np.frombuffer(b"".join(row[2] for row in rows), np.uint8).reshape(len(rows), width(self.bits))
        numbers, digests = np.array([row[:2] for row in rows], np.int64).reshape(-1, 2).T
        return CodedRows(numbers, codes, digests)

    def last_sealed(self, connection: Connection) -> int:
        """Return the last row that a segment holds, -1 if there is none."""
        return int(connection.execute("SELECT ifnull(max(last), -1) FROM segments").fetchone()[0])

    def count_unsealed(self, connection: Connection) -> int:
        """Count the items that have no code in a segment."""
        sql = "SELECT count(*) FROM items WHERE row > ?"
        return int(connection.execute(sql, [self.last_sealed(connection)]).fetchone()[0])

    def clear_unsealed(self, connection: Connection, first: int, last: int) -> None:
        """Drop the codes and digests of rows that a segment holds now."""
        sql = "UPDATE items SET code = NULL, feature_digest = NULL WHERE row BETWEEN ? AND ? AND code NOT NULL"
        connection.execute(sql, [first, last])

    def has_changes(self, connection: Connection) -> bool:
        """Return whether rows were deleted or changed since the last compaction."""
        sql = "SELECT EXISTS (SELECT 1 FROM tombstones) OR EXISTS (SELECT 1 FROM changed_rows)"
        return bool(connection.execute(sql).fetchone()[0])

    def drop_deleted(self, connection: Connection, seq: int) -> int:
        """Drop the tombstones up to this commit, of rows that no segment holds by now; return how many.

        Changed rows are dropped too, since columns have them as they were then, or later. Readers start over.
        """
        dropped = connection.execute("DELETE FROM tombstones WHERE seq <= ?", [seq]).rowcount
        connection.execute("DELETE FROM changed_rows WHERE seq <= ?", [seq])
        self.start_over(connection)
        return dropped

    def start_over(self, connection: Connection) -> None:
        """Let all readers map the segments again, and none go on from an earlier commit."""
        connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'generation'")

    def live_parts(self, connection: Connection, records: Iterable[SegmentRecord]) -> Iterator[CodedRows]:
        """Yield the rows of segments that are items, some at a time."""
        for record in records:
            for part in self.read_segment(record).parts():
                sql = "SELECT row FROM items WHERE row BETWEEN ? AND ? ORDER BY row"
                span = connection.execute(sql, [int(part.numbers[0]), int(part.numbers[-1])])
                live = np.fromiter((row for (row,) in span), np.int64)
                yield part.select(np.isin(part.numbers, live, assume_unique=True))

    def of_rows(self, connection: Connection, rows: RowNumbers) -> CodedRows:
        """Return those of these ascending rows that have a code."""
        parts = []
        for record in self.segment_records(connection):
            if np.searchsorted(rows, record.first) < np.searchsorted(rows, record.last, "right"):
                parts += [part.select(np.isin(part.numbers, rows)) for part in self.read_segment(record).parts()]
        parts += [part.select(np.isin(part.numbers, rows)) for part in self.unsealed_parts(connection, SEGMENT_ROWS)]
        return CodedRows.join(parts, self.bits)

    def deleted_after(self, connection: Connection, seq: int) -> RowNumbers:
        """Return the rows that commits past this one deleted."""
        rows = connection.execute("SELECT row FROM tombstones WHERE seq > ?", [seq]).fetchall()
        return np.array(rows, np.int64).reshape(-1)

    def mismatches(self, connection: Connection) -> tuple[RowNumbers, RowNumbers]:
        """Return rows of items that lack a code, and rows of codes that have neither an item nor a tombstone."""
        sealed = [segment.row_numbers() for segment in self.segments(connection)]
        coded = np.concatenate([*sealed, self.unsealed(connection).numbers])
        live = connection.execute("SELECT row FROM items WHERE features IS NULL ORDER BY row").fetchall()
        known = connection.execute("SELECT row FROM items UNION SELECT row FROM tombstones").fetchall()
        missing = np.setdiff1d(np.array(live, np.int64).reshape(-1), coded)
        return missing, np.setdiff1d(coded, np.array(known, np.int64).reshape(-1))
