"""List items in order of their ids, a page of so many items and bytes at a time; and those that have pictures."""

from sqlite3 import Connection

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.item_contents import ITEM_BYTES
from stillhash.collection.storage.items import ItemTable
from stillhash.collection.storage.schema import batches
from stillhash.collection.types import Id, Item


def page_rows(
    items: ItemTable,
    connection: Connection,
    allowed: NDArray[np.uint8] | None,
    after: Id | None,
    limit: int,
    max_bytes: int | None,
) -> list[int]:
    """Return the rows of the items past an id, in order of their ids, of the rows in a bitmap or of all rows.

    They are at most `limit`, and fewer where they would take more than `max_bytes` as JSON, about; but one at least.
    """
    rows: list[int] = []
    size = 0
    for marks, names in batches(items.list_ids(connection, allowed, after, limit)):
        sizes = "length(labels) + ifnull(length(metadata), 4)"
        sql = f"SELECT row, {sizes} FROM items WHERE id IN ({marks}) ORDER BY id"
        for row, item_bytes in connection.execute(sql, names).fetchall():
            size += item_bytes + ITEM_BYTES
            if max_bytes is not None and size > max_bytes and rows:
                return rows
            rows.append(row)
    return rows


def read_page(items: ItemTable, connection: Connection, rows: list[int]) -> list[Item]:
    """Return the items of these rows, in this order."""
    contents = items.get(connection, rows)
    return [contents[row] for row in rows]


def ids_of(connection: Connection, rows: list[int]) -> dict[int, Id]:
    """Return the ids of these rows."""
    ids: dict[int, Id] = {}
    for marks, batch in batches(list(dict.fromkeys(rows))):
        ids.update(connection.execute(f"SELECT row, id FROM items WHERE row IN ({marks})", batch))
    return ids


def pictured_ids(connection: Connection, ids: list[Id]) -> set[Id]:
    """Return those of these ids that have a picture."""
    names: set[Id] = set()
    for marks, batch in batches(ids):
        sql = f"SELECT id FROM items JOIN pictures USING (row) WHERE id IN ({marks})"
        names.update(name for (name,) in connection.execute(sql, batch))
    return names
