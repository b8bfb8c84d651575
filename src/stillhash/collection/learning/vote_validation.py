"""Validate votes, once; everything behind trusts them."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from stillhash.collection.input_rows import InputRows
from stillhash.collection.types import Vote
from stillhash.collection.validation import check_ids
from stillhash.collection.values import is_single_id
from stillhash.errors import InvalidInput, StillhashError, WrongType
from stillhash.numeric.validation import check_integer, check_number

VOTE_WORDS = {"up": 1.0, "down": -1.0}
VOTE_FIELDS = frozenset(Vote._fields)
REQUIRED_FIELDS = frozenset({"id", "vote"})
MAX_POSITION = 2**63 - 1


def check_feedback(query: Any, form: InputRows, id: Any, vote: Any, source: Any, position: Any) -> list[Vote]:
    """Return votes on an item, or on a list of items, of one query."""
    names = check_ids([id] if is_single_id(id) else id)
    if not names:
        raise InvalidInput("id: expected at least one id, got none")
    votes, positions = _for_each(vote, "vote", len(names)), _for_each(position, "position", len(names))
    Q = check_one_query(query, form)
    columns = zip(names, votes, positions, strict=True)
    return [Vote(Q, name, _check_value(one), check_source(source), _check_position(at)) for name, one, at in columns]


def check_votes(votes: Any, form: InputRows) -> list[Vote]:
    """Return votes given as `Vote` or as dictionaries with the same fields."""
    if isinstance(votes, (str, bytes, dict, Vote)) or not isinstance(votes, Iterable):
        raise WrongType(f"votes: expected a list of votes, got a value of type {type(votes).__name__}")
    checked = []
    for number, vote in enumerate(votes, 1):
        try:
            checked.append(_check_vote(vote, form))
        except StillhashError as error:
            raise type(error)(f"vote {number}: {error}") from None
    return checked


def _check_vote(vote: Any, form: InputRows) -> Vote:
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
    return Vote(check_one_query(query, form), id_, _check_value(fields["vote"]), source, position)


def check_one_query(query: Any, form: InputRows) -> Any:
    """Return one validated query (D,)."""
    Q, single = form.query(query)
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
