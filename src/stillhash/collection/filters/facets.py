"""Facets: how many items have each label, and each value of each field of the metadata."""

import heapq
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from sqlite3 import Connection
from typing import Any

import numpy as np

from stillhash.collection.filters.columns import FilterColumns
from stillhash.collection.filters.facet_counts import ValueCounts, count_by_reading, current_rows
from stillhash.collection.filters.language import Condition
from stillhash.collection.filters.tree import MAX_FIELD_LENGTH
from stillhash.collection.storage.bitmaps import FALSE, NULL, TRUE, Word, count_bits
from stillhash.collection.storage.columns import EXACT_INTEGERS, LABELS, MAX_FIELDS
from stillhash.collection.storage.items import ids_of
from stillhash.collection.storage.schema import get_meta
from stillhash.collection.types import Id
from stillhash.collection.values import brief
from stillhash.errors import InvalidInput, WrongType
from stillhash.search.blocks import Bitmap

MAX_CACHED_FACETS = 16  # of one commit
VALUE_OF = {NULL: None, FALSE: False, TRUE: True}

FacetKey = tuple[str | None, tuple[str, ...] | None, int]  # condition, fields and limit


@dataclass(frozen=True)
class FacetValue:
    """A label, or a value of a field, and how many items have it."""

    value: Any  # a text, a number, true, false or null
    count: int
    example: Id  # of these items the one that came first


@dataclass(frozen=True)
class Facet:
    """The values of a field, or the labels."""

    field: str
    items: int  # that have it
    distinct: int | None  # values, without lists and objects; None if more than 4,096, or 32,768 labels
    values: list[FacetValue]  # the most frequent first; none where they are all numbers, and more than the limit
    minimum: float | None = None  # of the numbers among the values
    maximum: float | None = None


@dataclass(frozen=True)
class Facets:
    """What the items that meet a condition have: labels and fields."""

    items: int  # that meet the condition
    labels: Facet
    fields: list[Facet]  # those that most items have first


class FacetCache:
    """The latest facets of one commit."""

    def __init__(self) -> None:
        self._lock, self._seq = threading.Lock(), -1
        self._entries: OrderedDict[FacetKey, Facets] = OrderedDict()

    def get(self, seq: int, key: FacetKey) -> Facets | None:
        """Return facets of this commit, None if they are not stored."""
        with self._lock:
            if seq != self._seq or key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key]

    def put(self, seq: int, key: FacetKey, facets: Facets) -> None:
        """Store facets; those of earlier commits are dropped."""
        with self._lock:
            if seq > self._seq:
                self._seq = seq
                self._entries.clear()
            if seq == self._seq:
                self._entries[key] = facets
            if len(self._entries) > MAX_CACHED_FACETS:
                self._entries.popitem(last=False)


def check_fields(fields: Any) -> tuple[str, ...] | None:
    """Return the names of fields, each once; None for all."""
    if fields is None:
        return None
    if isinstance(fields, str) or not isinstance(fields, Iterable):
        raise WrongType(f"fields: expected a list of fields, got {brief(fields)}")
    names = tuple(dict.fromkeys(fields))
    for name in names:
        if not isinstance(name, str):
            raise WrongType(f"fields: expected strings, got {brief(name)}")
        if name == LABELS or name.startswith("$") or not 0 < len(name) <= MAX_FIELD_LENGTH:
            raise InvalidInput(f"fields: expected fields of the metadata, got {brief(name)}")
    if len(names) > MAX_FIELDS:
        raise InvalidInput(f"fields: expected at most {MAX_FIELDS} fields, got {len(names)}")
    return names


def count_values(
    connection: Connection, columns: FilterColumns, condition: Condition | None, fields: tuple[str, ...] | None
) -> tuple[int, dict[str, ValueCounts]]:
    """Count the rows that meet a condition, and the values of their LABELS and of these fields.

    Without fields, of all that have columns. Raises MovedOn as `FilterColumns.matching` does.
    """
    allowed = None if condition is None else columns.matching(connection, condition)
    table = columns.table(connection, fields)
    rows = _live_rows(connection, table.deleted) if allowed is None else allowed
    counted = current_rows([group for group, _ in table.groups], rows)
    counts: dict[str, ValueCounts] = {}
    for name in (LABELS, *(sorted(table.names - {LABELS}) if fields is None else fields)):
        if name in table.names:
            counts[name] = ValueCounts.of(name)
            for (_, by_name), group_rows in zip(table.groups, counted, strict=True):
                counts[name].add_column(by_name[name], group_rows)
        else:
            counts[name] = count_by_reading(connection, rows, name)
    return get_meta(connection, "items") if allowed is None else count_bits(allowed), counts


def build_facets(connection: Connection, items: int, counts: dict[str, ValueCounts], limit: int) -> Facets:
    """Return the most frequent of the values that were counted, with the ids of their first rows."""
    keys = {name: _listed_keys(some, limit, numbers=name == LABELS) for name, some in counts.items()}
    ids = ids_of(connection, [counts[name].counts[key].first for name in keys for key in keys[name]])
    labels, *others = [_facet(name, some, keys[name], ids) for name, some in counts.items()]
    return Facets(items, labels, sorted(others, key=lambda facet: (-facet.items, facet.field)))


def _live_rows(connection: Connection, deleted: Bitmap) -> Bitmap:
    rows = np.full(-(-get_meta(connection, "next_row") // 8), 0xFF, np.uint8)
    rows[: len(deleted)] &= ~deleted
    return rows


def _listed_keys(counts: ValueCounts, limit: int, numbers: bool) -> list[Any]:
    """Return the most frequent values, as they are counted; none if all are numbers and too many, unless `numbers`."""
    if not numbers and counts.only_numbers and len(counts.counts) > limit:
        return []
    most = sorted((count.rows for count in counts.counts.values()), reverse=True)[:limit]
    frequent = (key for key, count in counts.counts.items() if count.rows >= most[-1])  # so that few are compared
    return heapq.nsmallest(limit, frequent, key=lambda key: (-counts.counts[key].rows, *_order(key)))


def _order(key: Any) -> tuple[int, Any]:
    """Return the order of equally frequent values: numbers, texts, null, false, true."""
    if isinstance(key, Word):
        return 2, key.code
    return (1, key) if isinstance(key, bytes) else (0, key)


def plain_key(key: Any) -> Any:
    """Return a value as a filter compares it, from how it is counted."""
    if isinstance(key, Word):
        return VALUE_OF[key]
    if isinstance(key, bytes):
        return key.decode(errors="surrogatepass")
    return int(key) if key == int(key) and abs(key) <= EXACT_INTEGERS else key


def _facet(name: str, counts: ValueCounts, keys: list[Any], ids: dict[int, Id]) -> Facet:
    listed = [(plain_key(key), *counts.counts[key]) for key in keys]
    values = [FacetValue(value, rows, ids[first]) for value, rows, first in listed]
    bounds = (None if bound is None else plain_key(bound) for bound in (counts.low, counts.high))
    return Facet(name, counts.items, len(counts.counts) if counts.complete else None, values, *bounds)
