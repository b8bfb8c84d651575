"""The search page: hits of the current model beside those of an earlier one, uploads, thumbs and explanations."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import Query, Request
from starlette.datastructures import FormData, UploadFile
from starlette.responses import RedirectResponse, Response

from stillhash.collection import Collection
from stillhash.collection.validation import picture_type
from stillhash.errors import InvalidInput, StillhashError
from stillhash.numeric.validation import check_features
from stillhash.server.dependencies import ExecutorParam, app_state
from stillhash.server.pages import view_models
from stillhash.server.pages.rendering import form_text, page_router, parse_integer, read_form, render
from stillhash.server.pages.thumbnails import Picture, draw_thumbnail, find_thumbnail, thumbnail_response
from stillhash.server.query_cache import HitVote, UploadedQuery, active_votes, parse_vector
from stillhash.server.write_queue import CollectionExecutor

START_ITEMS = 12  # offered on the start page
MAX_UPLOAD_BYTES = 8 << 20

read_router, write_router = page_router("read"), page_router("write")

Text = Annotated[str, Query()]


@read_router.get("/")
async def start(request: Request) -> Response:
    return RedirectResponse(f"/c/{quote(next(iter(app_state(request).executors)))}", 307)


@read_router.get("/c/{name}")
async def search(
    request: Request, executor: ExecutorParam, like: Text = "", q: Text = "", against: Text = "0", random: Text = ""
) -> Response:
    """Show the hits of an item (`like`) or of an upload (`q`); without either, items to start with."""
    try:
        if random and (items := await executor.read(lambda c: c.sample(1))):
            params = {"like": json.dumps(items[0].id)} | ({"against": against} if against != "0" else {})
            address = f"/c/{quote(executor.name)}?{urlencode(params)}"
            return RedirectResponse(address, 303, {"cache-control": "no-store"})
        if like or q:
            query = await _page_query(request, executor, like, q)
            comparison = await _compare(request, executor, query, parse_integer(against, "against"))
            return _render_search(request, executor, query=query, results=comparison)
    except StillhashError as error:
        return _render_search(request, executor, status=error.status, error=error, typed=like)
    items = await executor.read(lambda c: c.sample(START_ITEMS))
    starts = [(str(item.id), json.dumps(item.id), item.labels) for item in items]
    return _render_search(request, executor, starts=starts)


def _render_search(request: Request, executor: CollectionExecutor, *, status: int = 200, **context: Any) -> Response:
    context |= {"name": executor.name, "dim": executor.collection.dim, "by_image": executor.query_encoder is not None}
    context["by_text"] = executor.query_encoder is not None and executor.query_encoder.has_text
    return render(request, "search.html", status=status, **context)


async def _page_query(request: Request, executor: CollectionExecutor, like: str, q: str) -> view_models.PageQuery:
    if like:
        return await executor.read(lambda c: view_models.item_query(c, like))
    return view_models.upload_query(app_state(request).query_cache.get(q), q)


async def _compare(
    request: Request,
    executor: CollectionExecutor,
    query: view_models.PageQuery,
    against: int,
    previous: list[str] | None = None,
) -> view_models.Comparison:
    votes = app_state(request).query_cache.votes(executor.name, query.name)

    def compare(collection: Collection) -> view_models.Comparison:
        thumbs = active_votes(votes, collection.versions()) if votes else {}
        return view_models.compare(collection, query, against, thumbs, previous)

    return await executor.read(compare)


@read_router.post("/c/{name}/upload")
async def upload(request: Request, executor: ExecutorParam) -> Response:
    """Take a vector, an image or a text, and go to its hits."""
    state = app_state(request)
    try:
        form = await read_form(request, min(MAX_UPLOAD_BYTES, state.settings.max_body_bytes))
        try:
            token = state.query_cache.put(await _uploaded_query(executor, form))
        finally:
            await form.close()
    except StillhashError as error:
        title = "We could not read this file" if error.status == 422 else None
        return _render_search(request, executor, status=error.status, error=error, error_title=title)
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
    vector = await executor.encode_query(data) if kind is not None else parse_vector(data)
    (features,) = check_features(vector[None], "file", columns=executor.collection.dim, whose="this collection")
    return UploadedQuery(features, title, None if kind is None else Picture(data, kind))


@write_router.post("/c/{name}/thumb")
async def thumb(request: Request, executor: ExecutorParam) -> Response:
    """Learn from a thumb, and show the new results and which hits moved."""
    form = await read_form(request)
    like, q, name, up = (form_text(form, field) for field in ("like", "q", "id", "up"))
    against = parse_integer(form_text(form, "against"), "against")
    query = await _page_query(request, executor, like, q)

    def learn(collection: Collection) -> tuple[list[str], str, int]:
        previous, item = view_models.ranking(collection, query), view_models.find_item(collection, name)
        version = collection.feedback(query.vector, item.id, up == "1", source="page")
        return previous, json.dumps(item.id), version

    previous, item, version = await executor.write(learn)
    app_state(request).query_cache.add_vote(executor.name, query.name, item, HitVote(up == "1", version))
    results = await _compare(request, executor, query, against, previous)
    gone = "" if any(card.name == item for card in results.now.cards) else json.loads(item)
    context: dict[str, Any] = {"name": executor.name, "query": query, "results": results}
    return render(request, "results.html", **context, learnt=version, gone=gone)


@write_router.post("/c/{name}/labels")
async def relabel(request: Request, executor: ExecutorParam) -> Response:
    """Replace the labels of an item, and learn from them."""
    form = await read_form(request)
    name, labels = form_text(form, "id"), form_text(form, "labels")

    def learn(collection: Collection) -> tuple[view_models.PageQuery, int]:
        item = view_models.find_item(collection, name)
        collection.relabel([item.id], [view_models.parse_labels(labels, item.labels)])
        return view_models.item_query(collection, name), collection.flush()

    query, version = await executor.write(learn)
    return render(request, "labels.html", name=executor.name, query=query, learnt=version)


@read_router.get("/c/{name}/explain")
async def explain(
    request: Request,
    executor: ExecutorParam,
    id: Text,
    like: Text = "",
    q: Text = "",
    against: Text = "0",
    left: Text = "",
) -> Response:
    """Explain the rank of a hit."""
    query, other = await _page_query(request, executor, like, q), parse_integer(against, "against")
    hit = await executor.read(lambda c: view_models.explain_hit(c, query, id, other, left=bool(left)))
    return render(request, "explanation.html", name=executor.name, query=query, why=hit, bits=executor.collection.bits)


@read_router.get("/c/{name}/picture")
async def picture(request: Request, executor: ExecutorParam, id: Text = "", q: Text = "") -> Response:
    """Return the thumbnail of an item, or of an upload."""
    state = app_state(request)
    if q:
        query = state.query_cache.get(q)
        return thumbnail_response(request, query.picture or draw_thumbnail(query.title))

    def find(collection: Collection) -> Picture:
        item = view_models.find_item(collection, id)
        return find_thumbnail(item, collection.picture(item.id), state.settings.images)

    return thumbnail_response(request, await executor.read(find))
