"""The votes: the latest of each source on a query and an item counts, up to each version.

Earlier votes stay, so that an earlier version can be searched and restored. Those from before there were hash functions
are of version 0, and get the codes of their items when there are some. A query is stored once, and found by its
digest, since an index over whole vectors would be large and slow. A vote outlives its item.
"""

import hashlib
import json
from collections.abc import Iterable
from sqlite3 import Connection
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.schema import batches, parsing
from stillhash.collection.types import Id
from stillhash.errors import BadState

DIGEST_BYTES = 16
LATEST = "SELECT *, max(version) FROM votes WHERE version <= ? GROUP BY digest, item, source"

SourceShares = dict[str, float]  # what a vote of each source counts for, from 0 to 1


class VotedRows(NamedTuple):
    """For each query the rows that come first, best first, and the rows that come last."""

    liked: list[NDArray[np.int64]]
    disliked: list[NDArray[np.int64]]


class StoredVote(NamedTuple):
    """What is stored of a vote."""

    query: bytes  # float32
    item: Id
    source: str
    vote: float  # with the weight of its position; negative for an item that is not relevant, 0 for a vote taken back
    position: int | None  # rank from 1 at which the hit was shown
    code: bytes  # empty where the vote is taken back, or its item had no code yet
    labels: list[Any]  # of the item, at the time of the vote


class CountedVote(NamedTuple):
    """A vote that counts, as it is listed."""

    number: int
    version: int  # that it came with
    item: Id
    source: str
    vote: float  # as in StoredVote
    position: int | None
    query: bytes


class VoteTable:
    """Votes of all versions."""

    def __init__(self, source_cap: float) -> None:
        self.source_cap = float(source_cap)

    def add(self, connection: Connection, version: int, votes: Iterable[StoredVote]) -> None:
        """Store votes that came with this version."""
        queries: dict[bytes, bytes] = {}
        rows = []
        for vote in votes:
            key = queries.setdefault(vote.query, digest(vote.query))
            rows.append((version, key, *vote[1:-1], json.dumps(vote.labels)))
        values = ((key, query) for query, key in queries.items())
        connection.executemany("INSERT OR IGNORE INTO voted_queries (digest, query) VALUES (?, ?)", values)
        columns = "(version, digest, item, source, vote, position, code, labels) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        connection.executemany(f"INSERT OR REPLACE INTO votes {columns}", rows)

    def set_codes(self, connection: Connection) -> None:
        """Give votes that came before the hash functions the codes of their items, which all have one now."""
        code = "SELECT code FROM items WHERE id = item AND items.code NOT NULL"
        connection.execute(f"UPDATE votes SET code = ({code}) WHERE version = 0 AND vote != 0 AND EXISTS ({code})")

    def source_shares(self, connection: Connection, version: int) -> SourceShares:
        """Return what a vote of each source counts for: less where they are more than `source_cap`. Empty: no votes."""
        sql = f"SELECT source, sum(abs(vote)) FROM ({LATEST}) GROUP BY source"
        totals = connection.execute(sql, [version]).fetchall()
        return {source: min(1.0, self.source_cap / total) for source, total in totals if total}

    def rows_voted(
        self, connection: Connection, queries: Iterable[bytes], version: int, shares: SourceShares
    ) -> VotedRows:
        """Return for each query the rows with a positive sum of votes, and with a negative one.

        The greatest sum is the very first or last one, among equals the earliest vote. Deleted items have no row.
        """
        keys = [digest(query) for query in queries]
        sums: dict[bytes, dict[int, float]] = {key: {} for key in keys}
        for marks, batch in batches(list(sums)):
            sql = f"""
                SELECT digest, row, source, vote FROM (
                  SELECT *, max(version) FROM votes WHERE digest IN ({marks}) AND version <= ?
                  GROUP BY digest, item, source)
                JOIN items ON items.id = item ORDER BY number"""
            for key, row, source, vote in connection.execute(sql, [*batch, version]):
                sums[key][row] = sums[key].get(row, 0.0) + vote * shares.get(source, 1.0)
        voted = VotedRows([], [])
        for key in keys:
            order = sorted(sums[key].items(), key=lambda pair: -abs(pair[1]))
            voted.liked.append(np.array([row for row, total in order if total > 0], np.int64))
            voted.disliked.append(np.array([row for row, total in order[::-1] if total < 0], np.int64))
        return voted

    @parsing("votes")
    def of_latest_queries(self, connection: Connection, version: int, queries: int) -> list[StoredVote]:
        """Return the votes that count up to a version, on the latest queries, in their order.

        Without those on an item that was deleted before it had a code.
        """
        shares = self.source_shares(connection, version)
        columns = "digest, item, source, vote, position, code, labels"
        sql = f"SELECT {columns} FROM ({LATEST}) WHERE vote != 0 AND code != x'' ORDER BY number"
        rows = connection.execute(sql, [version]).fetchall()
        vectors: dict[bytes, bytes] = {}
        for marks, batch in batches(list(dict.fromkeys(row[0] for row in reversed(rows)))[:queries]):
            sql = f"SELECT digest, query FROM voted_queries WHERE digest IN ({marks})"
            vectors.update(connection.execute(sql, batch))
        labels = {text: json.loads(text) for text in {row[-1] for row in rows}}
        return [
            StoredVote(vectors[key], item, source, vote * shares[source], position, code, labels[text])
            for key, item, source, vote, position, code, text in rows
            if key in vectors
        ]

    @parsing("votes")
    def latest(
        self, connection: Connection, source: str | None, query: bytes | None, before: int, limit: int
    ) -> list[CountedVote]:
        """Return votes that count, of a source and on a query or of all, the latest first; none from `before` on."""
        on_query = "" if query is None else "AND one.digest = :digest"  # by the index, which an OR would not use
        sql = f"""
            SELECT one.number, version, item, source, vote, position, query
            FROM votes AS one JOIN voted_queries USING (digest)
            WHERE one.number < :before AND vote != 0 AND (:source IS NULL OR source = :source) {on_query}
              AND NOT EXISTS (
                SELECT 1 FROM votes AS later WHERE later.digest = one.digest AND later.item = one.item
                  AND later.source = one.source AND later.version > one.version)
            ORDER BY one.number DESC LIMIT :limit"""
        values: dict[str, Any] = {"before": before, "source": source, "limit": limit}
        values |= {} if query is None else {"digest": digest(query)}
        return [CountedVote(*row) for row in connection.execute(sql, values)]

    def counts(self, connection: Connection, query: bytes, version: int) -> dict[Id, tuple[int, int]]:
        """Return how many sources like and dislike each item as a hit of this query, by votes up to a version."""
        sql = """
            SELECT item, sum(vote > 0), sum(vote < 0) FROM (
              SELECT item, vote, max(version) FROM votes WHERE digest = ? AND version <= ? GROUP BY item, source)
            GROUP BY item"""
        return {item: (up, down) for item, up, down in connection.execute(sql, [digest(query), version])}

    def queries(self, connection: Connection) -> list[tuple[bytes, bytes]]:
        """Return the digests of all queries that were voted on, and the queries."""
        return connection.execute("SELECT digest, query FROM voted_queries").fetchall()

    def count(self, connection: Connection, source: str) -> int:
        """Count the votes of a source, those of earlier versions too."""
        return int(connection.execute("SELECT count(*) FROM votes WHERE source = ?", [source]).fetchone()[0])

    def delete(
        self, connection: Connection, column: Literal["item", "digest", "source"], values: list[Any]
    ) -> tuple[int, int | None]:
        """Delete the votes with one of these values; return how many, and the first version that came with one."""
        count, versions = 0, []
        for marks, batch in batches(values):
            condition = f"FROM votes WHERE {column} IN ({marks})"
            some, first = connection.execute(f"SELECT count(*), min(version) {condition}", batch).fetchone()
            connection.execute(f"DELETE {condition}", batch)
            count += some
            versions += [first] if some else []
        self._drop_queries(connection)
        return count, min(versions, default=None)

    def _drop_queries(self, connection: Connection) -> None:
        """Drop the queries that no vote is on."""
        connection.execute("DELETE FROM voted_queries WHERE digest NOT IN (SELECT digest FROM votes)")

    def drop_after(self, connection: Connection, version: int) -> None:
        """Drop votes that came after a version."""
        connection.execute("DELETE FROM votes WHERE version > ?", [version])
        self._drop_queries(connection)


def check_counted_votes(votes: list[CountedVote], dim: int) -> None:
    """Raise BadState unless each vote is as this library stores it, on a query of so many features."""
    for vote in votes:
        kinds = [type(value) for value in vote]
        expected = [int, int, kinds[2], str, float, kinds[5], bytes]
        if kinds != expected or kinds[2] not in (int, str) or len(vote.query) != 4 * dim:
            raise BadState(f"votes: expected votes on queries of {dim} features, got others")
        if not isinstance(vote.position, int | None) or (vote.position is not None and vote.position < 1):
            raise BadState(f"votes: expected positions from 1, got {vote.position!r:.100}")


def check_stored_votes(votes: list[StoredVote], dim: int, code_bytes: int) -> None:
    """Raise BadState unless each vote has a query of so many features, a code of so many bytes, and labels."""
    for vote in votes:
        sizes = [len(data) if isinstance(data, bytes) else -1 for data in (vote.query, vote.code)]
        if sizes != [4 * dim, code_bytes] or not isinstance(vote.labels, list):
            raise BadState(f"votes: expected {dim} features, codes of {code_bytes} bytes and labels, got others")


def digest(query: bytes) -> bytes:
    """Return the key of a query."""
    return hashlib.blake2b(query, digest_size=DIGEST_BYTES).digest()
