"""Copy the rows of a damaged store.db that are on sound pages to a new one, a table at a time and row by row."""

import shutil
import sqlite3
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from stillhash.collection.storage.connections import restrict
from stillhash.collection.storage.new_database import create_database
from stillhash.collection.storage.schema import LEXICAL_KEY, OPTIONAL_TABLES, create_script, has_table
from stillhash.collection.storage.schema_check import check_schema
from stillhash.collection.storage.verify_pages import PAGE_SIZE
from stillhash.collection.types import Id
from stillhash.errors import BadState

MAX_SKIPPED_ROWS = 1 << 42  # in search of one that can be read
SALVAGED_TABLES = (
    *("items", "tombstones", "changed_rows", "segments", "pictures", "pending", "voted_queries", "votes", "versions"),
    "doubtful_labels",
)
SALVAGED_BESIDE = {"summed_rows": ("removals",)}  # that come with an optional table


def salvage(path: Path, lost_pages: list[int]) -> tuple[str, list[Id]]:
    """Make a new store.db of all rows on sound pages; return what was restored, and the ids of lost items.

    The ids are those that can be read from the index of ids, which is on other pages than the items.
    """
    damaged = path / "store.db.damaged"
    for suffix in ("", "-wal"):
        if (path / f"store.db{suffix}").exists():
            shutil.copyfile(path / f"store.db{suffix}", path / f"{damaged.name}{suffix}")
    with damaged.open("r+b") as file:
        for page in lost_pages:  # zeros, so that SQLite reads no wrong rows from them
            file.seek(page * PAGE_SIZE)
            file.write(bytes(PAGE_SIZE))
    try:
        with closing(sqlite3.connect(damaged)) as connection:
            restrict(connection)
            check_schema(connection)
            meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
            optional = [name for name in OPTIONAL_TABLES if has_table(connection, name)]
            beside = [table for name in optional for table in SALVAGED_BESIDE.get(name, ())]
            names = [*SALVAGED_TABLES, *optional, *beside]
            tables = {table: list(_readable_rows(connection, table)) for table in names}
            ids: list[tuple[Id, int]] = []
            with suppress(sqlite3.DatabaseError):
                ids = connection.execute("SELECT id, row FROM items INDEXED BY sqlite_autoindex_items_1").fetchall()
    except sqlite3.DatabaseError as error:
        raise BadState(f"{path.name}: its settings or its hash functions are lost: {error}") from error
    if not {"seq", "version", "settings", "format"} <= meta.keys():
        raise BadState(f"{path.name}: its settings or its hash functions are lost")
    rows, versions = {row[0] for row in tables["items"]}, {row[0] for row in tables["versions"]}
    for name in {"doubtful_labels", "summed_rows"} & tables.keys():
        tables[name] = [row for row in tables[name] if row[0] in rows]
    if meta["version"] not in versions:
        meta["version"] = max(versions, default=0)
    meta["items"] = len(rows)
    script = create_script(optional, LEXICAL_KEY in meta)
    create_database(path, script, {"meta": list(meta.items()), **tables})
    for suffix in ("", "-wal", "-shm"):
        (path / f"{damaged.name}{suffix}").unlink(missing_ok=True)
    counts = ", ".join(f"{len(values)} {table}" for table, values in tables.items())
    return f"store.db: restored {counts}", [name for name, row in ids if row not in rows]


def _readable_rows(connection: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table that are not on lost pages. The first column of each table is its rowid."""
    last = -1
    while True:
        try:
            for row in connection.execute(f"SELECT * FROM {table} WHERE rowid > ? ORDER BY rowid", [last]):
                yield row
                last = row[0]
            return
        except sqlite3.DatabaseError:
            readable, step = partial(_can_read_after, connection, table), 1
            while not readable(last + step):
                step *= 2
                if step > MAX_SKIPPED_ROWS:
                    return
            last = bisect_left(range(last + step), True, last + step // 2 + 1, key=readable)


def _can_read_after(connection: sqlite3.Connection, table: str, after: int) -> bool:
    try:
        connection.execute(f"SELECT * FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT 1", [after]).fetchall()
    except sqlite3.DatabaseError:
        return False
    return True
