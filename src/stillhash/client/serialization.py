"""Convert arguments to JSON, and JSON to the types of a collection."""

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from stillhash.collection.types import Answer, Explanation, Hit, Item, LabelShare, Vote
from stillhash.collection.validation import check_selection
from stillhash.collection.values import json_default
from stillhash.errors import InvalidInput, WrongType

ROW_FIELDS = {"id", "features", "labels", "metadata"}  # of a stream; the first two are required


def to_json(body: dict[str, Any]) -> str:
    """Serialise arguments; arrays and other iterables become lists."""
    try:
        return json.dumps(body, default=_to_list)
    except (TypeError, ValueError, RecursionError) as error:
        raise WrongType(f"{', '.join(body)}: cannot be sent as JSON: {error}") from None


def row_to_json(row: Any, number: int) -> bytes:
    """Serialise a row of a stream."""
    if not isinstance(row, dict) or not {"id", "features"} <= row.keys() <= ROW_FIELDS:
        raise InvalidInput(f"row {number}: expected a dictionary with id, features, and optional labels and metadata")
    try:
        return json.dumps(row, allow_nan=False, default=_array_to_list).encode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"row {number}: cannot be sent as JSON: {error}") from None


def vote_to_json(vote: Any, number: int) -> bytes:
    """Serialise a vote of a list; the server validates it."""
    try:
        fields = vote._asdict() if isinstance(vote, Vote) else vote
        return json.dumps(fields, allow_nan=False, default=_array_to_list).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"vote {number}: cannot be sent as JSON: {error}") from None


def to_answer(answer: dict[str, Any]) -> Answer:
    """Convert the JSON object of an answer."""
    hits = [hit | {"explanation": hit["explanation"] and _to_explanation(hit["explanation"])} for hit in answer["hits"]]
    return Answer(**{**answer, "hits": [Hit(**hit) for hit in hits]})


def _to_explanation(explanation: dict[str, Any]) -> Explanation:
    labels = {name: explanation.get(name) for name in ("query_labels", "hit_labels", "shared_labels")}
    shares = {name: [LabelShare(**one) for one in some] for name, some in labels.items() if some is not None}
    return Explanation(**{**explanation, **shares})


def to_item(item: dict[str, Any] | None) -> Item | None:
    """Convert the JSON object of an item; null is an item that does not exist."""
    return None if item is None else Item(**item)


def selection_to_json(ids: Any, where: Any) -> dict[str, Any]:
    """Return the body of a verb on items, by their ids or by a condition; exactly one of these must be passed."""
    selection = check_selection(ids, where)
    return {"ids": selection} if isinstance(selection, list) else {"where": where}


def _to_list(value: Any) -> Any:
    """Return what JSON has for a value that it does not know: as metadata stores it, or any iterable as a list."""
    with suppress(TypeError):
        return json_default(value)
    if isinstance(value, Iterable) and not hasattr(value, "tolist"):
        return list(value)
    return _array_to_list(value)


def _array_to_list(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return json_default(value)
