"""The page: search with what was learnt beside search without it, thumbs, and the door where keys are view_models.

Views are plain documents with addresses of their own; what changes inside one is a part of it, drawn here as well.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, FastAPI, Query, Request
from starlette.datastructures import FormData, UploadFile
from starlette.responses import RedirectResponse, Response

from stillhash.collection import Collection
from stillhash.collection.types import picture_kind
from stillhash.errors import Denied, InvalidInput, StillhashError
from stillhash.numeric.validation import check_features
from stillhash.server.pages import learning, thumbnails, view_models
from stillhash.server.pages.rendering import PageRoute, drawn, form_of, number, static, text
from stillhash.server.pages.thumbnails import Picture, drawing, picture_of
from stillhash.server.query_cache import UPLOAD, Given, Memory, Pressed, standing, vector_in
from stillhash.server.routes import COOKIE, At, may, room
from stillhash.server.write_queue import Desk

STARTS = 12  # items that are offered to begin with
INSIDE = re.compile(r"/(?![/\\])[!-~]*")  # an address of this server

door = APIRouter(route_class=PageRoute, include_in_schema=False)
looking = APIRouter(route_class=PageRoute, include_in_schema=False, dependencies=[may("read")])
thumbing = APIRouter(route_class=PageRoute, include_in_schema=False, dependencies=[may("write")])

Text = Annotated[str, Query()]


def install(app: FastAPI) -> None:
    """Adds the page to an application."""
    app.state.asked = Memory()
    for router in (door, looking, thumbing, learning.looking, learning.changing):
        app.include_router(router)
    app.mount("/static", static, "static")


def memory(request: Request) -> Memory:
    found: Memory = request.app.state.asked
    return found


# ---- the door ----


@door.get("/login")
async def login(request: Request, then: str = "/") -> Response:
    """Where a visitor gives a key."""
    if not room(request).settings.keys.wanted:
        return RedirectResponse("/", 303)
    return drawn(request, "login.html", then=then)


@door.post("/login")
async def enter(request: Request) -> Response:
    """Keeps a key that is known in a cookie, which scripts cannot read and other sites cannot use."""
    form = await form_of(request)
    key, then = text(form, "key").strip(), text(form, "then")
    try:
        room(request).settings.keys.check(key, "read")
    except Denied as error:
        return drawn(request, "login.html", status=401, then=then, wrong=error)
    response = RedirectResponse(then if INSIDE.fullmatch(then) else "/", 303)
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, key, httponly=True, samesite="strict", secure=secure)
    return response


@door.post("/logout")
async def leave(request: Request) -> Response:
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


# ---- search ----


@looking.get("/")
async def start(request: Request) -> Response:
    return RedirectResponse(f"/c/{quote(next(iter(room(request).desks)))}", 307)


@looking.get("/c/{name}")
async def search(
    request: Request, at: At, like: Text = "", q: Text = "", against: Text = "0", random: Text = ""
) -> Response:
    """The search view: of an item, of a vector that was given, or, without either, of places to begin."""
    beside = {"against": against} if against != "0" else {}
    try:
        if random:
            some = await at.read(lambda c: c.sample(1))
            if some:
                address = urlencode({"like": json.dumps(some[0].id), **beside})
                return RedirectResponse(f"/c/{quote(at.name)}?{address}", 303, {"cache-control": "no-store"})
        if like or q:
            query = await _query(request, at, like, q)
            found = await _results(request, at, query, number(against, "against"))
            return _view(request, at, query=query, results=found)
    except StillhashError as error:
        return _view(request, at, status=error.status, wrong=error, typed=like)
    starts = [(str(item.id), json.dumps(item.id), item.labels) for item in await at.read(lambda c: c.sample(STARTS))]
    return _view(request, at, starts=starts)


def _view(request: Request, at: Desk, *, status: int = 200, **shown: Any) -> Response:
    """The search view, with what may be asked here."""
    about = {"name": at.name, "dim": at.collection.dim, "sees": at.eyes is not None}
    words = at.eyes is not None and at.eyes.has_text
    return drawn(request, "search.html", status=status, **about, words=words, **shown)


async def _query(request: Request, at: Desk, like: str, q: str) -> view_models.Query:
    if like:
        return await at.read(lambda c: view_models.query_like(c, like))
    return view_models.query_given(memory(request).find(q), q)


async def _results(
    request: Request, at: Desk, query: view_models.Query, against: int, before: list[str] | None = None
) -> view_models.Results:
    pressed = memory(request).pressed(at.name, query.name)

    def work(collection: Collection) -> view_models.Results:
        thumbs = standing(pressed, collection.versions()) if pressed else {}
        return view_models.results(collection, query, against, thumbs, before)

    return await at.read(work)


@looking.post("/c/{name}/ask")
async def ask(request: Request, at: At) -> Response:
    """Takes a vector, or an image where there is an encoder, and goes to its hits."""
    try:
        form = await form_of(request, min(UPLOAD, room(request).settings.most_bytes))
        try:
            token = memory(request).keep(await _given(request, at, form))
        finally:
            await form.close()
    except StillhashError as error:
        return _view(request, at, status=error.status, wrong=error)
    return RedirectResponse(f"/c/{quote(at.name)}?q={token}", 303)


async def _given(request: Request, at: Desk, form: FormData) -> Given:
    file, pasted, words = form.get("file"), text(form, "numbers"), text(form, "words").strip()
    if words:
        return Given(await at.described(words), words, None)
    data, about = b"", ""
    if isinstance(file, UploadFile):
        data, about = await file.read(), file.filename or "a file"
    data, about = (data, about) if data else (pasted.encode(), "pasted numbers")
    if not data.strip():
        raise InvalidInput("nothing was given; choose a file, or paste a list of numbers")
    kind = picture_kind(data)
    vector = await at.described(data) if kind is not None else vector_in(data)
    (checked,) = check_features(vector[None], "the vector", columns=at.collection.dim, whose="this collection")
    return Given(checked, about, None if kind is None else Picture(data, kind))


@thumbing.post("/c/{name}/thumb")
async def thumb(request: Request, at: At) -> Response:
    """Learns from a thumb, and shows the results as they are now, with what that moved."""
    form = await form_of(request)
    like, q, told, up = (text(form, field) for field in ("like", "q", "id", "up"))
    against = number(text(form, "against"), "against")
    query = await _query(request, at, like, q)

    def learn(collection: Collection) -> tuple[list[str], str, int]:
        before, item = view_models.ranking(collection, query), view_models.item_named(collection, told)
        version = collection.feedback(query.vector, item.id, up == "1", source="page")
        return before, json.dumps(item.id), version

    before, item, version = await at.write(learn)
    memory(request).press(at.name, query.name, item, Pressed(up == "1", version))
    found = await _results(request, at, query, against, before)
    gone = "" if any(card.name == item for card in found.now.cards) else json.loads(item)
    return drawn(request, "results.html", name=at.name, query=query, results=found, learnt=version, gone=gone)


@thumbing.post("/c/{name}/labels")
async def teach(request: Request, at: At) -> Response:
    """Gives an item the labels that a visitor says it has, and learns from them."""
    form = await form_of(request)
    named, told = text(form, "id"), text(form, "labels")

    def learn(collection: Collection) -> tuple[view_models.Query, int]:
        item = view_models.item_named(collection, named)
        collection.relabel([item.id], [view_models.labels_told(told, item.labels)])
        return view_models.query_like(collection, named), collection.flush()

    query, version = await at.write(learn)
    return drawn(request, "labels.html", name=at.name, query=query, taught=version)


@looking.get("/c/{name}/explain")
async def explain(
    request: Request, at: At, id: Text, like: Text = "", q: Text = "", against: Text = "0", left: Text = ""
) -> Response:
    """Why a hit is where it is."""
    query, other = await _query(request, at, like, q), number(against, "against")
    told = await at.read(lambda c: view_models.why(c, query, id, other, left=bool(left)))
    return drawn(request, "why.html", name=at.name, query=query, why=told, bits=at.collection.bits)


@looking.get("/c/{name}/picture")
async def picture(request: Request, at: At, id: Text = "", q: Text = "") -> Response:
    """The thumbnail of an item, or of what was given."""
    if q:
        given = memory(request).find(q)
        return thumbnails.sent(request, given.picture or drawing(given.about))
    folder = room(request).settings.images

    def found(collection: Collection) -> Picture:
        item = view_models.item_named(collection, id)
        return picture_of(item, collection.picture(item.id), folder)

    return thumbnails.sent(request, await at.read(found))
