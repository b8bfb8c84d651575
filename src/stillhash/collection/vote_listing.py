"""List votes: whose they are, on which item and query, and when they came."""

from sqlite3 import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.codes import to_hex
from stillhash.collection.bulk_reader import BulkReader
from stillhash.collection.learning.votes import check_one_query, check_source, examination_weight, query_bytes
from stillhash.collection.ranking import repeated_rows
from stillhash.collection.read_view import Snapshot
from stillhash.collection.storage.schema import batches, has_table, parsing
from stillhash.collection.storage.versions import MAX_VERSION
from stillhash.collection.storage.votes import CountedVote, check_counted_votes
from stillhash.collection.types import Id, Vector, VoteEntry
from stillhash.errors import report_shortages
from stillhash.numeric.codes import pack, signs
from stillhash.numeric.validation import Floats, check_integer

MAX_LISTED_VOTES = 10_000
NEAREST_CODES = 64  # of a query, whose items are compared with it by their rescoring codes


@report_shortages
class VoteReader(BulkReader):
    """The verb that lists votes."""

    def votes(
        self,
        source: str | None = None,
        limit: int = 100,
        after: int | None = None,
        *,
        query: Vector | NDArray[Any] | None = None,
    ) -> list[VoteEntry]:
        """Return the votes that count, the latest first, at most `limit`; those taken back are not among them.

        source: only the votes of this source. after: only votes that come after the one of this number, so earlier
        ones; the last number leads to the next page. query: only votes on hits of this very query.
        """
        name = None if source is None else check_source(source)
        check_integer(limit, "limit", 1, MAX_LISTED_VOTES)
        before = MAX_VERSION if after is None else check_integer(after, "after", 0, MAX_VERSION)
        key = None if query is None else query_bytes(check_one_query(query, self._input))
        with self._view.pinned() as snapshot:
            votes = self._store.votes.latest(snapshot.connection, name, key, before, limit)
            check_counted_votes(votes, self.dim)
            return self._entries(snapshot, votes)

    def _entries(self, snapshot: Snapshot, votes: list[CountedVote]) -> list[VoteEntry]:
        """Describe stored votes."""
        times = _times(snapshot.connection, [vote.version for vote in votes])
        unique = list(dict.fromkeys(vote.query for vote in votes))
        queries = np.frombuffer(b"".join(unique), np.float32).reshape(len(unique), self.dim)
        names = dict(zip(unique, self._query_ids(snapshot, queries), strict=True))
        plain: list[Any] = list(to_hex(pack(queries), self.bits)) if self.codes_only else queries.tolist()
        vectors = dict(zip(unique, plain, strict=True))
        return [
            VoteEntry(
                number=vote.number,
                time=times.get(vote.version),
                source=vote.source,
                id=vote.item,
                vote=vote.vote / examination_weight(vote.position),
                position=vote.position,
                query=vectors[vote.query],
                query_id=names[vote.query],
            )
            for vote in votes
        ]

    def _query_ids(self, snapshot: Snapshot, queries: Floats) -> list[Id | None]:
        """Return for each query an item whose `reconstruct` is the query; None without one.

        It is the item with the query's features, where these are kept, or else one with one of the nearest codes.
        """
        functions, index = snapshot.functions, snapshot.index
        if functions is None or not len(queries) or not len(index):
            return [None] * len(queries)
        weights = signs(functions.encode_checked(queries), index.bits)
        if snapshot.page_items is not None:  # features are of rescoring codes, and bits of labels say nothing of them
            weights[:, : functions.label_bits_] = 0
        nearest = index.search(weights, 1 if snapshot.page_items is None else NEAREST_CODES).ids
        for number, rows in enumerate(repeated_rows(self._store, snapshot, queries)):
            nearest[number, 0] = rows[0] if len(rows) else nearest[number, 0]
        own: list[int | None] = []
        for rows, query in zip(nearest, queries, strict=True):
            known = rows[rows >= 0]
            same = known[(self._row_features(snapshot, known)[0] == query).all(axis=1)]
            own.append(int(same[0]) if len(same) else None)
        items = self._store.items.get(snapshot.connection, [row for row in own if row is not None])
        return [None if row is None or row not in items else items[row].id for row in own]


@parsing("votes")
def _times(connection: Connection, versions: list[int]) -> dict[int, str]:
    """Return when these versions were published, as far as that is kept: with the version, or in the audit log."""
    times: dict[int, str] = {}
    for marks, batch in batches(list(dict.fromkeys(filter(None, versions)))):  # 0 is of no time
        if has_table(connection, "audit"):
            sql = f"SELECT version_after, min(time) FROM audit WHERE version_after IN ({marks}) GROUP BY version_after"
            times.update(connection.execute(sql, batch))
        times.update(connection.execute(f"SELECT version, created FROM versions WHERE version IN ({marks})", batch))
    return times
