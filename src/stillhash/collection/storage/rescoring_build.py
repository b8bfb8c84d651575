"""Rescoring codes that are being built for items which have none: in the table `rescoring`, a row for each item.

Until every item has one the collection answers without them, and keeps its format. They may come in any order, and
what is there already stays after an interruption. `meta` has how many bits they have, and how many of them there are.
"""

from collections.abc import Sequence
from sqlite3 import Connection

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.schema import OPTIONAL_TABLES, batches, get_meta, parsing, set_meta
from stillhash.collection.types import Id
from stillhash.errors import BadState
from stillhash.numeric.rescoring import RESCORE_BITS
from stillhash.numeric.validation import Codes, Mask

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
