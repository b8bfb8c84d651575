"""The search page: hits of the current model beside those of an earlier one, uploads, thumbs and explanations."""

import json
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.responses import RedirectResponse, Response

from stillhash.collection import Collection, Item
from stillhash.collection.validation import picture_type
from stillhash.errors import InvalidInput, NotFound, StillhashError
from stillhash.numeric.validation import check_features
from stillhash.server.dependencies import ExecutorParam, app_state, visible_executors
from stillhash.server.pages import view_models
from stillhash.server.pages.passages import text_hit
from stillhash.server.pages.rendering import form_text, page_router, parse_integer, read_form, render
from stillhash.server.pages.thumbnails import draw_thumbnail, find_thumbnail, thumbnail_response
from stillhash.server.pages.view_models import PageQuery, Ranks, ViewModel
from stillhash.server.query_cache import HitVote, Picture, UploadedQuery, parse_code, parse_vector
from stillhash.server.write_queue import CollectionExecutor

START_ITEMS = 12  # offered on the start page
MAX_UPLOAD_BYTES = 8 << 20

read_router, feedback_router, write_router = page_router("read"), page_router("feedback"), page_router("write")


@read_router.get("/")
async def start(request: Request) -> Response:
    name = next(iter(visible_executors(request)), None)
    if name is None:
        raise NotFound("This key has no collection of this server")
    return RedirectResponse(f"/c/{quote(name)}", 307)


@read_router.get("/c/{name}")
async def search(
    request: Request,
    executor: ExecutorParam,
    like: str = "",
    q: str = "",
    words: str = "",
    against: str = "0",
    random: str = "",
) -> Response:
    """Show the hits of an item (`like`), of an upload (`q`) or of words; without any, items to start with."""
    try:
        if random and (items := await executor.read(lambda c: c.sample(1))):
            params = {"like": json.dumps(items[0].id)} | ({"against": against} if against != "0" else {})
            address = f"/c/{quote(executor.name)}?{urlencode(params)}"
            return RedirectResponse(address, 303, {"cache-control": "no-store"})
        if like or q or words.strip():
            query = await _page_query(request, executor, like, q, words)
            results = await _compare(request, executor, query, against)
            return await _render_page(request, executor, query=query, results=results)
    except StillhashError as error:
        context = {"error": error, "typed": like, "typed_words": words}
        return await _render_page(request, executor, status=error.status, **context)
    starts = await executor.read(lambda c: [(item, text_hit(item)) for item in c.sample(START_ITEMS)])
    return await _render_page(request, executor, starts=starts)


async def _render_page(
    request: Request, executor: CollectionExecutor, *, status: int = 200, **context: Any
) -> Response:
    """Render the search page, with a box for words where these can be searched."""
    takes_words = executor.query_encoder is not None and executor.query_encoder.has_text
    if not takes_words:
        with suppress(StillhashError):  # the page has an error of its own then
            takes_words = await executor.read(lambda c: c.lexical_field is not None)
    return render(request, "search.html", executor, status=status, takes_words=takes_words, **context)


async def _page_query(request: Request, executor: CollectionExecutor, like: str, q: str, words: str = "") -> PageQuery:
    if like:
        return await executor.read(lambda c: view_models.item_query(c, like))
    if words:
        typed, encoder = words.strip(), executor.query_encoder
        vector = None
        if encoder is not None and encoder.has_text:
            vector = await executor.encode_query(typed)
        elif not await executor.read(lambda c: c.lexical_field is not None):
            raise InvalidInput("words: expected a collection with an encoder of texts, or a lexical field")
        return await executor.read(lambda c: view_models.words_query(c, typed, vector))
    upload = app_state(request).query_cache.get(executor.name, q)
    return PageQuery(upload.vector, q, None, upload.title)


async def _compare(
    request: Request, executor: CollectionExecutor, query: PageQuery, against: str, previous: Ranks | None = None
) -> ViewModel:
    version, votes = parse_integer(against, "against"), app_state(request).query_cache.votes(executor.name, query.name)
    return await executor.read(lambda c: view_models.compare(c, query, version, votes, previous))


@read_router.post("/c/{name}/upload")
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


@feedback_router.post("/c/{name}/thumb")
async def thumb(request: Request, executor: ExecutorParam) -> Response:
    """Learn from a thumb, and show the new results and which hits moved."""
    form = await read_form(request)
    like, q, words, name = (form_text(form, field) for field in ("like", "q", "words", "id"))
    up, against = form_text(form, "up"), form_text(form, "against")
    parse_integer(against, "against")  # before anything is learnt
    query = await _page_query(request, executor, like, q, words)
    vector = query.vector
    if vector is None:
        raise InvalidInput("words: expected an encoder of texts to learn from a thumb")

    def learn(collection: Collection) -> tuple[Ranks, Item, int]:
        previous, item = view_models.search(collection, query), view_models.find_item(collection, name)
        version = collection.feedback(vector, item.id, "up" if up == "1" else "down", source="page")
        return view_models.rank_by_name(previous), item, version

    previous, item, version = await executor.write(learn)
    vote = HitVote(up == "1", version)
    app_state(request).query_cache.add_vote(executor.name, query.name, json.dumps(item.id), vote)
    results = await _compare(request, executor, query, against, previous)
    context: ViewModel = {"query": query, "results": results, "learnt": version, "voted": item}
    return render(request, "results.html", executor, **context)


@write_router.post("/c/{name}/labels")
async def relabel(request: Request, executor: ExecutorParam) -> Response:
    """Replace the labels of an item, and learn from them."""
    form = await read_form(request)
    name, labels = form_text(form, "id"), form_text(form, "labels")

    def learn(collection: Collection) -> tuple[PageQuery, int]:
        item = view_models.find_item(collection, name)
        collection.relabel([item.id], [view_models.parse_labels(labels, item.labels)])
        return view_models.item_query(collection, name), collection.flush()

    query, version = await executor.write(learn)
    return render(request, "labels.html", executor, query=query, learnt=version)


@read_router.get("/c/{name}/explain")
async def explain(
    request: Request,
    executor: ExecutorParam,
    id: str,
    like: str = "",
    q: str = "",
    words: str = "",
    against: str = "0",
    left: str = "",
) -> Response:
    """Explain the rank of a hit."""
    query, other = await _page_query(request, executor, like, q, words), parse_integer(against, "against")
    hit = await executor.read(lambda c: view_models.explain_hit(c, query, id, other, left=bool(left)))
    return render(request, "explanation.html", executor, query=query, why=hit)


@read_router.get("/c/{name}/picture")
async def picture(request: Request, executor: ExecutorParam, id: str = "", q: str = "") -> Response:
    """Return the thumbnail of an item, or of an upload."""
    state = app_state(request)
    if q:
        query = state.query_cache.get(executor.name, q)
        return thumbnail_response(request, query.picture or draw_thumbnail(query.title))

    def find(collection: Collection) -> Picture:
        item = view_models.find_item(collection, id)
        return find_thumbnail(item, collection.picture(item.id), state.settings.images)

    return thumbnail_response(request, await executor.read(find))
