"""Which items the sums of the learner hold, and with which labels: where these are sums over what is stored.

An item whose labels change, or which is deleted, leaves an entry in the table `removals` until the next step of
learning takes out what it gave: its codes, and the labels that it had then.
"""

from collections.abc import Sequence
from sqlite3 import Connection
from typing import NamedTuple

import numpy as np

from stillhash.collection.storage.items import RowNumbers
from stillhash.collection.storage.schema import batches, count_rows, get_meta, parsing, set_meta
from stillhash.numeric.codes import width
from stillhash.numeric.validation import Codes, Mask

NO_LABELS = "[]"
OTHERS_KEY = "other_summed_rows"  # in `meta`: labelled rows that the sums hold and that are no items: `learn` got them


class SummedRows(NamedTuple):
    """Rows that the sums hold, with the labels that they were learnt with."""

    numbers: RowNumbers
    label_texts: list[str]  # JSON
    learnt: list[int]  # how many labelled rows were learnt up to each of them

    def select(self, keep: Mask) -> "SummedRows":
        """Return the rows where `keep` is true."""
        places = np.flatnonzero(keep).tolist()
        texts, learnt = [self.label_texts[place] for place in places], [self.learnt[place] for place in places]
        return SummedRows(self.numbers[keep], texts, learnt)


class SummedCodes(NamedTuple):
    """What the sums hold of rows."""

    rescoring_codes: Codes
    codes: Codes
    label_texts: list[str]  # JSON
    learnt: list[int]


class SummedRowTable:
    """An entry for each item that was ever learnt; those that the sums do not hold now have no labels."""

    def __init__(self, rescoring_bytes: int, bits: int) -> None:
        self._rescoring_bytes, self._code_bytes = rescoring_bytes, width(bits)

    def add(self, connection: Connection, version: int, rows: SummedRows) -> None:
        """Record what a version has learnt; the first version that learnt a row stays."""
        entries = zip(rows.numbers.tolist(), rows.label_texts, rows.learnt, strict=True)
        sql = (
            "INSERT INTO summed_rows VALUES (?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET labels = excluded.labels, learnt = excluded.learnt"
        )
        connection.executemany(sql, ((*entry, version) for entry in entries))

    @parsing("summed_rows")
    def held(self, connection: Connection, rows: Sequence[int]) -> SummedRows:
        """Return those of these rows that the sums hold."""
        found: list[tuple[int, str, int]] = []
        for marks, batch in batches(list(rows)):
            sql = f"SELECT row, labels, learnt FROM summed_rows WHERE row IN ({marks}) AND labels != ?"
            found += connection.execute(sql, [*batch, NO_LABELS]).fetchall()
        return _summed(sorted(found))

    @parsing("summed_rows")
    def all_held(self, connection: Connection, after: int, limit: int) -> SummedRows:
        """Return the first rows past one that the sums hold."""
        sql = "SELECT row, labels, learnt FROM summed_rows WHERE row > ? AND labels != ? ORDER BY row LIMIT ?"
        return _summed(connection.execute(sql, [after, NO_LABELS, limit]).fetchall())

    def first_version(self, connection: Connection, rows: Sequence[int]) -> int | None:
        """Return the first version that learnt one of these rows; None if none did."""
        versions: list[int | None] = []
        for marks, batch in batches(list(rows)):
            sql = f"SELECT min(version) FROM summed_rows WHERE row IN ({marks})"
            versions += connection.execute(sql, batch).fetchone()
        return min((version for version in versions if version is not None), default=None)

    def remove(self, connection: Connection, rows: SummedRows, rescoring_codes: Codes, codes: Codes) -> None:
        """Let the next step of learning take out what these rows gave, which have these codes."""
        columns = rescoring_codes, codes, rows.label_texts, rows.learnt
        values = ((a.tobytes(), b.tobytes(), text, learnt) for a, b, text, learnt in zip(*columns, strict=True))
        sql = "INSERT INTO removals (rescoring, code, labels, learnt) VALUES (?, ?, ?, ?)"
        connection.executemany(sql, values)
        marked = ((NO_LABELS, row) for row in rows.numbers.tolist())
        connection.executemany("UPDATE summed_rows SET labels = ? WHERE row = ?", marked)

    def drop(self, connection: Connection, rows: Sequence[int]) -> None:
        """Drop the entries of rows that are deleted, or forgotten."""
        connection.executemany("DELETE FROM summed_rows WHERE row = ?", ((row,) for row in rows))

    def count_removals(self, connection: Connection) -> int:
        return count_rows(connection, "removals")

    @parsing("removals")
    def removals(self, connection: Connection) -> SummedCodes:
        """Return what the next step of learning takes out."""
        rows = connection.execute("SELECT rescoring, code, labels, learnt FROM removals ORDER BY number").fetchall()
        rescoring_codes, codes = (
            np.frombuffer(b"".join(row[n] for row in rows), np.uint8).reshape(len(rows), size)
            for n, size in enumerate((self._rescoring_bytes, self._code_bytes))
        )
        return SummedCodes(rescoring_codes, codes, [row[2] for row in rows], [int(row[3]) for row in rows])

    def count_others(self, connection: Connection) -> int:
        """Count the rows that the sums hold besides these, which cannot be taken out."""
        return int(get_meta(connection, OTHERS_KEY) or 0)

    def add_others(self, connection: Connection, rows: int) -> None:
        set_meta(connection, OTHERS_KEY, self.count_others(connection) + rows)

    def clear_removals(self, connection: Connection) -> None:
        connection.execute("DELETE FROM removals")


def _summed(rows: list[tuple[int, str, int]]) -> SummedRows:
    return SummedRows(np.array([row for row, _, _ in rows], np.int64), [r[1] for r in rows], [r[2] for r in rows])
