"""Read the ids and labels of many items, without their metadata."""

import json
from sqlite3 import Connection
from typing import Any

from stillhash.collection.storage.schema import batches, parsing
from stillhash.collection.types import Id


@parsing("items")
def ids_and_labels(connection: Connection, rows: list[int]) -> dict[int, tuple[Id, list[Any]]]:
    """Return the id and the labels of each of these rows that is an item."""
    stored: list[tuple[int, Id, str]] = []
    for marks, batch in batches(rows):
        stored += connection.execute(f"SELECT row, id, labels FROM items WHERE row IN ({marks})", batch)
    lists: list[list[Any]] = json.loads(f"[{','.join(labels for *_, labels in stored)}]")  # once, not for each item
    return {row: (name, labels) for (row, name, _), labels in zip(stored, lists, strict=True)}
