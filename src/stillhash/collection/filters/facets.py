"""How many items have each label, and each value of a field; and what somebody who types may mean.

Values are counted from columns, or by reading the items; what was counted of the latest commit is kept. Suggestions are
labels, ids and values that begin with what is typed, or else are near it.
"""

import heapq
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher, get_close_matches
from sqlite3 import Connection
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filters.columns import WORD_OF, FilterColumns, MovedOn, RowGroup, sql_numbers
from stillhash.collection.filters.language import MAX_FIELD_LENGTH, Condition
from stillhash.collection.storage.bitmaps import (
    FALSE,
    MISSING,
    NULL,
    OTHER,
    TRUE,
    WORDS,
    Word,
    count_bits,
    read_span,
    set_rows,
    set_span,
)
from stillhash.collection.storage.columns import (
    EXACT_INTEGERS,
    LABELS,
    MAX_FIELDS,
    Column,
    LabelColumn,
    NumberColumn,
    SortedValues,
)
from stillhash.collection.storage.items import MAX_SQL_SECONDS, ids_beginning, ids_beside, ids_of, ids_one_edit_away
from stillhash.collection.storage.lexical import lexical_field
from stillhash.collection.storage.schema import MAX_ROW_NUMBER, RowNumbers, get_meta, parse_json
from stillhash.collection.storage.store import Store
from stillhash.collection.types import Id
from stillhash.collection.values import brief
from stillhash.errors import InvalidInput, TooLarge, WrongType
from stillhash.numeric.validation import Mask
from stillhash.search.blocks import Bitmap, is_set

MAX_FACET_VALUES = 1 << 12  # distinct values of a field are counted one by one
MAX_COUNTED_LABELS = 1 << 15  # distinct labels are counted
ROWS_PER_CHECK = 1 << 12  # items are read between two looks at the clock
COUNTED_WORDS = (NULL, FALSE, TRUE)

Counts = NDArray[np.int64]


class CountedRows(NamedTuple):
    """Rows of a group that count."""

    numbers: RowNumbers  # less the offset
    mask: Mask | None  # which of the group these are; None for all
    offset: int = 0

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of these rows, of those of the group."""
        return values if self.mask is None else values[self.mask]

    def firsts(self, codes: NDArray[Any], size: int) -> RowNumbers:
        """Return the first row of each code below `size`, from a code for each of these rows."""
        firsts = np.full(size, MAX_ROW_NUMBER, np.int64)
        np.minimum.at(firsts, codes, self.numbers)
        return firsts + self.offset


class ValueCount(NamedTuple):
    """How many rows have a value, and the first of them."""

    rows: int
    first: int


@dataclass
class FieldCounts:
    """How many rows have a field, and each of its values; numbers as they are, texts as UTF-8, others as words."""

    most: int  # values that are counted
    items: int = 0
    counts: dict[Any, ValueCount] = field(default_factory=dict)  # empty once there are too many
    complete: bool = True  # False once there are too many
    low: Any = None  # the least number
    high: Any = None
    only_numbers: bool = True  # and null

    @classmethod
    def of(cls, name: str) -> "FieldCounts":
        """Return no counts yet, of a field or of LABELS."""
        return cls(MAX_COUNTED_LABELS if name == LABELS else MAX_FACET_VALUES)

    def add(self, values: Iterable[Any], rows: Iterable[int], firsts: Iterable[int]) -> None:
        """Add values, each once, with the number of their rows and the first of these."""
        if not self.complete:
            return
        for value, count, first in zip(values, rows, firsts, strict=True):
            before = self.counts.get(value)
            if before is not None:
                count, first = before.rows + count, min(before.first, first)
            self.counts[value] = ValueCount(count, first)
        self._leave_out_beyond(len(self.counts))

    def add_bounds(self, low: Any, high: Any) -> None:
        """Add the least and the largest of some numbers."""
        self.low = low if self.low is None else min(low, self.low)
        self.high = high if self.high is None else max(high, self.high)

    def _leave_out_beyond(self, values: int) -> None:
        """Stop counting values one by one if there are too many."""
        if values > self.most:
            self.complete, self.counts = False, {}

    def add_column(self, column: Column | None, rows: CountedRows) -> None:
        """Add some rows of a column; no row has the field where there is no column."""
        if isinstance(column, LabelColumn):
            self._add_labels(column, rows)
        elif isinstance(column, NumberColumn):
            self._add_numbers(column, rows)
        elif column is not None:
            codes, values = rows.of(column.codes), column.values
            counts = np.bincount(codes, minlength=WORDS + len(values))
            self._leave_out_beyond(int(np.count_nonzero(counts[WORDS:])))
            firsts = rows.firsts(codes, len(counts)) if self.complete else counts
            self._add_words(counts, firsts)
            self._add_sorted(values, counts[WORDS:], firsts[WORDS:])
            self.items += int(counts[WORDS:].sum())

    def _add_labels(self, column: LabelColumn, rows: CountedRows) -> None:
        codes, labels, sets = rows.of(column.codes), len(column.values), int(column.set_count[0])
        counts, starts = np.bincount(codes, minlength=sets), column.starts[:labels].astype(np.int64)
        self.items += int(counts[1:].sum())
        if labels:  # each is in some set
            firsts = np.minimum.reduceat(rows.firsts(codes, sets)[column.sets], starts)
            self._add_sorted(column.values, np.add.reduceat(counts[column.sets], starts), firsts)

    def _add_numbers(self, column: NumberColumn, rows: CountedRows) -> None:
        numbers = rows.of(column.values)
        if len(column.words):
            words, size = rows.of(column.words), WORDS + 1
            self._add_words(np.bincount(words, minlength=size), rows.firsts(words, size))
            numbers, rows = numbers[words == WORDS], rows._replace(numbers=rows.numbers[words == WORDS])
        if not len(numbers):
            return
        self.items += len(numbers)
        self.add_bounds(numbers.min().item(), numbers.max().item())
        if self.complete:
            distinct, counts = np.unique(numbers, return_counts=True)
            self._leave_out_beyond(len(distinct))
        if self.complete:
            firsts = rows.firsts(np.searchsorted(distinct, numbers), len(distinct))
            self.add(distinct.tolist(), counts.tolist(), firsts.tolist())

    def _add_sorted(self, values: SortedValues, counts: Counts, firsts: Counts) -> None:
        """Add the values of a dictionary; those that no row has are left out."""
        places, first_text = np.flatnonzero(counts), len(values.numbers)
        self._leave_out_beyond(len(places))
        numbers = places[places < first_text]
        if len(numbers):
            self.add_bounds(values.numbers[numbers[0]].item(), values.numbers[numbers[-1]].item())
        self.only_numbers &= len(numbers) == len(places)
        if self.complete:
            texts = [values.texts[place] for place in (places[len(numbers) :] - first_text).tolist()]
            self.add([*values.numbers[numbers].tolist(), *texts], counts[places].tolist(), firsts[places].tolist())

    def _add_words(self, counts: Counts, firsts: Counts) -> None:
        """Add the rows of each word; of lists and objects only that they have the field."""
        self.items += int(counts[:WORDS].sum() - counts[MISSING.code])
        self.only_numbers &= not (counts[FALSE.code] or counts[TRUE.code] or counts[OTHER.code])
        for word in COUNTED_WORDS:
            if counts[word.code]:
                self.add([word], [int(counts[word.code])], [int(firsts[word.code])])


def current_rows(groups: list[RowGroup], rows: Bitmap) -> list[CountedRows]:
    """Return which rows of each group count: a row that changed counts in the last group that has it.

    rows: those to count, of all.
    """
    left, counted = rows.copy(), []
    places = np.arange(max((group.rows for group in groups), default=0))  # once, since it takes a while
    for group in reversed(groups):
        offset = 0
        if group.numbers is None:
            numbers, offset = places[: group.rows], group.first
            mask = read_span(left, group.first, group.rows)
            set_span(left, group.first, np.zeros(group.rows, bool))
        else:
            numbers = group.numbers
            mask = _last_of_each(numbers) & is_set(left, numbers)
            set_rows(left, numbers, np.zeros(group.rows, bool))
        every = bool(mask.all())
        counted.append(CountedRows(numbers if every else numbers[mask], None if every else mask, offset))
    return counted[::-1]


def _last_of_each(numbers: RowNumbers) -> Mask:
    """Return which entries are the last ones of their row."""
    last = np.ones(len(numbers), bool)
    if not (np.diff(numbers) > 0).all():
        last[:] = False
        last[len(numbers) - 1 - np.unique(numbers[::-1], return_index=True)[1]] = True
    return last


def count_by_reading(connection: Connection, rows: Bitmap, name: str) -> FieldCounts:
    """Count the values of a field, or LABELS, by reading all items; TooLarge if that takes too long."""
    counts, bits = FieldCounts.of(name), rows.tobytes()
    for row, values in _read_values(connection, name):
        if not bits[row >> 3] >> (row & 7) & 1:
            continue
        counts.items += 1
        for value in values:
            if isinstance(value, Word):
                counts.only_numbers &= value is NULL
            elif isinstance(value, bytes):
                counts.only_numbers = False
            else:
                counts.add_bounds(value, value)
            if value is not OTHER:
                counts.add([value], [1], [row])
    return counts


def _read_values(connection: Connection, name: str) -> Iterator[tuple[int, list[Any]]]:
    """Yield the rows that have a field, in order, with its value as it is counted; or with all labels."""
    column = "labels" if name == LABELS else "metadata"
    cursor = connection.execute(f"SELECT row, {column} FROM items ORDER BY row")
    deadline = time.monotonic() + MAX_SQL_SECONDS
    while rows := cursor.fetchmany(ROWS_PER_CHECK):
        if time.monotonic() > deadline:
            raise TooLarge(f"fields: {name!r} takes more than {MAX_SQL_SECONDS} seconds. Name it in filter_fields.")
        for row, text in rows:
            if name == LABELS:
                if labels := parse_json(text, list, "labels"):
                    yield row, [_counted(label) for label in labels]
            elif text is not None:
                value = _value_at(json.loads(text), name.split("."))
                if value is not MISSING:
                    yield row, [_counted(value)]


def _value_at(value: Any, path: list[str]) -> Any:
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return MISSING
        value = value[key]
    return value


def _counted(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return WORD_OF[value]
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    return sql_numbers([value]).pop() if isinstance(value, int | float) else OTHER


MAX_CACHED_FACETS = 16  # facets are kept, of one commit
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
) -> tuple[int, dict[str, FieldCounts]]:
    """Count the rows that meet a condition, and the values of their LABELS and of these fields.

    Without fields, of all that have columns. Raises MovedOn as `FilterColumns.matching` does.
    """
    allowed = None if condition is None else columns.matching(connection, condition)
    table = columns.table(connection, fields)
    rows = _live_rows(connection, table.deleted) if allowed is None else allowed
    counted = current_rows([group for group, _ in table.groups], rows)
    counts: dict[str, FieldCounts] = {}
    for name in (LABELS, *(sorted(table.names - {LABELS}) if fields is None else fields)):
        if name in table.names:
            counts[name] = FieldCounts.of(name)
            for (_, by_name), group_rows in zip(table.groups, counted, strict=True):
                counts[name].add_column(by_name[name], group_rows)
        else:
            counts[name] = count_by_reading(connection, rows, name)
    return get_meta(connection, "items") if allowed is None else count_bits(allowed), counts


def build_facets(connection: Connection, items: int, counts: dict[str, FieldCounts], limit: int) -> Facets:
    """Return the most frequent of the values that were counted, with the ids of their first rows."""
    keys = {name: _listed_keys(some, limit, numbers=name == LABELS) for name, some in counts.items()}
    ids = ids_of(connection, [counts[name].counts[key].first for name in keys for key in keys[name]])
    labels, *others = [_facet(name, some, keys[name], ids) for name, some in counts.items()]
    return Facets(items, labels, sorted(others, key=lambda facet: (-facet.items, facet.field)))


def _live_rows(connection: Connection, deleted: Bitmap) -> Bitmap:
    rows = np.full(-(-get_meta(connection, "next_row") // 8), 0xFF, np.uint8)
    rows[: len(deleted)] &= ~deleted
    return rows


def _listed_keys(counts: FieldCounts, limit: int, numbers: bool) -> list[Any]:
    """Return the most frequent values, as they are counted; none if all are numbers and too many, unless `numbers`."""
    if not numbers and counts.only_numbers and len(counts.counts) > limit:
        return []
    most = sorted((count.rows for count in counts.counts.values()), reverse=True)[:limit]
    frequent = (key for key, count in counts.counts.items() if count.rows >= most[-1])  # so that few are compared
    return heapq.nsmallest(limit, frequent, key=lambda key: (-counts.counts[key].rows, *_value_order(key)))


def _value_order(key: Any) -> tuple[int, Any]:
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


def _facet(name: str, counts: FieldCounts, keys: list[Any], ids: dict[int, Id]) -> Facet:
    listed = [(plain_key(key), *counts.counts[key]) for key in keys]
    values = [FacetValue(value, rows, ids[first]) for value, rows, first in listed]
    bounds = (None if bound is None else plain_key(bound) for bound in (counts.low, counts.high))
    return Facet(name, counts.items, len(counts.counts) if counts.complete else None, values, *bounds)


MAX_TYPED = 1000  # characters of what is typed are read
MAX_SUGGESTED = 100
MAX_VALUE_LENGTH = 80  # characters of a value of a field that is suggested
MAX_KNOWN_VALUES = 1 << 16  # labels and values of fields that are compared, the fields with fewest values first
MAX_NEAR_LABELS = 4096  # labels are compared, the most frequent ones
MAX_NEAR_WORDS = 5  # words of what is typed are compared
MIN_LIKENESS = 0.7  # a near label is at least so alike
MIN_ID_LIKENESS = 0.5
NEIGHBOURS = 5  # ids on each side are suggested

SuggestionKind = Literal["label", "id", "field"]


@dataclass(frozen=True)
class Suggestion:
    """What somebody may mean: a label, an id, or a value of a field."""

    kind: SuggestionKind
    value: Any
    count: int  # of the items that have it
    field: str | None = None  # of the metadata
    near: bool = False  # it does not begin so, but is nearly the same


class KnownValue(NamedTuple):
    """A label or a value of a field, and how it is compared."""

    folded: str
    suggestion: Suggestion


class KnownValues(NamedTuple):
    """What can be suggested of one commit, beside ids."""

    seq: int
    values: list[KnownValue]
    near: dict[str, list[Suggestion]]  # labels by themselves and by their words


def check_typed(text: Any) -> str:
    """Return what was typed, without space around it."""
    if not isinstance(text, str):
        raise WrongType(f"text: expected a string, got {text!r:.100}")
    if len(text) > MAX_TYPED:
        raise InvalidInput(f"text: expected at most {MAX_TYPED} characters, got {len(text)}")
    if not is_unicode(text):
        raise InvalidInput("text: expected whole characters, got half of a surrogate pair")
    return text.strip()


def is_unicode(text: str) -> bool:
    """Return whether a text can be stored: halves of surrogate pairs cannot."""
    try:
        return text.encode() is not None
    except UnicodeEncodeError:
        return False


def known_values(seq: int, counts: dict[str, FieldCounts]) -> KnownValues:
    """Return the labels and the short values of these counts."""
    values: list[KnownValue] = []
    for name in sorted(counts, key=lambda name: (name != LABELS, len(counts[name].counts), name)):
        if len(values) + len(counts[name].counts) <= MAX_KNOWN_VALUES:
            values += _values_of(name, counts[name])
    labels = [one for one in values if one.suggestion.kind == "label"]
    near: dict[str, list[Suggestion]] = {}
    for folded, suggestion in sorted(labels, key=lambda one: -one.suggestion.count)[:MAX_NEAR_LABELS]:
        for word in dict.fromkeys((folded, *_words(folded))):
            near.setdefault(word, []).append(suggestion)
    return KnownValues(seq, values, near)


def _values_of(name: str, counts: FieldCounts) -> Iterator[KnownValue]:
    field = None if name == LABELS else name
    for key, count in counts.counts.items():
        value = plain_key(key)
        if isinstance(value, bool) or value is None or (field and len(str(value)) > MAX_VALUE_LENGTH):
            continue
        yield KnownValue(fold(str(value)), Suggestion("field" if field else "label", value, count.rows, field))


def fold(text: str) -> str:
    """Return a text as it is compared: case and runs of space do not count."""
    return " ".join(text.casefold().split())


def _words(folded: str) -> list[str]:
    return "".join(character if character.isalnum() else " " for character in folded).split()


def suggest(connection: Connection, known: KnownValues, text: str, limit: int) -> list[Suggestion]:
    """Return at most so many suggestions for a text, which has no space around it."""
    typed = fold(text)
    if not typed:
        return []
    matches = [(place, one) for folded, one in known.values if (place := _place(typed, folded)) is not None]
    ids = [(_id_place(text, name), Suggestion("id", name, 1)) for name in ids_beginning(connection, text, limit)]
    if matches or ids:
        return [one for _, one in sorted([*matches, *ids], key=_order)[:limit]]
    return (_near_labels(known, typed, limit) + _near_ids(connection, text, limit))[:limit]


def _place(typed: str, folded: str) -> int | None:
    """Return 0 if it is the same, 1 if it begins so, 2 if a word in it begins so, None otherwise."""
    place = folded.find(typed)
    while place > 0 and folded[place - 1].isalnum():
        place = folded.find(typed, place + 1)
    return None if place < 0 else 2 if place else int(len(folded) != len(typed))


def _id_place(text: str, name: Id) -> int:
    return int(str(name) != text)


def _order(match: tuple[int, Suggestion]) -> tuple[Any, ...]:
    place, one = match
    return place, ("label", "field", "id").index(one.kind), -one.count, isinstance(one.value, str), one.value, one.field


def _near_labels(known: KnownValues, typed: str, limit: int) -> list[Suggestion]:
    """Return labels that are nearly the same, or have a word that nearly is; the most alike first."""
    words = [typed, *(word for word in _words(typed) if len(word) > 2)][: MAX_NEAR_WORDS + 1]
    near: dict[Suggestion, None] = {}
    for word in dict.fromkeys(words):
        for match in get_close_matches(word, known.near, n=limit, cutoff=MIN_LIKENESS):
            near |= dict.fromkeys(known.near[match])
    return [_as_near(one) for one in near][:limit]


def _as_near(one: Suggestion) -> Suggestion:
    return Suggestion(one.kind, one.value, one.count, one.field, near=True)


def _near_ids(connection: Connection, text: str, limit: int) -> list[Suggestion]:
    """Return ids that differ by one character, then those beside it in order that are alike."""
    edited = ids_one_edit_away(connection, text)
    beside = [name for name in ids_beside(connection, text, NEIGHBOURS) if likeness(text, name) >= MIN_ID_LIKENESS]
    names = dict.fromkeys([*_by_likeness(text, edited), *_by_likeness(text, beside)])
    return [Suggestion("id", name, 1, near=True) for name in names][:limit]


def _by_likeness(text: str, names: Iterable[Id]) -> list[Id]:
    return sorted(names, key=lambda name: (-likeness(text, name), str(name)))


def likeness(text: str, name: Id) -> float:
    """Return how much of two texts is the same, from 0 to 1."""
    return SequenceMatcher(None, text.casefold(), str(name).casefold(), autojunk=False).ratio()


class ValueCounts:
    """Counts by the columns of filters; what was counted of the latest commit is kept."""

    def __init__(self, store: Store, columns: FilterColumns) -> None:
        self.store, self.columns = store, columns
        self._facets = FacetCache()
        self._known = KnownValues(-1, [], {})

    def facets(self, condition: Condition | None, fields: tuple[str, ...] | None, limit: int) -> Facets:
        """Return how many items have each label, and each value of fields, of those that meet a condition."""
        key = None if condition is None else condition.key, fields, limit
        while True:
            with self.store.reading() as connection:
                seq = int(get_meta(connection, "seq"))
                facets = self._facets.get(seq, key)
                try:
                    if facets is None:
                        facets = build_facets(
                            connection, *count_values(connection, self.columns, condition, fields), limit
                        )
                except MovedOn:  # another filter has seen a later commit
                    continue
                self._facets.put(seq, key, facets)
                return facets

    def suggest(self, text: str, limit: int) -> list[Suggestion]:
        """Return labels, values and ids for what somebody types."""
        while True:
            with self.store.reading() as connection:
                seq, known = int(get_meta(connection, "seq")), self._known
                try:
                    if known.seq != seq:
                        _, counts = count_values(connection, self.columns, None, None)
                        counts.pop(lexical_field(connection) or "", None)  # its words are searched, not its values
                        known = self._known = known_values(seq, counts)
                except MovedOn:  # another filter has seen a later commit
                    continue
                return suggest(connection, known, text, limit)
