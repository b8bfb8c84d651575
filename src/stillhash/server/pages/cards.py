"""Cards of items: what leads, a picture, a text or labels; labels cut to fit; ids cut in the middle."""

import json
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

from stillhash.collection import Collection, Item
from stillhash.server.pages.passages import TextHit, text_hit
from stillhash.server.pages.rendering import templates

CARD_LABEL_LENGTH = 26  # characters of the labels that fit beside each other on a card
SMALL_LABEL_LENGTH = 14  # and on a small card
LEADING_LABEL_LENGTH = 44  # in two lines of larger letters, where labels lead
CHIP_LENGTH = 3  # characters that the edges of a label take
ID_TAIL = 8  # characters at the end of an id that are never cut off
JOINERS = {"\u200d", "\ufe0f"}  # between the parts of an emoji
CARD_FIELDS, CARD_FIELD_LENGTH = 3, 40  # of the metadata, on a card without a picture

ViewModel = dict[str, Any]  # what a template shows


class CardLabel(NamedTuple):
    text: str
    shared: bool  # with the query


def describe_items(
    collection: Collection,
    items: Sequence[Item],
    known: Sequence[Any] = (),
    words: str | None = None,
    lexical_field: str | None = None,
    *,
    small: bool = False,
) -> list[ViewModel]:
    """Describe items, hits or others, for the macros of cards.html; known: the labels of the query."""
    pictured = collection.has_picture([item.id for item in items])
    return [
        _describe(item, stored, known, text_hit(item, words, lexical_field), small)
        for item, stored in zip(items, pictured, strict=True)
    ]


def _describe(item: Item, stored: bool, known: Sequence[Any], text: TextHit | None, small: bool) -> ViewModel:
    picture = text is None and (stored or isinstance((item.metadata or {}).get("image"), str))
    leads = text is None and not picture
    length = SMALL_LABEL_LENGTH if small and not text else LEADING_LABEL_LENGTH if leads else CARD_LABEL_LENGTH
    labels, rest = fit_labels(item.labels, known, length)
    return {
        "hit": item,
        "name": json.dumps(item.id),
        "text": text,
        "picture": picture,
        "labels": labels,
        "more_labels": rest,
        "shared_labels": sum(label in known for label in item.labels),
        "fields": short_fields(item) if leads else "",
    }


def fit_labels(labels: Sequence[Any], known: Sequence[Any], length: int) -> tuple[list[CardLabel], list[str]]:
    """Return the labels that a card shows, those of the query first, and the rest; one at least is shown."""
    ordered = sorted((CardLabel(str(label), label in known) for label in labels), key=lambda one: not one.shared)
    left, count = length, 0
    for one in ordered:
        left -= len(one.text) + CHIP_LENGTH
        if count and left < (CHIP_LENGTH + 2) * (count + 1 < len(ordered)):  # unless it is the last, +2 needs its space
            break
        count += 1
    return ordered[:count], [one.text for one in ordered[count:]]


def short_fields(item: Item) -> str:
    """Return the first short values of an item's metadata, for a card without a picture."""
    values = (
        f"{field} {value}"
        for field, value in (item.metadata or {}).items()
        if isinstance(value, (str, int, float)) and field != "image" and len(f"{field} {value}") <= CARD_FIELD_LENGTH
    )
    return " · ".join(value for value, _ in zip(values, range(CARD_FIELDS), strict=False))


def split_id(name: object) -> tuple[str, str]:
    """Return an id in two parts, the first of which may be cut; the second is empty if the id is short."""
    text = str(name)
    start = len(text) - ID_TAIL
    while start > 0 and (unicodedata.combining(text[start]) or {text[start], text[start - 1]} & JOINERS):
        start -= 1  # a letter stays with its accents, and an emoji whole
    return (text, "") if start <= 2 else (text[:start], text[start:])


templates.env.filters["split_id"] = split_id
