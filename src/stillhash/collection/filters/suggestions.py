"""Suggest labels, ids and values of fields for what somebody types: what begins so, or else what is near."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from sqlite3 import Connection
from typing import Any, Literal, NamedTuple

from stillhash.collection.filters.facet_counts import ValueCounts
from stillhash.collection.filters.facets import plain_key
from stillhash.collection.storage.columns import LABELS
from stillhash.collection.storage.items import ids_beginning, ids_beside, ids_one_edit_away
from stillhash.collection.types import Id
from stillhash.errors import InvalidInput, WrongType

MAX_TYPED = 1000  # characters
MAX_SUGGESTED = 100
MAX_VALUE_LENGTH = 80  # characters of a value of a field that is suggested
MAX_KNOWN_VALUES = 1 << 16  # labels and values of fields that are compared, the fields with fewest values first
MAX_NEAR_LABELS = 4096  # the most frequent ones
MAX_NEAR_WORDS = 5  # of what is typed
MIN_LIKENESS = 0.7  # of a near label
MIN_ID_LIKENESS = 0.5
NEIGHBOURS = 5  # ids on each side

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


def known_values(seq: int, counts: dict[str, ValueCounts]) -> KnownValues:
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


def _values_of(name: str, counts: ValueCounts) -> Iterator[KnownValue]:
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
