"""Compare the tables of a store.db with those that are expected, before anything is read from them.

A folder may come from anyone. A view or a generated column in the place of a table runs SQL of its own when it is read,
a trigger when it is written. So the database holds exactly the tables, indexes and views that this library creates.
The one virtual table is the lexical index, and the tables that FTS5 creates for it are there with it or not at all.
"""

import functools
import sqlite3
from contextlib import closing

from stillhash.collection.storage.schema import (
    LEXICAL_TABLES,
    OPTIONAL_TABLES,
    READABLE_FORMATS,
    SCHEMA,
    STORE_FORMAT,
    get_meta,
    parsing,
)
from stillhash.errors import BadState

MAX_NAMED = 3  # unexpected entries that a message names
MAX_ENTRY_LENGTH = 60  # of the name of each

SchemaEntry = tuple[str, str, str, str | None]  # type, name, table and statement

LEXICAL_ENTRIES: frozenset[SchemaEntry] = frozenset(("table", name, name, sql) for name, sql in LEXICAL_TABLES.items())


def check_schema(connection: sqlite3.Connection) -> None:
    """Raise BadState unless this database has the tables of a store, and nothing else.

    A store of another format is left to the check of its format, which is read if the table `meta` is as expected.
    """
    stored = _entries(connection)
    expected, optional = _expected(SCHEMA), _expected("".join(OPTIONAL_TABLES.values()))
    if not stored.isdisjoint(LEXICAL_ENTRIES):
        expected |= LEXICAL_ENTRIES
    if expected <= stored <= expected | optional:
        return
    meta = next(entry for entry in expected if entry[:2] == ("table", "meta"))
    version = get_meta(connection, "format") if meta in stored else STORE_FORMAT
    if version not in READABLE_FORMATS:
        return
    unexpected = sorted(entry[:2] for entry in stored - expected - optional)
    missing = sorted(entry[:2] for entry in expected - stored)
    parts = [_listed("unexpected", unexpected), _listed("missing", missing)]
    raise BadState(f"store.db: expected the tables of a collection, got others: {'; '.join(filter(None, parts))}")


def _listed(what: str, entries: list[tuple[str, str]]) -> str:
    names = [f"{kind} {name}"[:MAX_ENTRY_LENGTH] for kind, name in entries[:MAX_NAMED]]
    return f"{what} {', '.join(names)}" + (" and more" if len(entries) > MAX_NAMED else "") if entries else ""


@functools.cache
def _expected(script: str) -> frozenset[SchemaEntry]:
    """Return what SQLite records of these statements."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(script)
        return _entries(connection)


def _entries(connection: sqlite3.Connection) -> frozenset[SchemaEntry]:
    with parsing("store.db"):
        rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    if not set(map(type, (value for row in rows for value in row))) <= {str, type(None)}:
        raise BadState("store.db: expected the tables of a collection, got entries without a name")
    entries = frozenset((*row[:3], row[3] and " ".join(row[3].split())) for row in rows)
    if len(entries) != len(rows):
        raise BadState("store.db: expected the tables of a collection, got some of them twice")
    return entries
