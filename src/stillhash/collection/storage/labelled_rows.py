"""Read the ids and labels of rows, and nothing else of them."""

from collections.abc import Iterable
from sqlite3 import Connection
from typing import Any

from stillhash.collection.storage.schema import batches, parse_json, parsing
from stillhash.collection.types import Id


@parsing("labels")
def read_labels(connection: Connection, rows: Iterable[int]) -> dict[int, tuple[Id, list[Any]]]:
    """Return the id and the labels of those rows that exist."""
    labels: dict[int, tuple[Id, list[Any]]] = {}
    for marks, batch in batches(list(rows)):
        stored = connection.execute(f"SELECT row, id, labels FROM items WHERE row IN ({marks})", batch)
        labels.update((row, (name, parse_json(text, list, "labels"))) for row, name, text in stored)
    return labels
