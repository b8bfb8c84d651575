"""The search page: a search box, filters, items to start with or to list, and the hits of a query; and uploads."""

import json
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from fastapi import Request
from starlette.datastructures import QueryParams
from starlette.responses import RedirectResponse, Response

from stillhash.collection import Collection
from stillhash.collection.filters.facets import MAX_SUGGESTED, Facet, Suggestion, fold
from stillhash.collection.types import Filter, Id
from stillhash.errors import InvalidInput, NotFound, StillhashError
from stillhash.server.dependencies import ExecutorParam, visible_executors
from stillhash.server.pages.cards import ViewModel, compare, describe_items
from stillhash.server.pages.queries import (
    COLUMN_HITS,
    MAX_PAGE_FILTERS,
    PageOptions,
    find_item,
    page_address,
    read_query,
    store_upload,
)
from stillhash.server.pages.rendering import form_text, page_router, render
from stillhash.server.pages.snippets import facets_code, listing_code, query_code
from stillhash.server.pages.votes import own_votes, vote_source
from stillhash.server.write_queue import CollectionExecutor

# ---- filters ----

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


# ---- what the text of the box means ----

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


# ---- routes ----

START_ITEMS = 12  # offered on the start page
ITEMS_A_PAGE = 48  # of a page that lists items
SUGGESTIONS = 8  # below the search box

router = page_router("read")


@router.get("/")
async def start(request: Request) -> Response:
    name = next(iter(visible_executors(request)), None)
    if name is None:
        raise NotFound("This key has no collection of this server")
    return RedirectResponse(f"/c/{quote(name)}", 307)


@router.get("/c/{name}")
async def search(request: Request, executor: ExecutorParam, random: str = "", range: str = "") -> Response:
    """Show hits of an item (`like`), an upload (`q`) or words; what `search` means; or items to start with."""
    options, params = PageOptions(), request.query_params
    try:
        options = PageOptions.parse(params)
        if random and (items := await executor.read(lambda c: c.sample(1))):
            address = page_address(executor.name, {"like": json.dumps(items[0].id)}, options, page=1)
            return RedirectResponse(address, 303, {"cache-control": "no-store"})
        if range:
            return RedirectResponse(_range_address(executor.name, params, options, range), 303)
        return await _show(request, executor, options)
    except NotFound as error:
        missed = next((text for key in ("search", "like") if (text := form_text(params, key))), "")
        return await _render_miss(request, executor, options, missed, error)
    except StillhashError as error:
        return await _render_page(request, executor, options, status=error.status, error=error)


async def _show(request: Request, executor: CollectionExecutor, options: PageOptions) -> Response:
    params = request.query_params
    if typed := form_text(params, "search").strip():
        takes_words = await _takes_words(executor)
        meanings = await executor.read(lambda c: find_meanings(c, typed, takes_words))
        if not meanings:
            return await _render_miss(request, executor, options, typed)
        if meanings[0].condition is not None:
            return await _render_list(request, executor, options, meanings)
        return await _render_hits(request, executor, options, QueryParams(meanings[0].params), meanings)
    if form_text(params, "like") or form_text(params, "q") or form_text(params, "words").strip():
        return await _render_hits(request, executor, options, params, [])
    if options.filters:
        return await _render_list(request, executor, options, [])
    starts = await executor.read(lambda c: describe_items(c, c.sample(START_ITEMS)))
    return await _render_page(request, executor, options, starts=starts)


async def _render_hits(
    request: Request, executor: CollectionExecutor, options: PageOptions, params: QueryParams, meanings: list[Meaning]
) -> Response:
    """Render the hits of a query."""
    query = await read_query(request, executor, params)
    source = vote_source(request)
    results = await executor.read(lambda c: compare(c, query, options, own_votes(c, query, source)))
    if query.words is not None and not results["now"]["answer"].hits and options.page == 1:
        others = [one for one in meanings if one.condition is not None]
        if others:  # no item has the words, but a field has this value
            return await _render_list(request, executor, options, others)
        return await _render_miss(request, executor, options, query.words)
    return await _render_page(request, executor, options, query=query, results=results, meanings=meanings)


async def _render_list(
    request: Request, executor: CollectionExecutor, options: PageOptions, meanings: list[Meaning]
) -> Response:
    """Render the items that meet the filters, and what was typed where that is a condition."""
    where = _join(options.where, meanings[0].condition if meanings else None)
    after = _parse_after(form_text(request.query_params, "after"))

    def read(collection: Collection) -> ViewModel:
        items = collection.list_items(where, after=after, limit=ITEMS_A_PAGE + 1)
        cards = describe_items(collection, items[:ITEMS_A_PAGE], _filtered_labels(where))
        last = cards[-1]["name"] if len(items) > ITEMS_A_PAGE else None
        return {"items": cards, "total": collection.count(where), "last": last, "first": after is None}

    listed = await executor.read(read)
    return await _render_page(request, executor, options, where=where, listed=listed, meanings=meanings)


async def _render_miss(
    request: Request, executor: CollectionExecutor, options: PageOptions, typed: str, error: NotFound | None = None
) -> Response:
    """Render that nothing was found, and what is near it."""
    near = await executor.read(lambda c: near_meanings(c, typed))
    context: ViewModel = {"missed": typed, "near": near, "missing": error}
    return await _render_page(request, executor, options, status=200 if error is None else error.status, **context)


async def _render_page(
    request: Request,
    executor: CollectionExecutor,
    options: PageOptions | None = None,
    *,
    status: int = 200,
    where: Filter | None = None,
    **context: Any,
) -> Response:
    """Render the search page: a search box and filters, and what else its context has."""
    options, params = options or PageOptions(), request.query_params
    keys = ("search", "like", "q", "words")
    named = {key: form_text(params, key) for key in keys if form_text(params, key).strip()}
    with suppress(StillhashError):  # the page has an error of its own then
        condition = options.where if where is None else where
        context["filter_chips"] = await executor.read(
            lambda c: build_chips(c, executor.name, named, options, condition)
        )
        context["total_items"] = await executor.read(lambda c: c.count())
    query = context.get("query")
    if query is not None:
        context["code"] = query_code(executor.name, query, options)
    elif "listed" in context:
        context["code"] = listing_code(executor.name, where)
    elif "starts" in context:
        context["code"] = facets_code(executor.name)
    typed = form_text(params, "search") or form_text(params, "words") or (query.title if query and query.item else "")
    context |= {"takes_words": await _takes_words(executor), "options": options, "named": named}
    return render(request, "search.html", executor, status=status, typed=typed or context.get("missed", ""), **context)


async def _takes_words(executor: CollectionExecutor) -> bool:
    """Return whether words can be searched, by an encoder or by an index of words."""
    if executor.query_encoder is not None and executor.query_encoder.has_text:
        return True
    with suppress(StillhashError):
        return await executor.read(lambda c: c.lexical_field is not None)
    return False


def _join(*conditions: Filter | None) -> Filter | None:
    """Return the condition that all of these hold."""
    some = [condition for condition in conditions if condition is not None]
    return None if not some else some[0] if len(some) == 1 else {"$and": some}


def _filtered_labels(where: Filter | None) -> list[Any]:
    """Return the labels that a condition asks for, which come first on cards."""
    parts = [] if where is None else where.get("$and", [where])
    return [part["labels"] for part in parts if isinstance(part.get("labels"), str | int | float)]


def _range_address(name: str, params: QueryParams, options: PageOptions, field: str) -> str:
    """Return the address of the page with a range of numbers as one more filter."""
    condition = json.dumps(range_condition(field, form_text(params, "from"), form_text(params, "to")))
    query = {key: form_text(params, key) for key in ("search", "like", "q", "words") if form_text(params, key)}
    return page_address(name, query, options, filters=(*options.filters, condition), page=1)


def _parse_after(text: str) -> Id | None:
    """Return the id, as JSON, past which a list begins; None: at the first."""
    if not text:
        return None
    try:
        name = json.loads(text)
    except (ValueError, RecursionError):
        name = None
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise InvalidInput(f"after: expected an id as JSON, got {text[:40]!r}")
    return name


@router.get("/c/{name}/suggest")
async def suggest(request: Request, executor: ExecutorParam) -> Response:
    """Render suggestions for what is typed into the search box."""
    options, typed = PageOptions.parse(request.query_params), form_text(request.query_params, "search").strip()
    suggestions = await executor.read(lambda c: c.suggest(typed, SUGGESTIONS))
    meanings = [(suggested_meaning(one), one.near) for one in suggestions]
    if typed and await _takes_words(executor):
        meanings.append((Meaning("words", typed), False))
    return render(request, "suggestions.html", executor, meanings=meanings, typed=typed, options=options)


@router.post("/c/{name}/upload")
async def upload(request: Request, executor: ExecutorParam) -> Response:
    """Take a vector, an image or a text, and go to its hits."""
    options = PageOptions()
    try:
        options = PageOptions.parse(request.query_params)
        token = await store_upload(request, executor)
    except StillhashError as error:
        heading = "We could not read this file" if error.status == 422 else None
        return await _render_page(request, executor, options, status=error.status, error=error, heading=heading)
    return RedirectResponse(page_address(executor.name, {"q": token}, options, page=1), 303)
