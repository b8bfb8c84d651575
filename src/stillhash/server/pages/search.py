"""The search page: a search box, items to start with, and the hits of a query; and uploads."""

import json
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.responses import RedirectResponse, Response

from stillhash.collection.validation import picture_type
from stillhash.errors import InvalidInput, NotFound, StillhashError
from stillhash.numeric.validation import check_features
from stillhash.server.dependencies import ExecutorParam, app_state, visible_executors
from stillhash.server.pages import view_models
from stillhash.server.pages.passages import text_hit
from stillhash.server.pages.queries import PageOptions, page_address, read_query
from stillhash.server.pages.rendering import form_text, page_router, read_form, render
from stillhash.server.pages.votes import own_votes, vote_source
from stillhash.server.query_cache import Picture, UploadedQuery, parse_code, parse_vector
from stillhash.server.write_queue import CollectionExecutor

START_ITEMS = 12  # offered on the start page
MAX_UPLOAD_BYTES = 8 << 20

router = page_router("read")


@router.get("/")
async def start(request: Request) -> Response:
    name = next(iter(visible_executors(request)), None)
    if name is None:
        raise NotFound("This key has no collection of this server")
    return RedirectResponse(f"/c/{quote(name)}", 307)


@router.get("/c/{name}")
async def search(
    request: Request, executor: ExecutorParam, like: str = "", q: str = "", words: str = "", random: str = ""
) -> Response:
    """Show the hits of an item (`like`), of an upload (`q`) or of words; without any, items to start with."""
    options = PageOptions()
    try:
        options = PageOptions.parse(request.query_params)
        if random and (items := await executor.read(lambda c: c.sample(1))):
            address = page_address(executor.name, {"like": json.dumps(items[0].id)}, options)
            return RedirectResponse(address, 303, {"cache-control": "no-store"})
        if like or q or words.strip():
            query = await read_query(request, executor, request.query_params)
            source = vote_source(request)
            results = await executor.read(lambda c: view_models.compare(c, query, options, own_votes(c, query, source)))
            return await _render_page(request, executor, options, query=query, results=results)
    except StillhashError as error:
        context = {"error": error, "typed": like, "typed_words": words}
        return await _render_page(request, executor, options, status=error.status, **context)
    starts = await executor.read(lambda c: [(item, text_hit(item)) for item in c.sample(START_ITEMS)])
    return await _render_page(request, executor, options, starts=starts)


async def _render_page(
    request: Request,
    executor: CollectionExecutor,
    options: PageOptions | None = None,
    *,
    status: int = 200,
    **context: Any,
) -> Response:
    """Render the search page, with a box for words where these can be searched."""
    takes_words = executor.query_encoder is not None and executor.query_encoder.has_text
    if not takes_words:
        with suppress(StillhashError):  # the page has an error of its own then
            takes_words = await executor.read(lambda c: c.lexical_field is not None)
    context |= {"takes_words": takes_words, "options": options or PageOptions()}
    return render(request, "search.html", executor, status=status, **context)


@router.post("/c/{name}/upload")
async def upload(request: Request, executor: ExecutorParam) -> Response:
    """Take a vector, an image or a text, and go to its hits."""
    state = app_state(request)
    try:
        form = await read_form(request, min(MAX_UPLOAD_BYTES, state.settings.max_body_bytes))
        try:
            token = state.query_cache.put(executor.name, await _uploaded_query(executor, form))
        finally:
            await form.close()
    except StillhashError as error:
        heading = "We could not read this file" if error.status == 422 else None
        return await _render_page(request, executor, status=error.status, error=error, heading=heading)
    return RedirectResponse(f"/c/{quote(executor.name)}?q={token}", 303)


async def _uploaded_query(executor: CollectionExecutor, form: FormData) -> UploadedQuery:
    file, numbers, words = form.get("file"), form_text(form, "numbers"), form_text(form, "words").strip()
    if words:
        return UploadedQuery(await executor.encode_query(words), words, None)
    data, title = b"", ""
    if isinstance(file, UploadFile):
        data, title = await file.read(), file.filename or "a file"
    data, title = (data, title) if data else (numbers.encode(), "pasted numbers")
    if not data.strip():
        raise InvalidInput("file: expected a file or a list of numbers, got nothing")
    kind = picture_type(data)
    if executor.collection.codes_only:
        return UploadedQuery(parse_code(data, executor.collection.bits), title, None)
    if kind is None:
        vector = await executor.read(lambda c: parse_vector(data, c.dim))
    else:
        vector = await executor.encode_query(data)
    (features,) = check_features(vector[None], "file", columns=executor.collection.dim, whose="this collection")
    return UploadedQuery(features, title, None if kind is None else Picture(data, kind))
