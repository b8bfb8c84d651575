"""The catalog of a published collection: what a front needs besides the shards, in one file that never changes.

    meta                settings, hash functions, the current version, alignments, the curve of prequential evaluation
    versions            the versions with their models and label names
    votes               which sources voted on which items as hits of which queries, without codes and labels
    items               the rows of the items that votes are on
    left_out_versions   versions whose models do not fit; left_out_queries: queries whose votes do not

The tables are named as in a store, and are read by the same code. Left out are features, pending rows, what learners
go on from, pictures, judgements of labels and the audit log. A front refuses what it would need them for.
"""

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from stillhash.cluster.sealed_database import check_database, connect_sealed, new_database
from stillhash.collection.learning.encoder_alignment import ALIGNMENT_PREFIX
from stillhash.collection.learning.models import load_functions, load_model
from stillhash.collection.settings import check_id, parse_settings
from stillhash.collection.storage.learner import VersionTable
from stillhash.collection.storage.schema import LEXICAL_KEY, batches, get_meta
from stillhash.collection.storage.store import Store
from stillhash.collection.storage.votes import SourceShares, VotedRows, VoteTable, digest
from stillhash.errors import BadState, Unsupported
from stillhash.files import display_name
from stillhash.hashers import LinearHasher, Model
from stillhash.hashers.linear import PageModel
from stillhash.numeric.rescoring import Rescorer

CATALOG_FORMAT = 1
CATALOG_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE versions (
  version INTEGER PRIMARY KEY, created TEXT NOT NULL, kind TEXT NOT NULL, rows INTEGER NOT NULL, tag TEXT UNIQUE,
  side TEXT NOT NULL, model BLOB, learner TEXT, notes TEXT NOT NULL);
CREATE TABLE votes (
  number INTEGER PRIMARY KEY, version INTEGER NOT NULL, digest BLOB NOT NULL, item NOT NULL, source TEXT NOT NULL,
  vote REAL NOT NULL);
CREATE TABLE items (row INTEGER PRIMARY KEY, id NOT NULL UNIQUE);
CREATE TABLE left_out_versions (version INTEGER PRIMARY KEY);
CREATE TABLE left_out_queries (digest BLOB PRIMARY KEY) WITHOUT ROWID;
"""
COPIED_META = ("collection", "settings", "functions", "fingerprint", "version", "curve", LEXICAL_KEY)
MAX_MODEL_BYTES = 1 << 28  # of all models in a catalog, the latest first; the current one always fits
MAX_CATALOG_VOTES = 1 << 20  # those on the latest queries
SHARES_KEY = "source_shares"  # in `meta`, of the current version, where votes are left out
ALIGNMENTS = "SELECT key, value FROM meta WHERE substr(key, 1, ?) = ?"
KEY_BYTES = 16


def catalog_key(connection: Connection) -> str:
    """Return a text that differs between two commits if their catalogs would differ."""
    small = [name for name in COPIED_META if name != "functions"]  # which `fingerprint` is of
    queries: list[tuple[str, list[Any]]] = [
        (f"SELECT key, value FROM meta WHERE key IN ({', '.join('?' * len(small))}) ORDER BY key", small),
        (f"{ALIGNMENTS} ORDER BY key", [len(ALIGNMENT_PREFIX), ALIGNMENT_PREFIX]),
        ("SELECT version, created, kind, rows, tag, side, length(model), notes FROM versions ORDER BY version", []),
        ("SELECT count(*), max(number), total(vote) FROM votes", []),
        ("SELECT row, id FROM items WHERE id IN (SELECT item FROM votes) ORDER BY row", []),
    ]
    key = hashlib.blake2b(digest_size=KEY_BYTES)
    for sql, values in queries:
        for row in connection.execute(sql, values):
            key.update(repr(row).encode() + b"\n")
    return key.hexdigest()


def write_catalog(store: Store, connection: Connection, path: Path) -> None:
    """Write the catalog of the commit of this transaction."""
    with new_database(path, CATALOG_SCHEMA) as catalog:
        _copy_meta(connection, catalog)
        _copy_versions(connection, catalog)
        if left_out := _copy_votes(connection, catalog):
            shares = store.votes.source_shares(connection, int(get_meta(connection, "version")))
            catalog.execute("INSERT INTO meta VALUES (?, ?)", [SHARES_KEY, json.dumps(shares)])
            catalog.executemany("INSERT INTO left_out_queries VALUES (?)", ((key,) for key in left_out))
        catalog.execute("CREATE UNIQUE INDEX votes_once ON votes (digest, item, source, version)")


def _copy_meta(connection: Connection, catalog: Connection) -> None:
    values: dict[str, Any] = {"format": CATALOG_FORMAT}
    values |= {key: value for key in COPIED_META if (value := get_meta(connection, key)) is not None}
    catalog.executemany("INSERT INTO meta VALUES (?, ?)", values.items())
    alignments = connection.execute(ALIGNMENTS, [len(ALIGNMENT_PREFIX), ALIGNMENT_PREFIX])
    catalog.executemany("INSERT INTO meta VALUES (?, ?)", alignments)


def _copy_versions(connection: Connection, catalog: Connection) -> None:
    """Copy all versions, with the models of the latest ones that fit, the current one among them."""
    current, left = get_meta(connection, "version"), MAX_MODEL_BYTES
    sizes = connection.execute(
        "SELECT version, ifnull(length(model), 0) FROM versions ORDER BY version = ? DESC, version DESC", [current]
    ).fetchall()
    columns = "version, created, kind, rows, tag, side, {}, NULL, notes"
    for version, size in sizes:
        left -= size
        fits = left >= 0 or version == current
        sql = f"SELECT {columns.format('model' if fits else 'NULL')} FROM versions WHERE version = ?"
        catalog.execute(
            "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", connection.execute(sql, [version]).fetchone()
        )
        if not fits:
            catalog.execute("INSERT INTO left_out_versions VALUES (?)", [version])


def _copy_votes(connection: Connection, catalog: Connection) -> list[bytes]:
    """Copy the votes on the latest queries, and the rows of their items; return the digests of other queries."""
    sql = "SELECT digest, count(*) FROM votes GROUP BY digest ORDER BY max(number) DESC"
    left, left_out = MAX_CATALOG_VOTES, []
    for key, count in connection.execute(sql).fetchall():
        left -= count
        if left < 0:
            left_out.append(key)
            continue
        sql = "SELECT number, version, digest, item, source, vote FROM votes WHERE digest = ?"
        catalog.executemany("INSERT INTO votes VALUES (?, ?, ?, ?, ?, ?)", connection.execute(sql, [key]))
    names = [name for (name,) in catalog.execute("SELECT DISTINCT item FROM votes")]
    for marks, batch in batches(names):
        rows = connection.execute(f"SELECT row, id FROM items WHERE id IN ({marks})", batch)
        catalog.executemany("INSERT INTO items VALUES (?, ?)", rows)
    return left_out


class CatalogVersions(VersionTable):
    """The versions in a catalog, some perhaps without their models."""

    def model(self, connection: Connection, version: int) -> tuple[str, bytes | None]:
        if connection.execute("SELECT 1 FROM left_out_versions WHERE version = ?", [version]).fetchone():
            raise Unsupported(f"version: the model of version {version} is not published. Use the writer.")
        return super().model(connection, version)


class CatalogVotes(VoteTable):
    """The votes in a catalog, those on some queries perhaps left out."""

    def source_shares(self, connection: Connection, version: int) -> SourceShares:
        if (text := get_meta(connection, SHARES_KEY)) is None:
            return super().source_shares(connection, version)
        if version != get_meta(connection, "version"):
            raise Unsupported(f"version: not all votes up to version {version} are published. Use the writer.")
        shares: SourceShares = json.loads(text)
        return shares

    def rows_voted(self, connection: Connection, queries: Any, version: int, shares: SourceShares) -> VotedRows:
        queries = list(queries)
        self._check_published(connection, [digest(query) for query in queries])
        return super().rows_voted(connection, queries, version, shares)

    def counts(self, connection: Connection, query: bytes, version: int) -> Any:
        self._check_published(connection, [digest(query)])
        return super().counts(connection, query, version)

    def _check_published(self, connection: Connection, keys: list[bytes]) -> None:
        for marks, batch in batches(keys):
            sql = f"SELECT 1 FROM left_out_queries WHERE digest IN ({marks})"
            if connection.execute(sql, batch).fetchone():
                raise Unsupported("query: the votes on it are not published. Use the writer.")


class Catalog:
    """A catalog, open for reading by any number of threads."""

    def __init__(self, path: Path, *, check: bool = True) -> None:
        """Open a catalog; BadState if it is damaged, or no catalog. check: verify its checksums."""
        check_database(path, checksums=check)
        self.path, self._lock = path, threading.Lock()
        self._connections: list[Connection] = []  # that are not in use
        self._closed = False
        try:
            with self.reading() as connection:
                if get_meta(connection, "format") != CATALOG_FORMAT:
                    raise BadState(f"{display_name(path)}: expected a catalog of format {CATALOG_FORMAT}")
                self.settings: dict[str, Any] = parse_settings(get_meta(connection, "settings"))
                self.collection = check_id(get_meta(connection, "collection"))
                self.versions = CatalogVersions(self.settings["keep_versions"])
                self.votes = CatalogVotes(self.settings["source_cap"])
                self.version = int(get_meta(connection, "version"))
                self.functions: LinearHasher | None = load_functions(connection)
                self.model: Model = load_model(self, connection, self.version)
                dim, rescore_bits = self.settings["dim"], self.settings["rescore_bits"]
                self.rescorer = Rescorer(dim, rescore_bits) if rescore_bits else None
                self._page: PageModel | None = None  # of the current model
                if self.functions is not None and self.rescorer is not None:
                    self._page = self.functions.page_model(self.model, self.rescorer)
                self.source_shares = self.votes.source_shares(connection, self.version)
        except (sqlite3.DatabaseError, TypeError, ValueError) as error:
            self.close()
            if isinstance(error, BadState):
                raise
            raise BadState(f"{display_name(path)}: cannot be read: {error}") from error

    def page_model(self, model: Model) -> PageModel | None:
        """Return what orders the first page by a model; None without rescoring codes."""
        if model is self.model or self.functions is None or self.rescorer is None:
            return self._page
        return self.functions.page_model(model, self.rescorer)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read the tables, by a connection that no other thread uses meanwhile."""
        with self._lock:
            connection = self._connections.pop() if self._connections else None
        connection = connection or connect_sealed(self.path)
        try:
            yield connection
        except sqlite3.DatabaseError as error:
            raise BadState(f"{display_name(self.path)}: cannot be read: {error}") from error
        finally:
            with self._lock:
                if not self._closed:
                    self._connections.append(connection)
            if self._closed:
                connection.close()

    def close(self) -> None:
        """Close the file; a thread that still reads it closes its own connection."""
        with self._lock:
            self._closed = True
            connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()
