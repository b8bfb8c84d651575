"""What the text of the search box means: an item's id, a label, words, or a value of a field."""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from stillhash.collection import Collection
from stillhash.collection.suggestions import MAX_SUGGESTED, Suggestion, fold
from stillhash.collection.types import Filter
from stillhash.errors import InvalidInput, NotFound
from stillhash.server.pages.queries import PageOptions, find_item, page_address

NEAR_SUGGESTIONS = 12  # offered where nothing is found
MAX_MEANINGS = 6


@dataclass(frozen=True)
class Meaning:
    """One way to understand a text."""

    kind: Literal["item", "label", "words", "field"]
    value: Any  # the item's id, the label, the words, or the field's value
    count: int | None = None  # of the items that have it
    field: str | None = None

    @property
    def condition(self) -> Filter | None:
        """The condition that items meet; None for a query."""
        if self.kind == "label":
            return {"labels": self.value}
        return {self.field: self.value} if self.kind == "field" and self.field is not None else None

    @property
    def params(self) -> dict[str, str]:
        """The parameters of an address that mean this and nothing else, beside filters."""
        if self.kind == "item":
            return {"like": json.dumps(self.value)}
        return {"words": str(self.value)} if self.kind == "words" else {}

    def address(self, name: str, options: PageOptions) -> str:
        """Return the address of the search page that means this, with the same options."""
        added = () if self.condition is None else (json.dumps(self.condition),)
        filters = tuple(dict.fromkeys((*options.filters, *added)))
        return page_address(name, self.params, options, filters=filters, page=1)


def find_meanings(collection: Collection, text: str, takes_words: bool) -> list[Meaning]:
    """Return all ways to understand a text, in order: id, label, words, values of fields."""
    same = [
        one for one in collection.suggest(text, MAX_SUGGESTED) if not one.near and fold(str(one.value)) == fold(text)
    ]
    meanings = []
    with suppress(NotFound, InvalidInput):  # the second is of texts that no id is like
        meanings.append(Meaning("item", find_item(collection, text).id, 1))
    meanings += [Meaning("label", one.value, one.count) for one in same if one.kind == "label"]
    meanings += [Meaning("words", text)] * takes_words
    meanings += [Meaning("field", one.value, one.count, one.field) for one in same if one.kind == "field"]
    return meanings[:MAX_MEANINGS]


def near_meanings(collection: Collection, text: str) -> list[Meaning]:
    """Return labels, ids and values that begin with a text, or are near it."""
    with suppress(InvalidInput):
        return [suggested_meaning(one) for one in collection.suggest(text, NEAR_SUGGESTIONS)]
    return []


def suggested_meaning(one: Suggestion) -> Meaning:
    """Return what a suggestion means."""
    return Meaning("item" if one.kind == "id" else one.kind, one.value, one.count, one.field)
