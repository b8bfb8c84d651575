"""Change stored items in place: their metadata, and which rows readers must read again."""

from collections.abc import Callable, Iterable
from sqlite3 import Connection

from stillhash.collection.storage.lexical import index_words, remove_words
from stillhash.collection.storage.schema import batches, get_meta
from stillhash.collection.types import Id

MetadataText = str | None  # JSON


def mark_changed(connection: Connection, rows: Iterable[int]) -> None:
    """Record that labels or metadata of these rows change in this commit, so that columns of filters follow."""
    seq = get_meta(connection, "seq") + 1
    connection.executemany("INSERT OR REPLACE INTO changed_rows VALUES (?, ?)", ((row, seq) for row in rows))


def set_metadata(connection: Connection, rows: list[int], texts: list[MetadataText]) -> None:
    """Replace the metadata of these rows, each once."""
    remove_words(connection, rows)
    connection.executemany("UPDATE items SET metadata = ? WHERE row = ?", zip(texts, rows, strict=True))
    index_words(connection, rows, texts)
    mark_changed(connection, rows)


def change_metadata(
    connection: Connection, rows: list[int], changes: Iterable[Callable[[MetadataText], MetadataText]]
) -> None:
    """Replace the metadata of each row by what its change makes of it."""
    stored: dict[int, MetadataText] = {}
    for marks, batch in batches(rows):
        stored.update(connection.execute(f"SELECT row, metadata FROM items WHERE row IN ({marks})", batch))
    set_metadata(connection, rows, [change(stored[row]) for row, change in zip(rows, changes, strict=True)])


def list_row_ids(connection: Connection, rows: list[int]) -> list[Id]:
    """Return the ids of these rows, in their order."""
    names: dict[int, Id] = {}
    for marks, batch in batches(rows):
        names.update(connection.execute(f"SELECT row, id FROM items WHERE row IN ({marks})", batch))
    return [names[row] for row in rows]
