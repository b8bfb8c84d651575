"""Validate which items a verb changes, by ids or by a condition, and how it changes their metadata."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from stillhash.collection.filters.language import Condition, compile_filter
from stillhash.collection.filters.tree import AllOf
from stillhash.collection.storage.schema import parse_json
from stillhash.collection.types import Filter, Id
from stillhash.collection.validation import check_entries, check_ids, check_labels, metadata_json
from stillhash.errors import InvalidInput

EVERY_ITEM = AllOf(())
ItemFilter = Filter | Literal["all"]  # a condition that is not empty, or every item
MetadataChange = Callable[[str | None], str | None]  # of JSON; None is no metadata


def check_selection(ids: Any, where: Any) -> list[Id] | Condition:
    """Return the ids, or the condition; exactly one of them must be passed, and all items only by where="all"."""
    if (ids is None) == (where is None):
        raise InvalidInput(f"ids: expected either ids or where, got {'neither' if ids is None else 'both'}")
    if where is None:
        return check_ids(ids)
    if isinstance(where, str) and where == "all":
        return Condition(EVERY_ITEM)
    condition = compile_filter(where)
    if condition.tree == EVERY_ITEM:
        raise InvalidInput('where: expected a condition, got an empty one. Pass where="all" for every item.')
    return condition


def check_shared_labels(labels: Any) -> list[Any]:
    """Return the labels, one list, that all items get that meet a condition."""
    if labels is None:
        raise InvalidInput("labels: expected a list of labels for all items that match, [] for none, got None")
    check_labels([labels], 1)
    return [labels]


def check_metadata_changes(metadata: Any, rows: int | None, replace: bool) -> list[MetadataChange]:
    """Return how to change the metadata of each of so many rows, or of all rows alike: then one change.

    metadata: a dictionary for all rows, or a list with one for each; None only to remove all, with replace.
    """
    shared = metadata is None or isinstance(metadata, dict)
    if rows is None and not shared:
        raise InvalidInput(f"metadata: expected a dictionary with where, got {type(metadata).__name__}")
    entries = [metadata] if shared else check_entries(metadata, "metadata", "a dictionary", rows or 0)
    changes: list[MetadataChange] = []
    for number, entry in enumerate(entries):
        name = "metadata" if shared else f"metadata[{number}]"
        if entry is None and not replace:
            raise InvalidInput(f"{name}: expected a dictionary; None only with replace=True, which removes all fields")
        text = None if entry is None else metadata_json(entry, name)
        changes.append(partial(_replaced, text) if replace else partial(merge_metadata, json.loads(text or "{}")))
    return changes if not shared or rows is None else changes * rows


def _replaced(text: str | None, _: str | None) -> str | None:
    return text


def merge_metadata(fields: dict[str, Any], stored: str | None) -> str | None:
    """Return stored metadata with these fields; those with None are removed. Objects are replaced, not merged."""
    before = {} if stored is None else parse_json(stored, dict, "metadata")
    removed = {key for key, value in fields.items() if value is None}
    merged = {key: value for key, value in {**before, **fields}.items() if key not in removed}
    return None if stored is None and not merged else metadata_json(merged)
