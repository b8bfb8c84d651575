"""Votes: validated, turned into what is stored of them, found for a query, listed, and learnt.

The order of a voted item for its own query is not learnt: search puts it first or last. What a vote teaches is small.

On an item with labels it says something about the query's labels: up, that it has one of the item's; down, that it has
none of them. So a query's predicted labels y are moved as little as possible (by factors: least Kullback-Leibler
divergence) until they agree with its votes. Each vote owns one factor on the labels of its item: down divides them by
MAX_FACTOR; up multiplies them by the least that brings their sum to LIKED_SUM, at most MAX_FACTOR. That is a
Passive-Aggressive step on the bilinear form q^T U y: nothing moves where a vote is satisfied, nothing far. U changes so
that each of the n queries gets its new labels y', nearly, and the rows that were learnt keep theirs: by
(lambda n^1.5 S + Q^T Q)^-1 Q^T (y' - y), with S the mean of x x^T over these rows. One vote moves its query and similar
ones nearly all the way; of many votes only what they have in common is left, so that other queries do not suffer.

Where an item has no labels, or a model none, its code is compared with the codes at large (`click_correction`).

All of it is computed from all votes whenever a version is published, so a vote that is taken back leaves no trace.
"""

import math
from collections import Counter
from collections.abc import Iterable
from sqlite3 import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.codes import to_hex
from stillhash.collection.read_view import Snapshot, query_digests
from stillhash.collection.search_view import ModelStore, SearchSnapshot
from stillhash.collection.storage.schema import batches, has_table, parsing
from stillhash.collection.storage.votes import StoredVote, VotedRows, check_counted_votes
from stillhash.collection.types import Id, Vote, VoteEntry
from stillhash.collection.validation import InputRows, check_ids
from stillhash.collection.values import is_single_id
from stillhash.errors import InvalidInput, StillhashError, WrongType
from stillhash.hashers import Hasher, LabelSpace, LinearHasher, Model
from stillhash.numeric.codes import pack, signs
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Doubles, Floats, check_integer, check_number
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
NEAREST_CODES = 64  # items with the nearest codes are compared with a query by their rescoring codes
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


LIKED_SUM = 0.7  # is what the labels of a liked item should add up to, of a unit label vector
MAX_FACTOR = 3.0  # a vote changes a label by this factor at most
MIN_LABEL = 0.01  # a predicted label is never less likely than this
FACTOR_ROUNDS, FACTOR_TOLERANCE = 20, 1e-3  # factors are adjusted to each other until none changes by more
LEARNT_WEIGHT = 100.0  # lambda: the more, the less U changes
MAX_CORRECTED_QUERIES = 3000  # only the latest queries with votes correct the model

Places = dict[object, int]  # of labels, in a model
LabelVote = tuple[int, list[int], float]  # number of the query, labels of the item, and the vote


@one_thread
def correct(hasher: Hasher, model: Model, votes: list[StoredVote], sample: Codes) -> Model:
    """Return the model with what votes teach; `sample` are codes of the collection at large."""
    if not votes:
        return model
    space, functions = hasher.label_space(), hasher.functions()
    places: Places = {} if space is None else {name: place for place, name in enumerate(space.names)}
    known = [any(name in places for name in vote.labels) for vote in votes]
    labelled = [vote for vote, is_known in zip(votes, known, strict=True) if is_known]
    others = [vote for vote, is_known in zip(votes, known, strict=True) if not is_known]
    if space is not None and labelled:
        model = model._replace(U=_corrected_labels(functions, space, places, model, labelled))
    if others and (N := click_correction(functions, model, others, sample)) is not None:
        model = model._replace(N=N)
    return model


def _corrected_labels(
    functions: LinearHasher, space: LabelSpace, places: Places, model: Model, votes: list[StoredVote]
) -> Floats:
    """Return U so that queries have labels that agree with their votes."""
    assert model.U is not None and model.u is not None
    totals: dict[tuple[bytes, Id], float] = {}
    for vote in votes:
        totals[vote.query, vote.item] = totals.get((vote.query, vote.item), 0.0) + vote.vote
    last = {(vote.query, vote.item): vote for vote in votes}
    numbers = {query: number for number, query in enumerate(dict.fromkeys(vote.query for vote in votes))}
    queries = np.frombuffer(b"".join(numbers), np.float32).reshape(len(numbers), -1)
    Q = functions.prepare(queries).astype(np.float64)
    y = np.maximum(Q @ model.U + model.u, 0)
    labels = [
        (numbers[pair[0]], [places[name] for name in last[pair].labels if name in places], min(1.0, max(-1.0, total)))
        for pair, total in totals.items()
        if total
    ]
    change = agreeing_labels(y, labels) - np.maximum(y, MIN_LABEL)
    return (model.U + _least_change(space, Q, change)).astype(np.float32)


def _least_change(space: LabelSpace, Q: Doubles, change: Doubles) -> Doubles:
    """Return the matrix (D, c) that changes each query Q (n, D) so, nearly, and other rows as little as possible."""
    n, D = Q.shape
    mean_square = float(np.trace(space.squares)) / max(space.rows, 1e-12)
    S = (space.squares + mean_square * np.eye(D)) / (space.rows + D)  # with few rows, every direction counts alike
    return np.asarray(np.linalg.solve(LEARNT_WEIGHT * n**1.5 * S + Q.T @ Q, Q.T @ change))


class VoteSlot(NamedTuple):
    """The k-th votes of all queries that have so many: their labels one after another, and the votes."""

    rows: NDArray[np.int64]  # the query of each label
    labels: NDArray[np.int64]
    votes: NDArray[np.int64]  # to which vote a label belongs
    cast: Doubles  # the votes


def agreeing_labels(y: Doubles, votes: list[LabelVote]) -> Doubles:
    """Move labels y (n, c) until they agree with votes: coordinate ascent on the logarithms of the factors."""
    y, slots = np.maximum(y, MIN_LABEL), _slots(votes)
    factors = [np.zeros(len(slot.cast)) for slot in slots]  # logarithms
    for _ in range(FACTOR_ROUNDS):
        largest = 0.0
        for k, slot in enumerate(slots):
            most = np.abs(slot.cast) * np.log(MAX_FACTOR)
            sums = np.bincount(slot.votes, y[slot.rows, slot.labels], len(slot.cast))
            up = np.clip(factors[k] + np.log(LIKED_SUM / sums), 0.0, most)
            step = np.where(slot.cast < 0, -most, up) - factors[k]
            y[slot.rows, slot.labels] *= np.exp(step)[slot.votes]
            factors[k] = factors[k] + step
            largest = max(largest, float(np.abs(step).max()))
        if largest < FACTOR_TOLERANCE:
            break
    return y


def _slots(votes: list[LabelVote]) -> list[VoteSlot]:
    """Return the first votes of all queries, the second ones, and so on."""
    slots: dict[int, list[LabelVote]] = {}
    counts: Counter[int] = Counter()
    for vote in votes:
        slots.setdefault(counts[vote[0]], []).append(vote)
        counts[vote[0]] += 1
    columns = []
    for slot in slots.values():
        numbers = np.repeat(np.arange(len(slot)), [len(labels) for _, labels, _ in slot])
        labels = np.concatenate([labels for _, labels, _ in slot]).astype(np.int64)
        rows = np.array([row for row, _, _ in slot], np.int64)[numbers]
        columns.append(VoteSlot(rows, labels, numbers, np.array([cast for _, _, cast in slot])))
    return columns


CODE_RIDGE = 2.0  # is added to the covariance of codes, in units of the mean variance of a bit
QUERY_RIDGE = 1.0  # is the ridge of the regression on queries, in units of a query's square
STANDARD_ERRORS = 2.0
HALF_QUERIES = 100  # with so many queries N counts for half of what it would


def click_correction(functions: LinearHasher, model: Model, votes: list[StoredVote], sample: Codes) -> Floats | None:
    """Return N (D, b) by votes on items of these codes; None if it is not certain to help.

    sample: codes of the collection at large.
    """
    numbers = {query: number for number, query in enumerate(dict.fromkeys(vote.query for vote in votes))}
    if len(numbers) < 2 or not len(sample):
        return None
    queries = np.frombuffer(b"".join(numbers), np.float32).reshape(len(numbers), -1)
    W = functions.weigh_by(model._replace(N=None), queries).astype(np.float64)
    targets, certain = _targets(W, votes, numbers, sample)
    Q = functions.prepare(queries).astype(np.float64) * certain[:, None]
    targets *= certain[:, None]
    N, predicted = leave_one_out(Q, targets, QUERY_RIDGE * float(np.mean(np.square(Q).sum(axis=1) / certain**2)))
    agreement, size = (targets * predicted).sum(axis=1), np.square(predicted).sum(axis=1)
    if not size.sum():
        return None
    slope = agreement.sum() / size.sum()
    error = np.sqrt(np.square(agreement - slope * size).sum()) / size.sum()
    share = min(1.0, slope - STANDARD_ERRORS * error) * len(numbers) / (len(numbers) + HALF_QUERIES)
    return (share * N).astype(np.float32) if share > 0 else None


def _targets(W: Doubles, votes: list[StoredVote], numbers: dict[bytes, int], sample: Codes) -> tuple[Doubles, Doubles]:
    """Return what each query should add to its weights W (n, b), and how certain that is, from 0 to 1."""
    bits = W.shape[1]
    rows = np.array([numbers[vote.query] for vote in votes])
    cast = np.array([vote.vote for vote in votes])
    codes = signs(np.frombuffer(b"".join(vote.code for vote in votes), np.uint8).reshape(len(votes), -1), bits)
    common = signs(sample, bits).astype(np.float64)
    mean = common.mean(axis=0)
    S = np.cov(common, rowvar=False, bias=True)
    S[np.diag_indices(bits)] += CODE_RIDGE * float(np.mean(np.diag(S)))
    sides = []  # of liked and disliked codes: their mean, less that of all codes, as weights
    for part in (cast > 0, cast < 0):
        total, codes_sum = np.zeros(len(W)), np.zeros_like(W)
        np.add.at(total, rows[part], np.abs(cast[part]))
        np.add.at(codes_sum, rows[part], np.abs(cast[part])[:, None] * (codes[part] - mean))
        means = codes_sum / np.where(total, total, 1)[:, None]
        sides.append((np.linalg.solve(S, means.T).T, total))
    seen = [(direction[total > 0], W[total > 0]) for direction, total in sides]
    tilt = sum(float((direction * own).sum()) for direction, own in seen)
    tilt /= max(sum(float(np.square(own).sum()) for _, own in seen), 1e-30)
    total = sides[0][1] + sides[1][1]
    targets = np.zeros_like(W)
    if tilt > 0:
        for sign, (direction, total_of_side) in zip((1, -1), sides, strict=True):
            targets += sign * (total_of_side > 0)[:, None] * (direction / tilt - W)
    return targets, np.sqrt(total / (1 + total))


def leave_one_out(Q: Doubles, T: Doubles, ridge: float) -> tuple[Doubles, Doubles]:
    """Return the regression (D, b) of T (n, b) on Q (n, D), and what it predicts of each row by all other rows."""
    n, D = Q.shape
    if n <= D:
        inverse = np.linalg.inv(Q @ Q.T + ridge * np.eye(n))
        dual = inverse @ T
        return Q.T @ dual, T - dual / np.diag(inverse)[:, None]
    P = np.linalg.solve(Q.T @ Q + ridge * np.eye(D), Q.T)
    N = P @ T
    leverage = np.einsum("dn,nd->n", P, Q)[:, None]
    return N, (Q @ N - leverage * T) / (1 - leverage)
