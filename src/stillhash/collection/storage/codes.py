"""The codes: sealed segments, and rows of the table `items` that are not sealed yet."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from sqlite3 import Connection
from typing import NamedTuple

import numpy as np

from stillhash.collection.storage.items import RowNumbers
from stillhash.collection.storage.schema import MAX_ROW_NUMBER, get_meta, parsing
from stillhash.collection.storage.segments import SEGMENT_ROWS, CodedRows, Segment, SegmentIdentity, read_segment
from stillhash.errors import BadState, Conflict
from stillhash.files import stored_file
from stillhash.numeric.codes import NO_DIGEST, width
from stillhash.numeric.kernels import read_tiles
from stillhash.numeric.validation import Codes, Mask


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
