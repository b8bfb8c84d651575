"""Read a store of format 1, which version 0.1 wrote; nothing of it is changed. docs/store-format.md says what differs.

SQL and layouts of format 1 are here and nowhere else, except for its tables (schema_check.py). All is read in one
transaction, so it is of one commit.
"""

import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from stillhash.collection.storage.connections import connect
from stillhash.collection.storage.integrity import find_damage
from stillhash.collection.storage.items import RowNumbers
from stillhash.collection.storage.schema import count_rows, get_meta, is_fitted, meta_with_prefix, parse_json
from stillhash.collection.storage.schema_check import FORMAT_1
from stillhash.collection.types import Id
from stillhash.errors import BadState
from stillhash.files.sealed_files import read_sealed, stored_file
from stillhash.numeric.codes import width
from stillhash.numeric.validation import Codes

FORMAT_1_TILE = 1024  # codes per tile, whatever a tile of the scan holds now
FORMAT_1_HEADER = struct.Struct("<8sIIQq")  # magic, format, bits, rows, first row or -1
FORMAT_1_TILES_OFFSET = 4096


class Format1Item(NamedTuple):
    """What is stored of an item, as in the tables: labels and metadata are JSON."""

    row: int
    id: Id
    labels: str
    metadata: str | None
    features: bytes | None  # float32, while there are no hash functions
    picture: bytes | None


class Format1Version(NamedTuple):
    """A version of the model, as in the table; notes are JSON."""

    version: int
    created: str
    kind: str
    rows: int
    tag: str | None
    side: str
    model: bytes | None
    learner: str | None  # the name of a file
    notes: str


class Format1Vote(NamedTuple):
    """A vote, as in the table; item and labels are JSON."""

    version: int
    query: bytes  # float32
    item: str
    source: str
    vote: float
    code: bytes
    labels: str


def stored_format(path: Path) -> int | None:
    """Return the format of the store in this folder, None if it cannot be read."""
    try:
        with closing(connect(path, "ro")) as connection:
            value = get_meta(connection, "format")
            return value if isinstance(value, int) else None
    except (BadState, ValueError):
        return None


class Format1Store:
    """A store of format 1 at one commit. It is verified when it is opened: BadState if anything is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if damage := find_damage(path):
            raise BadState(f"{path.name}: damaged: {damage[0]}")
        self._connection = connect(path, "ro")
        try:
            self._connection.execute("BEGIN")
            if (version := self.meta("format")) != FORMAT_1:
                raise BadState(f"{path.name}: expected store format {FORMAT_1}, got {version}")
            self.settings: dict[str, Any] = parse_json(self.meta("settings"), dict, "settings")
            self.fitted = is_fitted(self._connection)
            self.numbers, self.codes = self._live_codes()
        except (sqlite3.DatabaseError, ValueError, TypeError, KeyError, struct.error) as error:
            self.close()
            raise error if isinstance(error, BadState) else BadState(f"{path.name}: cannot be read: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the transaction."""
        self._connection.close()

    def meta(self, key: str) -> Any:
        """Return a value of the table `meta`, None if there is none."""
        return get_meta(self._connection, key)

    def alignments(self) -> dict[str, bytes]:
        """Return the alignments by the fingerprint of their encoder; format 1 calls them bridges."""
        return meta_with_prefix(self._connection, "bridge ")

    def items(self, count: int) -> Iterator[list[Format1Item]]:
        """Yield all items by their rows, so many at a time."""
        columns, last = "row, id, labels, metadata, features, data", -1
        sql = f"SELECT {columns} FROM items LEFT JOIN pictures USING (row) WHERE row > ? ORDER BY row LIMIT ?"
        while batch := self._select(sql, [last, count]):
            yield [Format1Item(*row) for row in batch]
            last = batch[-1][0]

    def pending(self) -> list[tuple[int, bytes, str]]:
        """Return row, features and labels of the rows that are not learnt yet, in order of arrival."""
        return self._select("SELECT row, features, labels FROM lessons ORDER BY number")

    def votes(self) -> list[Format1Vote]:
        """Return the votes in order of arrival: the last of each source on a query and an item."""
        columns = "version, asked, item, source, vote, code, labels"
        return [Format1Vote(*row) for row in self._select(f"SELECT {columns} FROM feedback ORDER BY number")]

    def versions(self) -> list[Format1Version]:
        """Return the versions that are kept."""
        columns = "version, made, kind, rows, tag, side, model, learner, notes"
        return [Format1Version(*row) for row in self._select(f"SELECT {columns} FROM versions ORDER BY version")]

    def learner(self, file: str) -> bytes:
        """Return the saved state of a learner."""
        return read_sealed(stored_file(self.path / "learner", file))

    def code_of(self, rows: list[int]) -> Codes:
        """Return the codes of items."""
        if not np.isin(rows, self.numbers).all():
            raise BadState(f"{self.path.name}: damaged: some pending rows have no item")
        return self.codes[np.searchsorted(self.numbers, rows)]

    def _live_codes(self) -> tuple[RowNumbers, Codes]:
        """Return the rows of items that have codes, ascending, with their codes; check that none is missing or left."""
        bits = self.settings["bits"]
        numbers, codes = [np.empty(0, np.int64)], [np.empty((0, width(bits)), np.uint8)]
        last = -1
        for file, *expected in self._select("SELECT file, rows, first, last FROM segments ORDER BY number"):
            segment = read_format_1_segment(stored_file(self.path / "segments", file), bits)
            numbers.append(segment[0])
            codes.append(segment[1])
            last = int(segment[0][-1])
            if expected != [len(segment[0]), int(segment[0][0]), last]:
                raise BadState(f"segments/{file}: expected rows, first and last row {expected}, got others")
        sql = "SELECT row, code FROM items WHERE row > ? AND code NOT NULL ORDER BY row"
        unsealed = self._select(sql, [last])
        numbers.append(np.array([row for row, _ in unsealed], np.int64))
        codes.append(np.frombuffer(b"".join(code for _, code in unsealed), np.uint8).reshape(-1, width(bits)))
        coded = np.concatenate(numbers)
        live = self._rows("SELECT row FROM items WHERE features IS NULL")
        known = self._rows("SELECT row FROM items UNION SELECT row FROM dead")
        missing, stray = len(np.setdiff1d(live, coded)), len(np.setdiff1d(coded, known))
        expected_items, items = self.meta("items"), count_rows(self._connection, "items")
        if missing or stray or expected_items != items:
            problem = f"{missing} items have no code, {stray} codes have no item, {items} of {expected_items} items"
            raise BadState(f"{self.path.name}: damaged: {problem}")
        keep = np.isin(coded, live)
        return coded[keep], np.concatenate(codes)[keep]

    def _rows(self, sql: str) -> RowNumbers:
        return np.array(self._select(sql), np.int64).reshape(-1)

    def _select(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise BadState(f"{self.path.name}: cannot be read: {error}") from error


def read_format_1_segment(path: Path, bits: int) -> tuple[RowNumbers, Codes]:
    """Return the row numbers and codes of a segment of format 1, once its checksums are verified."""
    content = np.frombuffer(read_sealed(path), np.uint8)
    magic, format_, stored_bits, rows, first = FORMAT_1_HEADER.unpack(content[: FORMAT_1_HEADER.size].tobytes())
    planes = -(-rows // FORMAT_1_TILE) * width(bits) * FORMAT_1_TILE
    tiles, listed = np.split(content[FORMAT_1_TILES_OFFSET:], [planes])
    sizes = len(tiles), len(listed)
    if (
        (magic, format_, stored_bits) != (b"STILLSEG", FORMAT_1, bits)
        or not rows
        or sizes != (planes, 0 if first >= 0 else 8 * rows)
    ):
        raise BadState(f"segments/{path.name}: expected a segment of format {FORMAT_1} with codes of {bits} bits")
    numbers = np.arange(first, first + rows) if first >= 0 else listed.view("<i8").astype(np.int64)
    codes = tiles.reshape(-1, width(bits), FORMAT_1_TILE).transpose(0, 2, 1).reshape(-1, width(bits))[:rows]
    return numbers, codes
