"""The codes: sealed segments, and rows of the table `items` that are not sealed yet."""

from collections.abc import Iterator
from pathlib import Path
from sqlite3 import Connection

import numpy as np

from stillhash.collection.storage.items import RowNumbers
from stillhash.collection.storage.schema import get_meta
from stillhash.collection.storage.segments import Segment, read_segment
from stillhash.numeric.codes import width
from stillhash.numeric.kernels import read_tiles
from stillhash.numeric.validation import Codes


class CodeTable:
    """Which codes there are. The rows up to the last sealed one have their codes in segments, later ones in `items`."""

    def __init__(self, folder: Path, bits: int) -> None:
        self.folder, self.bits = folder, bits

    def segment_files(self, connection: Connection, after: int = -1) -> list[str]:
        """Return the files of segments that hold rows past this one."""
        return [file for file, _, _, last in self.segment_records(connection) if last > after]

    def segments(self, connection: Connection, after: int = -1) -> Iterator[Segment]:
        """Map the segments that hold rows past this one."""
        return (read_segment(self.folder / file, self.bits) for file in self.segment_files(connection, after))

    def segment_records(self, connection: Connection) -> list[tuple[str, int, int, int]]:
        """Return file, rows, first and last row of each segment."""
        return connection.execute("SELECT file, rows, first, last FROM segments ORDER BY number").fetchall()

    def add_segment(self, connection: Connection, number: int, file: str, numbers: RowNumbers | range) -> None:
        """Register the segment that holds these rows."""
        values = [number, file, len(numbers), int(numbers[0]), int(numbers[-1])]
        connection.execute("INSERT INTO segments VALUES (?, ?, ?, ?, ?)", values)

    def after(self, connection: Connection, last: int) -> tuple[RowNumbers, Codes]:
        """Return the rows past this one, deleted ones perhaps among them, and their codes."""
        numbers, codes = [np.empty(0, np.int64)], [np.empty((0, width(self.bits)), np.uint8)]
        for segment in self.segments(connection, last):
            rows = segment.row_numbers()
            late = np.flatnonzero(rows > last)
            numbers.append(rows[late])
            codes.append(read_tiles(segment.tiles, late))
        unsealed = self.unsealed(connection, last)
        return np.concatenate([*numbers, unsealed[0]]), np.concatenate([*codes, unsealed[1]])

    def sample(self, connection: Connection, count: int) -> Codes:
        """Return about this many codes of items, of rows at equal distances, whether sealed or not."""
        step = max(1, int(get_meta(connection, "next_row")) // count)
        deleted = connection.execute("SELECT row FROM tombstones WHERE row % ? = 0", [step]).fetchall()
        codes = []
        for file in self.segment_files(connection):
            segment = read_segment(self.folder / file, self.bits, check=False)
            rows = segment.row_numbers()
            places = np.flatnonzero(rows % step == 0)
            codes.append(read_tiles(segment.tiles, places[~np.isin(rows[places], deleted)]))
        sql = "SELECT code FROM items WHERE row > ? AND row % ? = 0 AND code NOT NULL ORDER BY row"
        unsealed = connection.execute(sql, [self.last_sealed(connection), step]).fetchall()
        packed = np.frombuffer(b"".join(code for (code,) in unsealed), np.uint8)
        codes.append(packed.reshape(len(unsealed), width(self.bits)))
        return np.concatenate(codes)

    def unsealed(self, connection: Connection, last: int = -1) -> tuple[RowNumbers, Codes]:
        """Return the rows past this one that are not sealed, and their codes."""
        sql = "SELECT row, code FROM items WHERE row > ? AND code NOT NULL ORDER BY row"
        rows = connection.execute(sql, [max(last, self.last_sealed(connection))]).fetchall()
        codes = np.frombuffer(b"".join(code for _, code in rows), np.uint8).reshape(len(rows), width(self.bits))
        return np.array([row for row, _ in rows], np.int64), codes

    def last_sealed(self, connection: Connection) -> int:
        """Return the last row that a segment holds, -1 if there is none."""
        return int(connection.execute("SELECT ifnull(max(last), -1) FROM segments").fetchone()[0])

    def count_unsealed(self, connection: Connection) -> int:
        """Count the items that have no code in a segment."""
        sql = "SELECT count(*) FROM items WHERE row > ?"
        return int(connection.execute(sql, [self.last_sealed(connection)]).fetchone()[0])

    def clear_unsealed(self, connection: Connection, first: int, last: int) -> None:
        """Drop the codes of rows that a segment holds now."""
        sql = "UPDATE items SET code = NULL WHERE row BETWEEN ? AND ? AND code NOT NULL"
        connection.execute(sql, [first, last])

    def forget_segments(self, connection: Connection) -> None:
        """Forget all segments and tombstones, since one new segment holds all live codes; readers start over."""
        connection.execute("DELETE FROM segments")
        connection.execute("DELETE FROM tombstones")
        connection.execute("DELETE FROM changed_rows")
        connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'generation'")

    def live(self, connection: Connection) -> tuple[RowNumbers, Codes]:
        """Return the rows of all items that have a code, and their codes."""
        numbers, codes = self.after(connection, -1)
        rows = np.array(connection.execute("SELECT row FROM items ORDER BY row").fetchall(), np.int64).reshape(-1)
        keep = np.isin(numbers, rows)
        return numbers[keep], codes[keep]

    def deleted_after(self, connection: Connection, seq: int) -> RowNumbers:
        """Return the rows that commits past this one deleted."""
        rows = connection.execute("SELECT row FROM tombstones WHERE seq > ?", [seq]).fetchall()
        return np.array(rows, np.int64).reshape(-1)

    def mismatches(self, connection: Connection) -> tuple[RowNumbers, RowNumbers]:
        """Return rows of items that lack a code, and rows of codes that have neither an item nor a tombstone."""
        sealed = [segment.row_numbers() for segment in self.segments(connection)]
        coded = np.concatenate([*sealed, self.unsealed(connection)[0]])
        live = connection.execute("SELECT row FROM items WHERE features IS NULL ORDER BY row").fetchall()
        known = connection.execute("SELECT row FROM items UNION SELECT row FROM tombstones").fetchall()
        missing = np.setdiff1d(np.array(live, np.int64).reshape(-1), coded)
        return missing, np.setdiff1d(coded, np.array(known, np.int64).reshape(-1))
