"""Turn validated votes into what is stored of them, and find those on a query."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from stillhash.collection.read_view import Snapshot
from stillhash.collection.search_view import ModelStore, SearchSnapshot
from stillhash.collection.storage.items import RowNumbers
from stillhash.collection.storage.store import Store
from stillhash.collection.storage.votes import StoredVote, VotedRows
from stillhash.collection.types import Id, Vote
from stillhash.numeric.validation import Floats
from stillhash.search.blocks import NO_IDS

MAX_WEIGHTED_POSITION = 100  # a hit shown further down counts as one shown here


def stored_votes(
    store: Store, snapshot: Snapshot, votes: list[Vote], row_features: Callable[[Snapshot, RowNumbers], Floats]
) -> list[StoredVote]:
    """Return votes with their query, and with the code and labels of their item; a vote taken back needs no item.

    Before there are hash functions items have no codes; votes get them then. row_features: returns the features of rows
    that `reconstruct` returns of items, which are the queries that votes name by their ids.
    """
    query_ids = list(dict.fromkeys(vote.query_id for vote in votes if vote.query_id is not None))
    query_rows = store.items.existing_rows(snapshot.connection, query_ids)
    queries: dict[Id | None, Any] = {}
    if query_ids:
        queries.update(zip(query_ids, row_features(snapshot, query_rows), strict=True))
    names = list(dict.fromkeys(vote.id for vote in votes if vote.vote))
    rows = store.items.existing_rows(snapshot.connection, names)
    codes = dict.fromkeys(names, b"")
    if names and snapshot.functions is not None:
        codes = {name: code.tobytes() for name, code in zip(names, snapshot.index.codes(rows), strict=True)}
    items = {item.id: item for item in store.items.get(snapshot.connection, rows.tolist()).values()}
    stored = []
    for vote in votes:
        query: Any = queries.get(vote.query_id, vote.query)
        code, labels = (codes[vote.id], items[vote.id].labels) if vote.vote else (b"", [])
        weight = float(vote.vote) * examination_weight(vote.position)
        stored.append(StoredVote(query_bytes(query), vote.id, vote.source, weight, vote.position, code, labels))
    return stored


def query_bytes(query: Floats) -> bytes:
    """Return a query as votes on it are stored; -0.0 becomes 0.0, since it is the same number."""
    return (query + np.float32(0)).tobytes()


def examination_weight(position: int | None) -> float:
    """Return how much a vote counts for a hit shown at this rank: log2(1 + rank), since the lower, the fewer look."""
    return 1.0 if position is None else math.log2(1 + min(position, MAX_WEIGHTED_POSITION))


def voted_rows(store: ModelStore, snapshot: SearchSnapshot, Q: Floats, version: int) -> VotedRows:
    """Return the rows that votes up to a version put first and last, for these very queries."""
    if not snapshot.source_shares:
        none = [NO_IDS] * len(Q)
        return VotedRows(none, none)
    current = version == snapshot.version
    shares = snapshot.source_shares if current else store.votes.source_shares(snapshot.connection, version)
    voted = store.votes.rows_voted(snapshot.connection, [query_bytes(query) for query in Q], version, shares)
    if snapshot.allowed is None:
        return voted
    return VotedRows(*([snapshot.select_allowed(rows) if len(rows) else rows for rows in part] for part in voted))
