"""Read ids, labels and metadata of rows from a table `items`: of a store, or of the items beside a segment."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from sqlite3 import Connection, OperationalError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.schema import batches
from stillhash.collection.types import Id
from stillhash.errors import BadState, TooLarge

ITEM_BYTES = 100  # of an item or a hit as JSON, besides its labels and metadata
MAX_SQL_SECONDS = 10  # of a filter that columns cannot answer
STEPS_PER_CHECK = 10_000  # of SQLite, between looks at the clock

ItemContent = tuple[Id, list[Any], dict[str, Any] | None]  # id, labels and metadata
ItemRecord = tuple[int, Id, str, str]  # row and id, and as JSON texts labels and metadata


def read_records(connection: Connection, rows: list[int]) -> Iterator[Iterable[ItemRecord]]:
    """Yield the records of these rows, those that there are, in batches that are read as they are iterated over."""
    for marks, batch in batches(rows):
        sql = f"SELECT row, id, labels, COALESCE(metadata, 'null') FROM items WHERE row IN ({marks})"
        yield connection.execute(sql, batch)


def read_contents(
    records_of: Callable[[list[int]], Iterable[Iterable[ItemRecord]]],
    rows: Iterable[int],
    max_bytes: int | None = None,
) -> dict[int, ItemContent]:
    """Return id, labels and metadata of these rows, whose records a function yields.

    TooLarge if they take more bytes as JSON, about, as often as their rows are listed.
    """
    contents: dict[int, ItemContent] = {}
    times, left = Counter(rows), max_bytes or 0
    for batch in records_of(list(times)):
        records = []
        for record in batch:
            left -= times[record[0]] * (len(record[2]) + len(record[3]) + ITEM_BYTES)
            if max_bytes is not None and left < 0:
                raise TooLarge(f"answer: expected at most {max_bytes} bytes, got more. Request fewer items.")
            records.append(record)
        parts = json.loads(f"[{','.join(text for record in records for text in record[2:])}]")  # once for all items
        types = set(map(type, parts[::2])), set(map(type, parts[1::2])), {type(record[1]) for record in records}
        if not (types[0] <= {list} and types[1] <= {dict, type(None)} and types[2] <= {int, str}):
            raise BadState("items: expected ids, lists of labels and objects of metadata, got others")
        pairs = zip(parts[::2], parts[1::2], strict=True)
        contents.update((record[0], (record[1], *pair)) for record, pair in zip(records, pairs, strict=True))
    return contents


def rows_of_ids(connection: Connection, ids: list[Id]) -> dict[Id, int]:
    """Return the rows of those ids that exist."""
    rows: dict[Id, int] = {}
    for marks, batch in batches(ids):
        rows.update(connection.execute(f"SELECT id, row FROM items WHERE id IN ({marks})", batch))
    return rows


def matching_rows(connection: Connection, condition: tuple[str, list[Any]]) -> NDArray[np.int64]:
    """Return the rows that meet a condition in SQL (filters.py); TooLarge if that takes too long."""
    sql, values = condition
    deadline = time.monotonic() + MAX_SQL_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_PER_CHECK)
    try:
        rows = connection.execute(f"SELECT row FROM items WHERE {sql}", values).fetchall()
    except OperationalError as error:
        if time.monotonic() <= deadline:
            raise
        most = f"expected a condition that SQL answers within {MAX_SQL_SECONDS} seconds"
        raise TooLarge(f"where: {most}. Name its fields in filter_fields, or use fewer conditions.") from error
    finally:
        connection.set_progress_handler(None, 0)
    return np.array(rows, np.int64).reshape(-1)
