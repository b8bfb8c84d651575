"""The search page: a search box, filters, items to start with or to list, and the hits of a query; and uploads."""

import json
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from fastapi import Request
from starlette.datastructures import QueryParams
from starlette.responses import RedirectResponse, Response

from stillhash.collection import Collection
from stillhash.collection.types import Filter, Id
from stillhash.errors import InvalidInput, NotFound, StillhashError
from stillhash.server.dependencies import ExecutorParam, visible_executors
from stillhash.server.pages import view_models
from stillhash.server.pages.cards import ViewModel, describe_items
from stillhash.server.pages.filter_chips import build_chips, range_condition
from stillhash.server.pages.meanings import Meaning, find_meanings, near_meanings, suggested_meaning
from stillhash.server.pages.queries import PageOptions, page_address, read_query
from stillhash.server.pages.rendering import form_text, page_router, render
from stillhash.server.pages.search_code import facets_code, listing_code, query_code
from stillhash.server.pages.uploads import store_upload
from stillhash.server.pages.votes import own_votes, vote_source
from stillhash.server.write_queue import CollectionExecutor

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
    results = await executor.read(lambda c: view_models.compare(c, query, options, own_votes(c, query, source)))
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
