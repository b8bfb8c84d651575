"""Write the files of new segments: of codes, and beside them their columns, features and rescoring codes."""

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection

from stillhash.collection.storage.codes import CodeTable, SegmentRecord
from stillhash.collection.storage.column_files import columns_file, segment_contents, write_columns
from stillhash.collection.storage.items import RowNumbers
from stillhash.collection.storage.row_arrays import RowArrayTable
from stillhash.collection.storage.schema import get_meta
from stillhash.collection.storage.segments import CodedRows, write_segment


class SegmentWriter:
    """Write segments under numbers that none ever had: past all commits, and `register` counts them as commits."""

    def __init__(self, codes: CodeTable, row_arrays: Sequence[RowArrayTable], filter_fields: list[str] | None) -> None:
        self._codes, self._row_arrays, self._filter_fields = codes, row_arrays, filter_fields
        self._lock, self._last_number = threading.Lock(), 0

    def write(self, connection: Connection, parts: Iterable[CodedRows]) -> list[SegmentRecord]:
        """Write a segment of each part, as of the commit of this transaction; all are on disk when this returns.

        If it fails, none of them is left.
        """
        records: list[SegmentRecord] = []
        numbers: list[int] = []
        try:
            for rows in parts:
                if len(rows.numbers):
                    numbers.append(self._new_number(connection))
                    records.append(self._write(connection, rows, numbers[-1]))
        except BaseException:
            for number in numbers:
                self._remove(f"{number:08d}.tiles")
            raise
        return records

    def write_columns(self, connection: Connection, file: str, numbers: RowNumbers) -> None:
        """Write the columns of a segment, for filters, as of now; without them searches take longer."""
        record = len(numbers), int(numbers[0]), int(numbers[-1])
        contents, seq = segment_contents(connection, numbers), get_meta(connection, "seq")
        write_columns(self._codes.folder / file, contents, record, seq, self._filter_fields)

    @staticmethod
    def register(connection: Connection, records: list[SegmentRecord]) -> None:
        """Let the number of this commit be no less than those of its segments, so that they are not used again."""
        if records:
            last = max(record.number for record in records)
            connection.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'seq'", [last - 1])

    def _new_number(self, connection: Connection) -> int:
        with self._lock:
            self._last_number = max(self._last_number, int(get_meta(connection, "seq"))) + 1
            return self._last_number

    def _write(self, connection: Connection, rows: CodedRows, number: int) -> SegmentRecord:
        file, numbers = f"{number:08d}.tiles", rows.numbers
        path = self._codes.folder / file
        content = write_segment(path, rows, self._codes.bits, self._codes.collection, number)
        self.write_columns(connection, file, numbers)
        for table in self._row_arrays:
            table.write(connection, path, number, numbers)
        return SegmentRecord(number, file, len(numbers), int(numbers[0]), int(numbers[-1]), content)

    def _remove(self, file: str) -> None:
        for name in (file, columns_file(file), *(table.file(file) for table in self._row_arrays)):
            with suppress(OSError):  # the next clean-up removes it
                Path(self._codes.folder / name).unlink(missing_ok=True)
