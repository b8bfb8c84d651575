"""The filters of the search page: those that are active, and those that the labels and fields of the items offer."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from stillhash.collection import Collection
from stillhash.collection.facets import Facet
from stillhash.collection.types import Filter
from stillhash.errors import InvalidInput, StillhashError
from stillhash.server.pages.queries import COLUMN_HITS, MAX_PAGE_FILTERS, PageOptions, page_address

CHIP_VALUES = 20  # of a field
MAX_CHIP_FIELDS = 12
MAX_CHIP_LENGTH = 60  # characters of a value; longer ones are texts to read
WORD_TEXTS = {True: "yes", False: "no", None: "none"}


@dataclass(frozen=True)
class Chip:
    """A filter to add or to remove."""

    text: str
    address: str  # of the page with it, or without it
    count: int | None = None


class ChipGroup(NamedTuple):
    """The filters that a field offers: its values, or a range of numbers."""

    field: str
    chips: list[Chip]
    distinct: int | None
    minimum: float | None = None
    maximum: float | None = None


class FilterChips(NamedTuple):
    """All filters of a page."""

    active: list[Chip]
    labels: ChipGroup | None
    fields: list[ChipGroup]


def build_chips(
    collection: Collection, name: str, params: dict[str, Any], options: PageOptions, where: Filter | None
) -> FilterChips:
    """Return the filters of a page: of its query's parameters, options, and the condition that its items meet."""
    active = []
    for text in options.filters:
        others = tuple(one for one in options.filters if one != text)
        active.append(Chip(describe_condition(json.loads(text)), _address(name, params, options, others)))
    if len(options.filters) >= MAX_PAGE_FILTERS:
        return FilterChips(active, None, [])
    try:
        facets = collection.facets(where, limit=CHIP_VALUES)
    except StillhashError:  # the page has an error of its own then
        return FilterChips(active, None, [])

    def group(facet: Facet) -> ChipGroup:
        chips = []
        for one in facet.values:
            condition = json.dumps({facet.field: one.value})
            if condition not in options.filters and one.count < facets.items and is_short(one.value):
                address = _address(name, params, options, (*options.filters, condition))
                chips.append(Chip(describe_value(one.value), address, one.count))
        bounds = () if facet.values or facet.minimum == facet.maximum else (facet.minimum, facet.maximum)
        return ChipGroup(facet.field, chips, facet.distinct, *bounds)

    labels, fields = group(facets.labels), [group(facet) for facet in facets.fields if is_offered(facet)]
    fields = [one for one in fields if one.chips or one.minimum is not None][:MAX_CHIP_FIELDS]
    return FilterChips(active, labels if labels.chips else None, fields)


def _address(name: str, params: dict[str, Any], options: PageOptions, filters: Iterable[str]) -> str:
    return page_address(name, params, options, filters=tuple(filters), hits=COLUMN_HITS, page=1)


def is_short(value: Any) -> bool:
    return len(str(value)) <= MAX_CHIP_LENGTH


def is_offered(facet: Facet) -> bool:
    """Return whether a field divides the items: not where each has a value of its own, as names and texts are."""
    if facet.values:
        return facet.values[0].count > 1 and any(is_short(one.value) for one in facet.values)
    return facet.minimum is not None


def describe_value(value: Any) -> str:
    """Return a value as people read it."""
    return WORD_TEXTS[value] if value is None or isinstance(value, bool) else str(value)


def describe_condition(condition: Filter) -> str:
    """Return a condition as people read it; as JSON where it is more than a value or a range."""
    ((field, operand),) = condition.items() if len(condition) == 1 else (("$and", None),)
    if field.startswith("$"):
        return json.dumps(condition)
    if not isinstance(operand, dict):
        return describe_value(operand) if field == "labels" else f"{field}: {describe_value(operand)}"
    match operand:
        case {"$gte": low, "$lte": high} if len(operand) == 2:
            return f"{field}: {low} to {high}"
        case {"$gte": low} if len(operand) == 1:
            return f"{field}: from {low}"
        case {"$lte": high} if len(operand) == 1:
            return f"{field}: up to {high}"
    return json.dumps(condition)


def range_condition(field: str, low: str, high: str) -> Filter:
    """Return the condition of a range of numbers, as two fields of a form have it; one of them may be empty."""
    bounds = {operator: _number(text) for operator, text in (("$gte", low), ("$lte", high)) if text.strip()}
    if not bounds:
        raise InvalidInput("range: expected a number to start from, or one to end with, got neither")
    return {field: bounds}


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInput(f"range: expected a number, got {text[:40]!r}")
    return int(number) if number.is_integer() else number
