"""Facets: how many items have each label, and each value of each field of the metadata."""

import heapq
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from sqlite3 import Connection
from typing import Any

import numpy as np

from stillhash.collection.facet_counts import ValueCounts, count_by_reading, current_rows
from stillhash.collection.filter_columns import FilterColumns, GroupColumns
from stillhash.collection.filter_matching import select_values
from stillhash.collection.filter_tree import MAX_FIELD_LENGTH
from stillhash.collection.filters import Condition
from stillhash.collection.row_groups import RowGroup
from stillhash.collection.storage.bitmaps import count_bits
from stillhash.collection.storage.column_builder import EXACT_INTEGERS, LABELS, MAX_FIELDS
from stillhash.collection.storage.columns import Column
from stillhash.collection.storage.item_pages import ids_of
from stillhash.collection.storage.schema import MAX_ROW_NUMBER, get_meta
from stillhash.collection.storage.selections import FALSE, NULL, TRUE, Word
from stillhash.collection.types import Id
from stillhash.collection.values import brief
from stillhash.errors import InvalidInput, WrongType
from stillhash.numeric.validation import Mask
from stillhash.search.blocks import Bitmap

MAX_CACHED_FACETS = 16  # of one commit
VALUE_OF = {NULL: None, FALSE: False, TRUE: True}

FindRow = Callable[[Any], int]  # the first row that has a value
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


def count_facets(
    connection: Connection,
    columns: FilterColumns,
    condition: Condition | None,
    fields: tuple[str, ...] | None,
    limit: int,
) -> Facets:
    """Count the labels and fields of the rows that meet a condition; raise MovedOn as `FilterColumns.matching` does."""
    allowed = None if condition is None else columns.matching(connection, condition)
    table = columns.table(connection, fields)
    rows = _live_rows(connection, table.deleted) if allowed is None else allowed
    masks = current_rows([group for group, _ in table.groups], rows)
    drafts = []
    for name in (LABELS, *(sorted(table.names - {LABELS}) if fields is None else fields)):
        if name in table.names:
            counts, find_row = _count_columns(name, table.groups, masks)
        else:
            counts, first_rows = count_by_reading(connection, rows, name)
            find_row = first_rows.__getitem__
        keys = _listed_keys(counts, limit, numbers=name == LABELS)
        drafts.append((name, counts, {key: find_row(key) for key in keys}))
    ids = ids_of(connection, [row for _, _, examples in drafts for row in examples.values()])
    labels, *others = [_facet(*draft, ids) for draft in drafts]
    total = get_meta(connection, "items") if allowed is None else count_bits(allowed)
    return Facets(total, labels, sorted(others, key=lambda facet: (-facet.items, facet.field)))


def _live_rows(connection: Connection, deleted: Bitmap) -> Bitmap:
    rows = np.full(-(-get_meta(connection, "next_row") // 8), 0xFF, np.uint8)
    rows[: len(deleted)] &= ~deleted
    return rows


def _count_columns(name: str, groups: GroupColumns, masks: list[Mask | None]) -> tuple[ValueCounts, FindRow]:
    counts = ValueCounts.of(name)
    parts = [(group, by_name[name], mask) for (group, by_name), mask in zip(groups, masks, strict=True)]
    for _, column, mask in parts:
        counts.add_column(column, mask)
    parts.sort(key=lambda part: part[0].first_row())
    return counts, lambda key: _first_row(key, parts)


def _first_row(key: Any, parts: list[tuple[RowGroup, Column | None, Mask | None]]) -> int:
    """Return the first row that has this value; the parts are in the order of their first rows."""
    best, selection = MAX_ROW_NUMBER, select_values("$eq", plain_key(key))
    for group, column, mask in parts:
        if group.first_row() > best:
            break
        matches = False if column is None else column.matcher(selection)
        if matches is not False:
            places = np.ones(group.rows, bool) if matches is True else matches()
            places = np.flatnonzero(places if mask is None else places & mask)
            rows = group.first + places if group.numbers is None else group.numbers[places]
            best = min(best, int(rows.min(initial=MAX_ROW_NUMBER)))
    return best


def _listed_keys(counts: ValueCounts, limit: int, numbers: bool) -> list[Any]:
    """Return the most frequent values, as they are counted; none if all are numbers and too many, unless `numbers`."""
    if not numbers and counts.only_numbers and len(counts.counts) > limit:
        return []
    most = sorted(counts.counts.values(), reverse=True)[:limit]
    frequent = (key for key, count in counts.counts.items() if count >= most[-1])  # so that few are compared
    return heapq.nsmallest(limit, frequent, key=lambda key: (-counts.counts[key], *_order(key)))


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


def _facet(name: str, counts: ValueCounts, examples: dict[Any, int], ids: dict[int, Id]) -> Facet:
    values = [FacetValue(plain_key(key), counts.counts[key], ids[row]) for key, row in examples.items()]
    bounds = (None if bound is None else plain_key(bound) for bound in (counts.low, counts.high))
    return Facet(name, counts.items, len(counts.counts) if counts.complete else None, values, *bounds)
