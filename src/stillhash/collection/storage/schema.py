"""The tables of store.db, and the key-value table `meta`.

Before anything is read from them, the tables are compared with those that are expected. A folder may come from anyone:
a view or a generated column in the place of a table runs SQL of its own when it is read, a trigger when it is written.
So the database holds exactly the tables, indexes and views that this library creates. The one virtual table is the
lexical index, and the tables that FTS5 creates for it are there with it or not at all.
"""

import functools
import json
import reprlib
import sqlite3
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState, StillhashError

STORE_FORMAT = 5
COMPACTED_FORMAT = 6  # since a compaction replaced segments: their numbers need not ascend with their rows
RESCORING_FORMAT = 7  # with rescoring codes, compacted or not
READABLE_FORMATS = (STORE_FORMAT, COMPACTED_FORMAT, RESCORING_FORMAT)
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE items (
  row INTEGER PRIMARY KEY, id NOT NULL UNIQUE, labels TEXT NOT NULL, metadata TEXT, code BLOB, features BLOB,
  feature_digest INTEGER);
CREATE TABLE pictures (row INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE tombstones (row INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
CREATE INDEX tombstones_by_seq ON tombstones (seq);
CREATE TABLE changed_rows (row INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
CREATE INDEX changed_rows_by_seq ON changed_rows (seq);
CREATE TABLE segments (
  number INTEGER PRIMARY KEY, file TEXT NOT NULL, rows INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
  content BLOB NOT NULL);
CREATE TABLE pending (
  number INTEGER PRIMARY KEY, row INTEGER UNIQUE, features BLOB NOT NULL, labels TEXT NOT NULL, code BLOB,
  own_features INTEGER NOT NULL);
CREATE TABLE doubtful_labels (row INTEGER PRIMARY KEY, agreement REAL NOT NULL, predicted TEXT NOT NULL);
CREATE TABLE voted_queries (number INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, query BLOB NOT NULL);
CREATE TABLE votes (
  number INTEGER PRIMARY KEY, version INTEGER NOT NULL, digest BLOB NOT NULL, item NOT NULL, source TEXT NOT NULL,
  vote REAL NOT NULL, position INTEGER, code BLOB NOT NULL, labels TEXT NOT NULL);
CREATE UNIQUE INDEX votes_once ON votes (digest, item, source, version);
CREATE VIEW current_votes AS SELECT * FROM
  (SELECT *, max(version) FROM votes GROUP BY digest, item, source) WHERE vote != 0;
CREATE TABLE versions (
  version INTEGER PRIMARY KEY, created TEXT NOT NULL, kind TEXT NOT NULL, rows INTEGER NOT NULL, tag TEXT UNIQUE,
  side TEXT NOT NULL, model BLOB, learner TEXT, notes TEXT NOT NULL);
"""
OPTIONAL_TABLES = {
    "audit": "CREATE TABLE audit (number INTEGER PRIMARY KEY, time TEXT NOT NULL, who TEXT NOT NULL, "
    "what TEXT NOT NULL, rows INTEGER NOT NULL, ids TEXT NOT NULL, "
    "version_before INTEGER NOT NULL, version_after INTEGER NOT NULL);",
    "features": "CREATE TABLE features (row INTEGER PRIMARY KEY, features BLOB NOT NULL);",
    "rescoring": "CREATE TABLE rescoring (row INTEGER PRIMARY KEY, codes BLOB NOT NULL);",
    "learnt_rows": "CREATE TABLE learnt_rows (number INTEGER PRIMARY KEY, version INTEGER NOT NULL, "
    "position INTEGER NOT NULL, row INTEGER NOT NULL, labels TEXT NOT NULL);"
    "CREATE INDEX learnt_rows_by_row ON learnt_rows (row);",
    "summed_rows": "CREATE TABLE summed_rows (row INTEGER PRIMARY KEY, labels TEXT NOT NULL, learnt INTEGER NOT NULL, "
    "version INTEGER NOT NULL);"
    "CREATE TABLE removals (number INTEGER PRIMARY KEY, rescoring BLOB NOT NULL, code BLOB NOT NULL, "
    "labels TEXT NOT NULL, learnt INTEGER NOT NULL);",
    "unlearnt_rows": "CREATE TABLE unlearnt_rows (row INTEGER PRIMARY KEY);",
}
LEXICAL_SCHEMA = "CREATE VIRTUAL TABLE lexical USING fts5(words, content='', tokenize='unicode61 remove_diacritics 2');"
LEXICAL_TABLES = {  # that FTS5 creates with it, in every version of SQLite
    "lexical": LEXICAL_SCHEMA.rstrip(";"),
    "lexical_data": "CREATE TABLE 'lexical_data'(id INTEGER PRIMARY KEY, block BLOB)",
    "lexical_idx": "CREATE TABLE 'lexical_idx'(segid, term, pgno, PRIMARY KEY(segid, term)) WITHOUT ROWID",
    "lexical_docsize": "CREATE TABLE 'lexical_docsize'(id INTEGER PRIMARY KEY, sz BLOB)",
    "lexical_config": "CREATE TABLE 'lexical_config'(k PRIMARY KEY, v) WITHOUT ROWID",
}
LEXICAL_KEY = "lexical_field"  # in `meta`, where there is a lexical index
COUNTERS = ("seq", "generation", "next_row", "items", "version", "unlabelled")  # in `meta`, from 0
LABELLED_KEY = "labelled"  # in `meta`: how many items have labels; absent in stores of earlier releases until a write
ADDITIVE_METHOD = "tally"  # which learns sums that a row can be taken out of
MAX_PARAMETERS = 500  # parameters are in one statement at most
UNREADABLE_VALUES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, struct.error)
MAX_ROW_NUMBER = 1 << 35  # a bitmap of all rows then takes 4 GiB
RowNumbers = NDArray[np.int64]


def get_meta(connection: sqlite3.Connection, key: str) -> Any:
    """Return a value of the table `meta`, None if there is none."""
    try:
        row = connection.execute("SELECT value FROM meta WHERE key = ?", [key]).fetchone()
    except sqlite3.DatabaseError as error:
        raise BadState(f"store.db cannot be read: {error}") from error
    return None if row is None else row[0]


def parse_json(text: Any, kind: type, what: str) -> Any:
    """Return what a stored JSON text holds, a list or an object; BadState if it is none or holds something else."""
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadState(f"{what}: expected JSON, got something else: {error}") from error
    if not isinstance(value, kind):
        raise BadState(f"{what}: expected a {kind.__name__}, got a {type(value).__name__}")
    return value


@contextmanager
def parsing(what: str) -> Iterator[None]:
    """Raise BadState for whatever reading stored values raises that are not as this library writes them."""
    try:
        yield
    except UNREADABLE_VALUES as error:
        if isinstance(error, StillhashError):
            raise
        raise BadState(f"{what}: cannot be read: {type(error).__name__}: {error!s:.200}") from error


def check_counters(connection: sqlite3.Connection) -> None:
    """Raise BadState unless all counters are there and can be true."""
    labelled = [] if get_meta(connection, LABELLED_KEY) is None else [LABELLED_KEY]
    for key in (*COUNTERS, *labelled):
        value = get_meta(connection, key)
        low, high = (-MAX_ROW_NUMBER if key == "unlabelled" else 0), (MAX_ROW_NUMBER if key == "next_row" else 1 << 62)
        if not isinstance(value, int) or not low <= value <= high:
            raise BadState(f"{key}: expected an integer from {low} to {high}, got {reprlib.repr(value)}")


def set_meta(connection: sqlite3.Connection, key: str, value: Any) -> None:
    """Set a value of the table `meta`."""
    connection.execute("INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", [key, value])


def meta_with_prefix(connection: sqlite3.Connection, prefix: str) -> dict[str, Any]:
    """Return the values of the table `meta` whose keys begin so, by the rest of the key."""
    sql = "SELECT substr(key, ?), value FROM meta WHERE substr(key, 1, ?) = ? ORDER BY key"
    return dict(connection.execute(sql, [len(prefix) + 1, len(prefix), prefix]).fetchall())


def is_fitted(connection: sqlite3.Connection) -> bool:
    """Return whether the hash functions are fixed."""
    return get_meta(connection, "fingerprint") is not None


def optional_tables(settings: dict[str, Any]) -> list[str]:
    """Return the optional tables of a store with these settings, apart from the audit log."""
    features, codes_only = settings.get("keep_features", False), settings.get("codes_only", False)
    rescoring = settings.get("rescore_bits", 0) > 0
    names = ["features"] * features + ["rescoring"] * rescoring
    if sums_stored_rows(settings):
        return [*names, "summed_rows", "unlearnt_rows"]
    return names + ["learnt_rows"] * (features or codes_only)


def sums_stored_rows(settings: dict[str, Any]) -> bool:
    """Return whether the learner of a store with these settings is sums over what is stored of labelled items."""
    return settings.get("rescore_bits", 0) > 0 and settings.get("method") == ADDITIVE_METHOD


def create_script(optional: Iterable[str], lexical: bool) -> str:
    """Return the statements that create the tables of a store with these optional ones."""
    return SCHEMA + "".join(OPTIONAL_TABLES[name] for name in optional) + LEXICAL_SCHEMA * lexical


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Return whether the store has an optional table."""
    sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return connection.execute(sql, [name]).fetchone() is not None


def count_rows(connection: sqlite3.Connection, table: str) -> int:
    """Count the rows of a table."""
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def batches(values: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield values in batches that fit into one statement, each with its question marks."""
    for start in range(0, len(values), MAX_PARAMETERS):
        batch = values[start : start + MAX_PARAMETERS]
        yield ", ".join("?" * len(batch)), batch


MAX_NAMED = 3  # unexpected entries are named by a message
MAX_ENTRY_LENGTH = 60  # characters of the name of each are shown

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
