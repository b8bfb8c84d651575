"""Turn validated votes into what is stored of them."""

import math

from stillhash.collection.read_view import Snapshot
from stillhash.collection.storage.store import Store
from stillhash.collection.storage.votes import StoredVote
from stillhash.collection.types import Vote
from stillhash.errors import NotFitted

MAX_WEIGHTED_POSITION = 100  # a hit shown further down counts as one shown here


def stored_votes(store: Store, snapshot: Snapshot, votes: list[Vote]) -> list[StoredVote]:
    """Return votes with their query, and with the code and labels of their item; a vote taken back needs no item."""
    if snapshot.functions is None:
        raise NotFitted("feedback: the hash functions are not fitted yet: add more rows, or call fit")
    query_ids = list(dict.fromkeys(vote.query_id for vote in votes if vote.query_id is not None))
    query_rows = store.items.existing_rows(snapshot.connection, query_ids)
    decoded = snapshot.functions.decode(snapshot.index.codes(query_rows)) if query_ids else []
    queries = dict(zip(query_ids, decoded, strict=True))
    names = list(dict.fromkeys(vote.id for vote in votes if vote.vote))
    rows = store.items.existing_rows(snapshot.connection, names)
    codes = dict(zip(names, snapshot.index.codes(rows), strict=True)) if names else {}
    items = {item.id: item for item in store.items.get(snapshot.connection, rows.tolist()).values()}
    stored = []
    for vote in votes:
        query = vote.query if vote.query_id is None else queries[vote.query_id]
        code, labels = (codes[vote.id].tobytes(), items[vote.id].labels) if vote.vote else (b"", [])
        weight = float(vote.vote) * examination_weight(vote.position)
        stored.append(StoredVote(query.tobytes(), vote.id, vote.source, weight, vote.position, code, labels))
    return stored


def examination_weight(position: int | None) -> float:
    """Return how much a vote counts for a hit shown at this rank: log2(1 + rank), since the lower, the fewer look."""
    return 1.0 if position is None else math.log2(1 + min(position, MAX_WEIGHTED_POSITION))
