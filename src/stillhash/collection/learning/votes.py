"""Validate votes, turn them into what is stored of them, find those on a query, and list them."""

import math
from collections.abc import Iterable
from sqlite3 import Connection
from typing import Any

import numpy as np

from stillhash.codes import to_hex
from stillhash.collection.read_view import Snapshot, query_digests
from stillhash.collection.search_view import ModelStore, SearchSnapshot
from stillhash.collection.storage.schema import batches, has_table, parsing
from stillhash.collection.storage.votes import StoredVote, VotedRows, check_counted_votes
from stillhash.collection.types import Id, Vote, VoteEntry
from stillhash.collection.validation import InputRows, check_ids
from stillhash.collection.values import is_single_id
from stillhash.errors import InvalidInput, StillhashError, WrongType
from stillhash.numeric.codes import pack, signs
from stillhash.numeric.validation import Floats, check_integer, check_number
from stillhash.search.blocks import NO_IDS

VOTE_WORDS = {"up": 1.0, "down": -1.0}
VOTE_FIELDS = frozenset(Vote._fields)
REQUIRED_FIELDS = frozenset({"id", "vote"})
MAX_POSITION = 2**63 - 1


def check_feedback(query: Any, rows: InputRows, id: Any, vote: Any, source: Any, position: Any) -> list[Vote]:
    """Return votes on an item, or on a list of items, of one query."""
    names = check_ids([id] if is_single_id(id) else id)
    if not names:
        raise InvalidInput("id: expected at least one id, got none")
    votes, positions = _for_each(vote, "vote", len(names)), _for_each(position, "position", len(names))
    Q = check_one_query(query, rows)
    columns = zip(names, votes, positions, strict=True)
    return [Vote(Q, name, _check_value(one), check_source(source), _check_position(at)) for name, one, at in columns]


def check_votes(votes: Any, rows: InputRows) -> list[Vote]:
    """Return votes given as `Vote` or as dictionaries with the same fields."""
    if isinstance(votes, (str, bytes, dict, Vote)) or not isinstance(votes, Iterable):
        raise WrongType(f"votes: expected a list of votes, got a value of type {type(votes).__name__}")
    checked = []
    for number, vote in enumerate(votes, 1):
        try:
            checked.append(_check_vote(vote, rows))
        except StillhashError as error:
            raise type(error)(f"vote {number}: {error}") from None
    return checked


def _check_vote(vote: Any, rows: InputRows) -> Vote:
    fields = vote._asdict() if isinstance(vote, Vote) else vote
    if not isinstance(fields, dict) or not REQUIRED_FIELDS <= fields.keys() <= VOTE_FIELDS:
        names = ", ".join(Vote._fields)
        raise InvalidInput(f"expected an object with id, vote, and query or query_id; all fields are {names}")
    query, query_id = fields.get("query"), fields.get("query_id")
    if (query is None) == (query_id is None):
        raise InvalidInput("query: expected either query or query_id, got " + ("none" if query is None else "both"))
    (id_,) = check_ids([fields["id"]])
    source, position = check_source(fields.get("source", "")), _check_position(fields.get("position"))
    if query is None:
        (query_id,) = check_ids([query_id])
        return Vote(None, id_, _check_value(fields["vote"]), source, position, query_id)
    return Vote(check_one_query(query, rows), id_, _check_value(fields["vote"]), source, position)


def check_one_query(query: Any, rows: InputRows) -> Any:
    """Return one validated query (D,)."""
    Q, single = rows.query(query)
    if not single:
        raise InvalidInput(f"query: expected one query, got {len(Q)} rows")
    return Q[0]


def _for_each(value: Any, name: str, count: int) -> list[Any]:
    """Return one value for each item: a list of them, or the same for all."""
    if not isinstance(value, (list, tuple, np.ndarray)):
        return [value] * count
    if len(value) != count:
        raise InvalidInput(f"{name}: expected one for each of {count} ids, got {len(value)}")
    return list(value)


def _check_value(vote: Any) -> float:
    """Return a vote as a number: true and "up" are 1, false and "down" are -1."""
    if isinstance(vote, (bool, np.bool_)):
        return 1.0 if vote else -1.0
    if isinstance(vote, str) and vote in VOTE_WORDS:
        return VOTE_WORDS[vote]
    if isinstance(vote, str) or not -1 <= check_number(vote, "vote") <= 1:
        raise InvalidInput(f"vote: expected 'up', 'down', or a number in [-1, 1], got {vote!r}")
    return float(vote)


def check_source(source: Any) -> str:
    """Return the name of a source of votes."""
    if not isinstance(source, str) or not source.isprintable():
        raise WrongType(f"source: expected a printable string, got {source!r}")
    return source


def _check_position(position: Any) -> int | None:
    return None if position is None else check_integer(position, "position", 1, MAX_POSITION)


MAX_LISTED_VOTES = 10_000
NEAREST_CODES = 64  # of a query, whose items are compared with it by their rescoring codes
MAX_WEIGHTED_POSITION = 100  # a hit shown further down counts as one shown here


def stored_votes(snapshot: Snapshot, votes: list[Vote]) -> list[StoredVote]:
    """Return votes with their query, and with the code and labels of their item; a vote taken back needs no item.

    Before there are hash functions items have no codes; votes get them then. A query that is named by an item's id is
    what `reconstruct` returns of the item.
    """
    items, connection = snapshot.store.items, snapshot.connection
    query_ids = list(dict.fromkeys(vote.query_id for vote in votes if vote.query_id is not None))
    query_rows = items.existing_rows(connection, query_ids)
    queries: dict[Id | None, Any] = {}
    if query_ids:
        queries.update(zip(query_ids, snapshot.features(query_rows)[0], strict=True))
    names = list(dict.fromkeys(vote.id for vote in votes if vote.vote))
    rows = items.existing_rows(connection, names)
    codes = dict.fromkeys(names, b"")
    if names and snapshot.functions is not None:
        codes = {name: code.tobytes() for name, code in zip(names, snapshot.index.codes(rows), strict=True)}
    labels_of = {item.id: item.labels for item in items.get(connection, rows.tolist()).values()}
    stored = []
    for vote in votes:
        query: Any = queries.get(vote.query_id, vote.query)
        code, labels = (codes[vote.id], labels_of[vote.id]) if vote.vote else (b"", [])
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


def list_votes(snapshot: Snapshot, source: str | None, query: bytes | None, before: int, limit: int) -> list[VoteEntry]:
    """Return the votes that count, the latest first: those of a source, on a query, or before a number."""
    store = snapshot.store
    dim, bits = store.settings["dim"], store.settings["bits"]
    votes = store.votes.latest(snapshot.connection, source, query, before, limit)
    check_counted_votes(votes, dim)
    times = _times(snapshot.connection, [vote.version for vote in votes])
    unique = list(dict.fromkeys(vote.query for vote in votes))
    queries = np.frombuffer(b"".join(unique), np.float32).reshape(len(unique), dim)
    names = dict(zip(unique, _query_ids(snapshot, queries), strict=True))
    plain: list[Any] = list(to_hex(pack(queries), bits)) if store.settings["codes_only"] else queries.tolist()
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


def _query_ids(snapshot: Snapshot, queries: Floats) -> list[Id | None]:
    """Return for each query an item whose `reconstruct` is the query; None without one.

    It is the item with the query's features, where these are kept, or else one with one of the nearest codes.
    """
    store, functions, index = snapshot.store, snapshot.functions, snapshot.index
    if functions is None or not len(queries) or not len(index):
        return [None] * len(queries)
    weights = signs(functions.encode_checked(queries), index.bits)
    if snapshot.page_items is not None:  # features are of rescoring codes, and bits of labels say nothing of them
        weights[:, : functions.label_bits_] = 0
    nearest = index.search(weights, 1 if snapshot.page_items is None else NEAREST_CODES).ids
    for number, rows in enumerate(snapshot.repeats(query_digests(store.settings, queries))):
        nearest[number, 0] = rows[0] if len(rows) else nearest[number, 0]
    own: list[int | None] = []
    for rows, query in zip(nearest, queries, strict=True):
        known = rows[rows >= 0]
        same = known[(snapshot.features(known)[0] == query).all(axis=1)]
        own.append(int(same[0]) if len(same) else None)
    items = store.items.get(snapshot.connection, [row for row in own if row is not None])
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
