"""Which rows of items each version has learnt, where features are kept: what `forget` has to take out again.

A learner has learnt the rows of its version's lineage: of all versions that it goes on from. After a rollback these are
no longer all versions before it.
"""

from collections.abc import Iterable, Sequence
from sqlite3 import Connection
from typing import NamedTuple

import numpy as np

from stillhash.collection.storage.items import NOT_JUDGED, RowNumbers
from stillhash.collection.storage.schema import batches, get_meta, parse_json
from stillhash.numeric.validation import Mask

Lineage = list[list[int]]  # ranges of versions, each with its first and last one, ascending
NO_ITEM = -1  # as a row: the entry counts the labelled rows of a version


class LearntRow(NamedTuple):
    """A row of an item that was learnt with these labels."""

    row: int
    labels: str  # JSON
    age: int  # labelled rows that were learnt after it


class LearntRowTable:
    """An entry for each row of an item that was learnt, and one for each version with its number of labelled rows."""

    def add(
        self, connection: Connection, version: int, numbers: RowNumbers, label_texts: Sequence[str], labelled: Mask
    ) -> None:
        """Record what a version has learnt; rows that are no items have NOT_JUDGED as their number."""
        positions = np.cumsum(labelled) - 1
        known = labelled & (numbers != NOT_JUDGED)
        entries = [(version, int(labelled.sum()), NO_ITEM, "[]")]
        places = np.flatnonzero(known).tolist()
        entries += [(version, int(positions[at]), int(numbers[at]), label_texts[at]) for at in places]
        sql = "INSERT INTO learnt_rows (version, position, row, labels) VALUES (?, ?, ?, ?)"
        connection.executemany(sql, entries)

    def of_rows(self, connection: Connection, rows: Iterable[int], lineage: Lineage) -> list[LearntRow]:
        """Return what a learner of this lineage has learnt of these rows, in order."""
        sql = "SELECT version, position FROM learnt_rows WHERE row = ? ORDER BY version DESC"
        after, learnt_after = 0, {}
        for version, total in connection.execute(sql, [NO_ITEM]).fetchall():
            if contains(lineage, version):
                learnt_after[version] = after + total  # its own rows too
                after += total
        entries: list[tuple[int, LearntRow]] = []
        for marks, batch in batches(list(rows)):
            sql = f"SELECT number, version, position, row, labels FROM learnt_rows WHERE row IN ({marks})"
            for number, version, position, row, labels in connection.execute(sql, batch):
                if version in learnt_after:
                    entries.append((number, LearntRow(row, labels, learnt_after[version] - position - 1)))
        return [entry for _, entry in sorted(entries)]

    def delete(self, connection: Connection, rows: Sequence[int]) -> int | None:
        """Drop all entries of these rows; return the first version of one, None if there are none."""
        versions = []
        for marks, batch in batches(list(rows)):
            sql = f"FROM learnt_rows WHERE row IN ({marks})"
            versions += connection.execute(f"SELECT min(version) {sql}", batch).fetchone()
            connection.execute(f"DELETE {sql}", batch)
        return min((version for version in versions if version is not None), default=None)


def contains(lineage: Lineage, version: int) -> bool:
    """Return whether a lineage has this version."""
    return any(first <= version <= last for first, last in lineage)


def extended(lineage: Lineage, version: int) -> Lineage:
    """Return a lineage with a version that comes after all of it."""
    if lineage and lineage[-1][1] == version - 1:
        return [*lineage[:-1], [lineage[-1][0], version]]
    return [*lineage, [version, version]]


def lineage_of(connection: Connection, version: int | None = None) -> Lineage:
    """Return the lineage of a version, or of the current one; empty if it is not recorded."""
    number = get_meta(connection, "version") if version is None else version
    row = connection.execute("SELECT notes FROM versions WHERE version = ?", [number]).fetchone()
    lineage = [] if row is None else parse_json(row[0], dict, "notes").get("lineage", [])
    return [[int(first), int(last)] for first, last in lineage]
