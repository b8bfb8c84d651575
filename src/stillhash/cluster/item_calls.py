"""Calls of fronts to shards about items, besides searches: how a shard answers each of them.

get        the records of rows, or of ids                   repeats    the rows that have these digests of features
count      how many items meet a filter                     select     which of these rows meet a filter
rows       the rows of ids                                  list       ids in order, with their rows
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.cluster.messages import Message
from stillhash.cluster.shard_items import ShardItems
from stillhash.collection.filters.language import Condition
from stillhash.collection.storage.items import ItemRecord
from stillhash.errors import InvalidInput
from stillhash.search.blocks import NO_IDS, IdArray, is_set

ITEM_CALLS = frozenset({"get", "rows", "count", "select", "repeats", "list"})


def answer_item_call(items: ShardItems, call: str, header: dict[str, Any], arrays: Sequence[NDArray[Any]]) -> Message:
    """Return the reply to a call; InvalidInput if it is not a call about items."""
    try:
        where = header.get("where")
        condition = None if where is None else Condition.from_json(where)
        if call == "get":
            ids = header.get("ids")
            rows = arrays[0].tolist() if ids is None else items.rows_of(ids).values()
            return Message({}, [records_to_array(items.records(rows, header.get("max_bytes")))])
        if call == "rows":
            by_id = items.rows_of(header["ids"])
            return Message({"ids": list(by_id)}, [np.fromiter(by_id.values(), np.int64)])
        if call == "count":
            return Message({"count": items.count(condition)}, [])
        if call == "select":
            return Message({}, [select_rows(items, arrays[0], condition)])
        if call == "repeats":
            parts = [select_rows(items, rows, condition) for rows in items.repeats(arrays[0].tolist())]
            return Message({}, [np.array([len(part) for part in parts], np.int64), np.concatenate([NO_IDS, *parts])])
        if call == "list":
            listed = items.list_ids(condition, header.get("after"), int(header["limit"]))
            return Message({"ids": [name for name, _ in listed]}, [np.array([row for _, row in listed], np.int64)])
    except (LookupError, TypeError) as error:
        raise InvalidInput(f"message: expected a call about items, got {error}") from None
    raise InvalidInput(f"call: expected one of {', '.join(sorted(ITEM_CALLS))}, got {call!r:.40}")


def select_rows(items: ShardItems, rows: IdArray, condition: Condition | None) -> IdArray:
    """Return those of these rows that are items and meet a condition, in their order."""
    existing = items.existing(rows)
    return existing if condition is None else existing[is_set(items.matching(condition), existing)]


def records_to_array(records: Iterable[ItemRecord]) -> NDArray[np.uint8]:
    """Return records as the bytes of their JSON."""
    return np.frombuffer(json.dumps(list(records), separators=(",", ":")).encode(), np.uint8)


def records_from_array(array: NDArray[np.uint8]) -> list[ItemRecord]:
    """Return the records of such bytes."""
    return [(row, name, labels, metadata) for row, name, labels, metadata in json.loads(array.tobytes())]
