"""Features of items that are kept, as float16: in the table `features`, and of sealed rows in files.

    bytes 0-51    magic, format, dim, rows, and which segment it belongs to
    bytes 4096-   features (rows, dim), float16, in the order of the segment's rows; NaN where they are lost

It is a sealed file (sealed_files.py) beside its segment. Its checksums are verified once, before its first use.
"""

import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from sqlite3 import Connection

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.codes import CodeTable, SegmentRecord
from stillhash.collection.storage.items import RowNumbers
from stillhash.collection.storage.schema import parsing
from stillhash.errors import BadState, InvalidInput
from stillhash.files.checksums import BLOCK_SIZE
from stillhash.files.sealed_files import (
    check_kind,
    check_sealed,
    content_size,
    display_name,
    map_file,
    repair_sealed,
    write_sealed,
)
from stillhash.numeric.validation import Floats, Mask

FEATURES_MAGIC, FEATURES_FORMAT = b"STILLFEA", 1
FEATURES_HEADER = struct.Struct("<8sIIQ16sQ")  # magic, format, dim, rows, collection and number of the segment
FEATURES_OFFSET = BLOCK_SIZE
ROWS_PER_VALUE = 64  # in one value of the table
ROWS_PER_PART = 2048  # so that a part is whole blocks for any dim
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


def features_file(segment_file: str) -> str:
    """Return the name of the features of a segment."""
    return f"{Path(segment_file).stem}.features"


class FeatureTable:
    """The features of all rows that have a code, where the collection keeps them."""

    def __init__(self, dim: int, codes: CodeTable) -> None:
        self.dim, self.codes = dim, codes
        self._checked: set[str] = set()  # files; no name is used twice

    def add(self, connection: Connection, numbers: RowNumbers, features: Floats) -> None:
        """Keep the features of ascending rows that are not sealed, consecutive ones together."""
        gaps = np.flatnonzero(np.diff(numbers) != 1) + 1
        starts = np.concatenate([np.arange(0, len(numbers), ROWS_PER_VALUE), gaps, [len(numbers)]])
        ends = np.unique(starts).tolist()
        data = features.astype("<f2")
        groups = ((int(numbers[start]), data[start:end].tobytes()) for start, end in pairwise(ends))
        connection.executemany("INSERT INTO features VALUES (?, ?)", groups)

    def read(self, connection: Connection, numbers: RowNumbers) -> tuple[Floats, Mask]:
        """Return the features (n, dim) of these rows, and which of them are known."""
        features = np.full((len(numbers), self.dim), np.nan, np.float32)
        last = self.codes.last_sealed(connection)
        with parsing("features"):
            first, group = -1, np.empty((0, self.dim), np.float16)  # read last
            for place in np.flatnonzero(numbers > last).tolist():
                row = int(numbers[place])
                if not first <= row < first + len(group):
                    sql = "SELECT row, features FROM features WHERE row <= ? ORDER BY row DESC LIMIT 1"
                    first, data = connection.execute(sql, [row]).fetchone() or (-1, b"")
                    group = np.frombuffer(data, "<f2").reshape(-1, self.dim)
                if row < first + len(group):
                    features[place] = group[row - first]
        for record in self.codes.segment_records(connection) if (numbers <= last).any() else ():
            inside = np.flatnonzero((record.first <= numbers) & (numbers <= record.last))
            stored = self._map(record) if len(inside) else None
            if stored is not None:
                rows = self._row_numbers(record)
                at = np.minimum(np.searchsorted(rows, numbers[inside]), len(rows) - 1)
                held = rows[at] == numbers[inside]
                features[inside[held]] = stored[at[held]]
        return features, ~np.isnan(features[:, 0])

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
        write_sealed(segment.with_suffix(".features"), self._parts(connection, number, numbers))

    def _parts(self, connection: Connection, number: int, numbers: RowNumbers) -> Iterator[bytes]:
        yield self._header(number, len(numbers))
        for start in range(0, len(numbers), ROWS_PER_PART):
            features, _ = self.read(connection, numbers[start : start + ROWS_PER_PART])
            yield features.astype("<f2").tobytes()

    def clear(self, connection: Connection) -> None:
        """Drop the features in the table: files hold those of all rows now that are not deleted."""
        connection.execute("DELETE FROM features")

    def files(self, connection: Connection) -> list[str]:
        """Return the files that there are, of the segments of this commit."""
        files = map(features_file, self.codes.segment_files(connection))
        return [file for file in files if check_kind(self.codes.folder / file)]

    def mapped(self, connection: Connection) -> list[NDArray[np.float16] | None]:
        """Map the features of each segment, to be read after a later commit has replaced the files; None if lost."""
        return [self._map(record) for record in self.codes.segment_records(connection)]

    def problems(self, connection: Connection, on_bytes: Callable[[int], object] | None = None) -> list[str]:
        """Return a sentence for each file that is missing or damaged; `on_bytes` is called with the bytes read."""
        problems = []
        for record in self.codes.segment_records(connection):
            try:
                self._checked.discard(file := features_file(record.file))
                if self._map(record, on_bytes) is None:
                    problems.append(f"segments/{file}: missing; the features of its rows are lost")
            except BadState as error:
                problems.append(str(error))
        return problems

    def repair(self, connection: Connection, actions: list[str]) -> None:
        """Flip back single flipped bits; rows that are damaged beyond that lose their features."""
        for record in self.codes.segment_records(connection):
            path = self.codes.folder / features_file(record.file)
            lost = self._lost_rows(record, path)
            if lost is None:
                continue
            features = np.full((record.rows, self.dim), np.nan, np.float16)
            if not lost.all():
                features[~lost] = self._content(path, record.rows)[~lost]
            write_sealed(path, [self._header(record.number, record.rows), features.astype("<f2").tobytes()])
            without = f"; {lost.sum()} rows have lost their features" if lost.any() else ""
            actions.append(f"segments/{path.name}: repaired{without}")

    def _lost_rows(self, record: SegmentRecord, path: Path) -> Mask | None:
        """Repair what can be repaired in place, and return which rows are lost; None if nothing was damaged."""
        lost = np.ones(record.rows, bool)
        try:
            if self._map(record) is not None:
                return None
            return lost
        except BadState:
            try:
                blocks = repair_sealed(path)
            except (OSError, BadState):
                return lost
        if 0 in blocks or not self._belongs(path, record):
            return lost
        lost[:] = False
        for block in blocks:
            start, end = ((number * BLOCK_SIZE - FEATURES_OFFSET) // (2 * self.dim) for number in (block, block + 1))
            lost[start : end + 1] = True
        return lost

    def _map(
        self, record: SegmentRecord, on_bytes: Callable[[int], object] | None = None
    ) -> NDArray[np.float16] | None:
        """Map the features of a segment; None if there is no file, BadState if it is damaged or of another segment."""
        path = self.codes.folder / features_file(record.file)
        if not check_kind(path):
            return None
        if path.name not in self._checked:
            check_sealed(path, on_bytes)
        if not self._belongs(path, record):
            raise BadState(f"{display_name(path)}: expected the features of segment {record.number}, got others")
        self._checked.add(path.name)
        return self._content(path, record.rows)

    def _header(self, number: int, rows: int) -> bytes:
        shape = self.dim, rows, self.codes.collection, number
        return FEATURES_HEADER.pack(FEATURES_MAGIC, FEATURES_FORMAT, *shape).ljust(FEATURES_OFFSET, b"\0")

    def _belongs(self, path: Path, record: SegmentRecord) -> bool:
        """Return whether a file has the header and the size of the features of this segment."""
        size, header = FEATURES_OFFSET + 2 * self.dim * record.rows, self._header(record.number, record.rows)
        return content_size(path) == size and map_file(path)[:FEATURES_OFFSET].tobytes() == header

    def _content(self, path: Path, rows: int) -> NDArray[np.float16]:
        data = map_file(path)[FEATURES_OFFSET : FEATURES_OFFSET + 2 * self.dim * rows]
        return data.view("<f2").reshape(rows, self.dim)
