"""Read one commit for as long as it takes, beside other reads of the same thread."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from stillhash.collection.storage.connections import connect
from stillhash.collection.storage.integrity import committed_seq
from stillhash.collection.storage.store import Store
from stillhash.errors import BadState


@contextmanager
def pinned_commit(store: Store) -> Iterator[sqlite3.Connection]:
    """Read in one transaction of a connection of its own, so that this thread can read later commits meanwhile."""
    with store.reading():
        pass  # Closed if the store is closed, BadState if it is damaged
    try:
        with closing(connect(store.path, "ro")) as connection:
            connection.execute("BEGIN")
            committed_seq(connection)  # the commit that a transaction sees is that of its first read
            yield connection
    except sqlite3.DatabaseError as error:
        raise BadState(f"{store.path.name}: cannot be read: {error}") from error
