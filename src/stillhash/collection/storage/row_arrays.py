"""Arrays with a row for each item that has a code: features that are kept, and rescoring codes.

Rows that are not sealed are in a table of store.db, those of a segment in a sealed file (files.py) beside it:

    bytes 0-47    magic, format, columns, rows, and which segment it belongs to
    bytes 4096-   values (rows, columns), in the order of the segment's rows; all bytes 0xFF where they are lost

Its checksums are verified once, before its first use.

Rescoring codes that are being built for items without any are in the table `rescoring` too, a row for each item. Until
every item has one the collection answers without them, and keeps its format. They may come in any order, and what is
there already stays after an interruption; `meta` has how many bits they have, and how many of them there are.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.schema import OPTIONAL_TABLES, RowNumbers, batches, get_meta, parsing, set_meta
from stillhash.collection.storage.segments import CodeTable, SegmentRecord
from stillhash.collection.types import Id
from stillhash.errors import BadState, InvalidInput
from stillhash.files import (
    BLOCK_SIZE,
    check_kind,
    check_sealed,
    content_size,
    display_name,
    map_file,
    write_sealed,
)
from stillhash.numeric.rescoring import RESCORE_BITS
from stillhash.numeric.validation import Codes, Floats, Mask

ARRAY_FORMAT = 1
ARRAY_HEADER = struct.Struct("<8sIIQ16sQ")  # magic, format, columns, rows, collection and number of the segment
ARRAY_OFFSET = BLOCK_SIZE
ROWS_PER_VALUE = 64  # rows are in one value of the table
ROWS_PER_PART = BLOCK_SIZE  # rows are a part, so that it is whole blocks for any columns
NO_ROW = -1
LARGEST = float(np.finfo(np.float16).max)


def round_features(X: Floats) -> Floats:
    """Return features as they are kept: rounded to float16, as float32; InvalidInput where one is too large."""
    if np.abs(X).max(initial=0) > LARGEST:
        raise InvalidInput(f"features: expected numbers up to {LARGEST:.0f}, since they are kept as float16, got more")
    return round_to_half(X)


def round_to_half(X: Floats) -> Floats:
    """Return numbers rounded to float16, as float32; infinity where one is too large."""
    with np.errstate(over="ignore"):
        return X.astype(np.float16).astype(np.float32)


class RowArrayKind(NamedTuple):
    """What the rows of such arrays are, and how they are stored."""

    table: str  # of store.db, and the suffix of the files
    stored: str  # dtype in the table and the files
    read: str  # dtype that is returned
    magic: bytes
    content: str  # in messages


FEATURES = RowArrayKind("features", "<f2", "f4", b"STILLFEA", "features")
RESCORING = RowArrayKind("rescoring", "u1", "u1", b"STILLRSC", "rescoring codes")


def array_header(kind: RowArrayKind, columns: int, rows: int, collection: bytes = bytes(16), number: int = 0) -> bytes:
    """Return what a file begins with: of this segment, or of one that has no number."""
    return ARRAY_HEADER.pack(kind.magic, ARRAY_FORMAT, columns, rows, collection, number).ljust(ARRAY_OFFSET, b"\0")


def map_array(path: Path, kind: RowArrayKind, rows: int) -> NDArray[Any]:
    """Map the values of so many rows, of any segment; the checksums of the file are verified already."""
    size, data, dtype = content_size(path), map_file(path), np.dtype(kind.stored)
    if size >= ARRAY_OFFSET:
        magic, version, columns, stored = ARRAY_HEADER.unpack(data[: ARRAY_HEADER.size].tobytes())[:4]
        bytes_of_rows = stored * columns * dtype.itemsize
        if (magic, version, stored, bytes_of_rows) == (kind.magic, ARRAY_FORMAT, rows, size - ARRAY_OFFSET):
            return data[ARRAY_OFFSET:size].view(dtype).reshape(rows, columns)
    raise BadState(f"{display_name(path)}: expected {kind.content} of {rows} rows, got others")


def find_lost(values: NDArray[Any]) -> Mask:
    """Return which rows are lost: all bytes 0xFF, of which a float is NaN."""
    lost: Mask = np.isnan(values[:, 0]) if values.dtype.kind == "f" else (values == 0xFF).all(axis=1)
    return lost


class RowArrayTable:
    """The rows of one kind, of all items that have a code."""

    def __init__(self, kind: RowArrayKind, columns: int, codes: CodeTable) -> None:
        self.kind, self.columns, self.codes = kind, columns, codes
        self._dtype = np.dtype(kind.stored)
        self._row_bytes = columns * self._dtype.itemsize
        self._checked: set[str] = set()  # files; no name is used twice

    def lost(self, rows: int) -> NDArray[Any]:
        """Return rows that are all lost, as they are stored."""
        return np.full((rows, self._row_bytes), 0xFF, np.uint8).view(self._dtype)

    def file(self, segment_file: str) -> str:
        """Return the name of the file beside a segment."""
        return f"{Path(segment_file).stem}.{self.kind.table}"

    def add(self, connection: Connection, numbers: RowNumbers, values: NDArray[Any]) -> None:
        """Store values (n, columns) of ascending rows that are not sealed, consecutive ones together."""
        gaps = np.flatnonzero(np.diff(numbers) != 1) + 1
        starts = np.concatenate([np.arange(0, len(numbers), ROWS_PER_VALUE), gaps, [len(numbers)]])
        ends = np.unique(starts).tolist()
        data = np.asarray(values, self._dtype)
        groups = ((int(numbers[start]), data[start:end].tobytes()) for start, end in pairwise(ends))
        connection.executemany(f"INSERT INTO {self.kind.table} VALUES (?, ?)", groups)

    def read(self, connection: Connection, numbers: RowNumbers) -> tuple[NDArray[Any], Mask]:
        """Return the values (n, columns) of these rows, and which of them are known."""
        values = self.lost(len(numbers)).astype(self.kind.read)
        last = self.codes.last_sealed(connection)
        with parsing(self.kind.content):
            first, group = -1, self.lost(0)  # read last
            for place in np.flatnonzero(numbers > last).tolist():
                row = int(numbers[place])
                if not first <= row < first + len(group):
                    sql = f"SELECT * FROM {self.kind.table} WHERE row <= ? ORDER BY row DESC LIMIT 1"
                    first, data = connection.execute(sql, [row]).fetchone() or (-1, b"")
                    group = np.frombuffer(data, self._dtype).reshape(-1, self.columns)
                if row < first + len(group):
                    values[place] = group[row - first]
        for record in self.codes.segment_records(connection) if (numbers <= last).any() else ():
            inside = np.flatnonzero((record.first <= numbers) & (numbers <= record.last))
            if len(inside):
                rows, stored = self._row_numbers(record), self._map_stored(record)
                at = np.minimum(np.searchsorted(rows, numbers[inside]), len(rows) - 1)
                held = rows[at] == numbers[inside]
                values[inside[held]] = stored[at[held]]
        return values, ~find_lost(values)

    def _row_numbers(self, record: SegmentRecord) -> RowNumbers:
        """Return the rows of a segment; none if it is damaged, so that they cannot be known."""
        if record.last - record.first + 1 == record.rows:
            return np.arange(record.first, record.last + 1)
        try:
            return self.codes.read_segment(record, check=False).row_numbers()
        except BadState:
            return np.full(record.rows, NO_ROW)

    def write(self, connection: Connection, segment: Path, number: int, numbers: RowNumbers) -> None:
        """Write the file of a new segment of these rows; it is on disk when this returns."""
        self.write_values(segment, number, numbers, lambda rows: self.read(connection, rows)[0])

    def write_values(
        self, segment: Path, number: int, numbers: RowNumbers, read: Callable[[RowNumbers], NDArray[Any]]
    ) -> None:
        """Write the file of a segment of these rows, whose values a function reads, some at a time."""
        write_sealed(segment.with_name(self.file(segment.name)), self._parts(number, numbers, read))

    def _parts(self, number: int, numbers: RowNumbers, read: Callable[[RowNumbers], NDArray[Any]]) -> Iterator[bytes]:
        yield self._header(number, len(numbers))
        for start in range(0, len(numbers), ROWS_PER_PART):
            yield np.asarray(read(numbers[start : start + ROWS_PER_PART]), self._dtype).tobytes()

    def clear(self, connection: Connection) -> None:
        """Drop all rows of the table: files hold those of all items now."""
        connection.execute(f"DELETE FROM {self.kind.table}")

    def files(self, connection: Connection) -> list[str]:
        """Return the files that there are, of the segments of this commit."""
        files = map(self.file, self.codes.segment_files(connection))
        return [file for file in files if check_kind(self.codes.folder / file)]

    def mapped(self, connection: Connection) -> list[NDArray[Any]]:
        """Map the values of each segment, to be read after a later commit has replaced the files."""
        return [self._map_stored(record) for record in self.codes.segment_records(connection)]

    def problems(self, connection: Connection, on_bytes: Callable[[int], object] | None = None) -> list[str]:
        """Return a sentence for each file that is missing or damaged; `on_bytes` is called with the bytes read."""
        problems = []
        for record in self.codes.segment_records(connection):
            try:
                self._checked.discard(file := self.file(record.file))
                if self._map(record, on_bytes) is None:
                    problems.append(f"segments/{file}: missing; the {self.kind.content} of its rows are lost")
            except BadState as error:
                problems.append(str(error))
        return problems

    def repair(self, connection: Connection, actions: list[str]) -> None:
        """Write files that are missing or damaged again, without values: their rows have lost them."""
        for record in self.codes.segment_records(connection):
            path = self.codes.folder / self.file(record.file)
            with suppress(BadState):
                if self._map(record) is not None:
                    continue
            values = self.lost(record.rows)
            write_sealed(path, [self._header(record.number, record.rows), values.tobytes()])
            lost = f"{record.rows} rows have lost their {self.kind.content}"
            actions.append(f"segments/{path.name}: damaged or missing; {lost}")

    def _map_stored(self, record: SegmentRecord) -> NDArray[Any]:
        """Map the values of a segment; BadState if there is no file, as after another process has compacted."""
        if (values := self._map(record)) is None:
            missing = f"segments/{self.file(record.file)}: missing"
            raise BadState(f"{missing}. Run repair, or restore a snapshot, unless another process has just compacted.")
        return values

    def _map(self, record: SegmentRecord, on_bytes: Callable[[int], object] | None = None) -> NDArray[Any] | None:
        """Map the values of a segment; None if there is no file, BadState if it is damaged or of another segment."""
        path = self.codes.folder / self.file(record.file)
        if not check_kind(path):
            return None
        if path.name not in self._checked:
            check_sealed(path, on_bytes)
        if not self._belongs(path, record):
            own = f"{self.kind.content} of segment {record.number}"
            raise BadState(f"{display_name(path)}: expected the {own}, got others")
        self._checked.add(path.name)
        return self._content(path, record.rows)

    def _header(self, number: int, rows: int) -> bytes:
        return array_header(self.kind, self.columns, rows, self.codes.collection, number)

    def _belongs(self, path: Path, record: SegmentRecord) -> bool:
        """Return whether a file has the header and the size of the values of this segment."""
        size, header = ARRAY_OFFSET + self._row_bytes * record.rows, self._header(record.number, record.rows)
        return content_size(path) == size and map_file(path)[:ARRAY_OFFSET].tobytes() == header

    def _content(self, path: Path, rows: int) -> NDArray[Any]:
        data = map_file(path)[ARRAY_OFFSET : ARRAY_OFFSET + self._row_bytes * rows]
        return data.view(self._dtype).reshape(rows, self.columns)


BITS_KEY = "new_rescore_bits"
COUNT_KEY = "new_rescoring_codes"
WITHOUT_CODE = "FROM items LEFT JOIN rescoring USING (row) WHERE codes IS NULL AND items.row > ? ORDER BY items.row"


def new_rescore_bits(connection: Connection) -> int | None:
    """Return the bits a dimension of the codes that are being built; None if none are."""
    bits: int | None = get_meta(connection, BITS_KEY)
    if bits is not None and bits not in RESCORE_BITS:
        raise BadState(f"{BITS_KEY}: expected one of {RESCORE_BITS}, got {bits!r:.100}")
    return bits


def begin_build(connection: Connection, bits: int) -> None:
    """Begin to build codes of so many bits a dimension, or go on; codes of other bits are dropped."""
    if new_rescore_bits(connection) == bits:
        return
    end_build(connection)
    connection.execute(OPTIONAL_TABLES["rescoring"])
    set_meta(connection, BITS_KEY, bits)
    set_meta(connection, COUNT_KEY, 0)


def end_build(connection: Connection) -> None:
    """Drop all codes that were built."""
    if new_rescore_bits(connection) is not None:
        connection.execute("DROP TABLE rescoring")
        connection.execute("DELETE FROM meta WHERE key IN (?, ?)", [BITS_KEY, COUNT_KEY])


@parsing("new_rescoring_codes")
def count_missing(connection: Connection) -> int:
    """Count the items that have no code yet."""
    return int(get_meta(connection, "items")) - int(get_meta(connection, COUNT_KEY) or 0)


def rows_without_code(connection: Connection, after: int, limit: int) -> NDArray[np.int64]:
    """Return the first rows past one that have no code yet."""
    rows = connection.execute(f"SELECT items.row {WITHOUT_CODE} LIMIT ?", [after, limit]).fetchall()
    return np.array(rows, np.int64).reshape(-1)


def ids_without_code(connection: Connection, limit: int) -> list[Id]:
    """Return the ids of the first items that have no code yet."""
    return [name for (name,) in connection.execute(f"SELECT id {WITHOUT_CODE} LIMIT ?", [-1, limit])]


def built_rows(connection: Connection, rows: list[int]) -> set[int]:
    """Return which of these rows have a code already."""
    built: set[int] = set()
    for marks, batch in batches(rows):
        built.update(row for (row,) in connection.execute(f"SELECT row FROM rescoring WHERE row IN ({marks})", batch))
    return built


def add_built(connection: Connection, rows: Sequence[int], codes: Codes) -> None:
    """Store the codes (n, width) of rows that have none yet."""
    values = zip(rows, map(bytes, codes), strict=True)
    connection.executemany("INSERT INTO rescoring VALUES (?, ?)", values)
    _count(connection, len(rows))


def drop_built(connection: Connection, rows: list[int]) -> None:
    """Drop the codes of rows that are deleted, if codes are being built."""
    if new_rescore_bits(connection) is None:
        return
    dropped = connection.executemany("DELETE FROM rescoring WHERE row = ?", ((row,) for row in rows)).rowcount
    _count(connection, -max(dropped, 0))


@parsing("new_rescoring_codes")
def _count(connection: Connection, codes: int) -> None:
    set_meta(connection, COUNT_KEY, int(get_meta(connection, COUNT_KEY) or 0) + codes)


@parsing("rescoring")
def read_built(connection: Connection, rows: NDArray[np.int64], codes: Codes) -> Mask:
    """Write the codes of ascending rows into an array (n, width), and return which of them there are."""
    sql = "SELECT row, codes FROM rescoring WHERE row BETWEEN ? AND ?"
    built = dict(connection.execute(sql, [int(rows[0]), int(rows[-1])]).fetchall())
    known = np.array([row in built for row in rows.tolist()])
    data = b"".join(built[row] for row in rows[known].tolist())
    codes[known] = np.frombuffer(data, np.uint8).reshape(int(known.sum()), codes.shape[1])
    return known
