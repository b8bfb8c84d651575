"""Files of columns: labels and metadata of the rows of a segment, for filters. They only save time: SQLite has it all.

    bytes 0-55    magic, format, bytes of the directory, commit, rows, first and last row, the segment's identity
    bytes 56-     the directory as JSON: for each block of rows its fields, and where their arrays are
    then          the arrays of each field, which begin at a multiple of 4,096 bytes

It is a sealed file (files.py). The checksums of the directory are verified when the file is opened, those of a
field before its first use. A file that is absent, damaged, or of another segment is not used.
"""

import json
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.columns import (
    COLUMN_LAYOUTS,
    NO_LABELS,
    Column,
    TableBuilder,
    column_arrays,
    layout_of,
)
from stillhash.collection.storage.schema import parse_json
from stillhash.errors import BadState, StillhashError
from stillhash.files import (
    BLOCK_SIZE,
    content_size,
    damaged_blocks,
    display_name,
    map_file,
    open_regular,
    unpack_checksums,
    write_sealed,
)

COLUMNS_MAGIC, COLUMNS_FORMAT = b"STILLCOL", 1
COLUMNS_HEADER = struct.Struct("<8sIIqqqq8s")  # magic, format, directory's bytes, commit, rows, first, last, identity
COLUMN_ROWS = 1 << 20  # in one block, with dictionaries of its own
ROWS_PER_READ = 1 << 14  # from SQLite
ARRAY_ALIGNMENT = 64  # bytes
COLUMN_TYPES = frozenset(("|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8", "<f8"))

LabelsAndMetadata = tuple[list[str], list[str | None]]  # JSON texts of some rows


def columns_file(segment_file: str) -> str:
    """Return the name of the columns of a segment."""
    return f"{Path(segment_file).stem}.columns"


def segment_contents(connection: Connection, numbers: NDArray[np.int64]) -> Iterator[LabelsAndMetadata]:
    """Yield labels and metadata of these ascending rows, some at a time; rows without an item have none."""
    for start in range(0, len(numbers), ROWS_PER_READ):
        part = numbers[start : start + ROWS_PER_READ].tolist()
        sql = "SELECT row, labels, metadata FROM items WHERE row BETWEEN ? AND ? ORDER BY row"
        stored = connection.execute(sql, [part[0], part[-1]]).fetchall()
        if [row for row, _, _ in stored] != part:
            known = {row: (row, labels, metadata) for row, labels, metadata in stored}
            stored = [known.get(row, (row, NO_LABELS, None)) for row in part]
        yield [labels for _, labels, _ in stored], [metadata for _, _, metadata in stored]


def build_blocks(contents: Iterable[LabelsAndMetadata], named: list[str] | None) -> Iterator[TableBuilder]:
    """Yield builders of the columns of all rows, each of about COLUMN_ROWS."""
    builder = TableBuilder(named)
    for labels, metadata in contents:
        builder.append(labels, metadata)
        if builder.rows >= COLUMN_ROWS:
            yield builder
            builder = TableBuilder(named)
    if builder.rows:
        yield builder


def write_columns(
    segment: Path,
    contents: Iterable[LabelsAndMetadata],
    record: tuple[int, int, int],
    seq: int,
    named: list[str] | None,
    path: Path | None = None,
) -> None:
    """Write the columns of a segment that has `record` (rows, first, last), as of a commit; failures are ignored.

    path: of the file; otherwise it is beside the segment.
    """
    path = path or segment.with_suffix(".columns")
    with suppress(OSError, StillhashError, RecursionError):  # the last from objects in objects
        path.unlink(missing_ok=True)
        _write(path, build_blocks(contents, named), record, seq, segment_identity(segment))


def _write(path: Path, builders: Iterable[TableBuilder], record: tuple[int, int, int], seq: int, own: bytes) -> None:
    blocks: list[dict[str, Any]] = []
    parts: list[bytes] = []
    place = 0  # after the directory
    for builder in builders:
        fields: dict[str, Any] = {}
        for name in builder.names():
            column = builder.column(name)
            data = (
                b""
                if column is None
                else b"".join(_aligned(array.tobytes(), ARRAY_ALIGNMENT) for array in column_arrays(column))
            )
            shapes = [] if column is None else [[array.dtype.str, len(array)] for array in column_arrays(column)]
            fields[name] = [None if column is None else layout_of(column), place, shapes]
            parts.append(_aligned(data, BLOCK_SIZE))
            place += len(parts[-1])
        blocks.append({"rows": builder.rows, "complete": builder.complete, "fields": fields})
    directory = json.dumps(blocks).encode()
    head = COLUMNS_HEADER.pack(COLUMNS_MAGIC, COLUMNS_FORMAT, len(directory), seq, *record, own)
    write_sealed(path, [_aligned(head + directory, BLOCK_SIZE), *(part for part in parts if part)])


def _aligned(data: bytes, size: int) -> bytes:
    return data.ljust(-(-len(data) // size) * size, b"\0")


def segment_identity(segment: Path) -> bytes:
    """Return the last bytes of a segment: checksums of its checksums."""
    with open_regular(segment) as file:
        file.seek(-8, 2)
        return file.read()


class MappedContent:
    """The content of a file of columns, mapped, and its checksums."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, content_size(path)
        data = map_file(path).view(np.ndarray)
        self._data, self._checksums = data[: self.size], unpack_checksums(data[self.size :].tobytes(), path.name)

    def read(self, start: int, size: int) -> NDArray[np.uint8]:
        """Return some bytes; raise BadState if a block of them does not match its checksum."""
        first, end = start // BLOCK_SIZE, -(-(start + size) // BLOCK_SIZE)
        blocks = self._data[first * BLOCK_SIZE : end * BLOCK_SIZE]
        if damaged_blocks(blocks, self._checksums[first:end]):
            raise BadState(f"{display_name(self.path)}: damaged")
        return self._data[start : start + size]


class ColumnFile:
    """The columns of a segment. The blocks share its content, and do not know it, so that both are freed at once."""

    def __init__(self, segment: Path, record: tuple[int, int, int], path: Path | None = None) -> None:
        """Open the file, at a path or beside its segment; raise BadState or OSError if it cannot be used."""
        self.path = path or segment.with_suffix(".columns")
        content = MappedContent(self.path)
        if content.size < COLUMNS_HEADER.size:
            raise BadState(f"{display_name(self.path)}: shorter than its header")
        head = COLUMNS_HEADER.unpack(content.read(0, COLUMNS_HEADER.size).tobytes())
        magic, format_, directory_bytes, self.seq, *rows, identity = head
        expected = COLUMNS_MAGIC, COLUMNS_FORMAT, record, segment_identity(segment)
        if (magic, format_, tuple(rows), identity) != expected:
            raise BadState(f"{display_name(self.path)}: of another segment or format")
        end = COLUMNS_HEADER.size + directory_bytes
        blocks = parse_json(content.read(0, end)[COLUMNS_HEADER.size :].tobytes(), list, display_name(self.path))
        arrays = -(-end // BLOCK_SIZE) * BLOCK_SIZE
        try:
            self.blocks = [FileBlock(content, arrays, **block) for block in blocks]
            if sum(block.rows for block in self.blocks) != record[0]:
                raise ValueError("other rows than the segment")
        except (TypeError, ValueError, AttributeError) as error:
            raise BadState(f"{display_name(self.path)}: expected blocks of columns, got {error}") from error


def columns_seq(segment: Path, record: tuple[int, int, int]) -> int | None:
    """Return the commit that the columns of a segment are of; None if there is no file that can be used."""
    try:
        return int(ColumnFile(segment, record).seq)
    except (BadState, OSError, ValueError):
        return None


class FileBlock:
    """The columns of consecutive rows of a segment, read when they are first used."""

    def __init__(self, content: MappedContent, arrays: int, rows: int, complete: bool, fields: dict[str, Any]) -> None:
        if not isinstance(rows, int) or not isinstance(fields, dict):
            raise TypeError("no rows or fields")
        self.rows, self.complete = rows, complete
        self._content, self._arrays, self._fields = content, arrays, fields
        self._columns: dict[str, Column | None] = {}

    def names(self) -> Iterable[str]:
        """Return the fields of which there are columns, or which only SQL can compare."""
        return self._fields.keys()

    def column(self, name: str) -> Column | None:
        """Return the column of a field, None if only SQL can compare it; raise BadState if it is damaged."""
        if name not in self._columns:
            self._columns[name] = self._read(*self._fields[name])
        return self._columns[name]

    def _read(self, layout: str | None, start: int, shapes: list[tuple[str, int]]) -> Column | None:
        if layout is None:
            return None
        try:
            if not all(kind in COLUMN_TYPES for kind, _ in shapes):
                raise ValueError("arrays of another type")
            sizes = [np.dtype(kind).itemsize * count for kind, count in shapes]
            ends = np.cumsum([0, *(-(-size // ARRAY_ALIGNMENT) * ARRAY_ALIGNMENT for size in sizes)]).tolist()
            data = self._content.read(self._arrays + start, ends[-1])
            arrays = [data[s : s + size].view(kind) for s, size, (kind, _) in zip(ends, sizes, shapes, strict=False)]
            if len(arrays[0]) != self.rows:
                raise ValueError("other rows than the block")
            column: Column = COLUMN_LAYOUTS[layout](*arrays)
        except (TypeError, ValueError, LookupError, OverflowError) as error:
            if isinstance(error, BadState):
                raise
            raise BadState(f"{display_name(self._content.path)}: expected a column, got {error}") from error
        return column
