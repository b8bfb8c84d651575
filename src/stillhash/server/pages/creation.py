"""The list of collections, and the form that creates one."""

from typing import Any
from urllib.parse import quote

from fastapi import Request
from pydantic import ValidationError
from starlette.datastructures import FormData
from starlette.responses import RedirectResponse, Response

from stillhash.collection import Collection
from stillhash.collection.storage.audit import set_actor
from stillhash.errors import InvalidInput, NotFound, StillhashError
from stillhash.hashers import DEFAULT_HASHER, FIXED_CODE_METHODS, METHODS
from stillhash.server.dependencies import actor, app_state, visible_executors
from stillhash.server.pages.rendering import form_text, page_router, parse_integer, read_form, render
from stillhash.server.responses import to_error
from stillhash.server.routes_server import read_all
from stillhash.server.schemas import CreateCollectionBody

CARD_PICTURES = 4
CREATED_BITS = (64, 128, 256, 512)
read_router, admin_router = page_router("read"), page_router("admin")


@read_router.get("/collections")
async def list_collections(request: Request) -> Response:
    """Show the collections that the visitor has."""
    counts = await read_all(visible_executors(request), _card)
    cards = [{"name": executor.name, **card} for executor, card in counts.items()]
    return render(request, "collections.html", cards=cards, can_create=_has_folder(request))


def _card(collection: Collection) -> dict[str, Any]:
    return {"items": collection.count(), "examples": collection.sample(CARD_PICTURES), "encoder": collection.encoder}


def _has_folder(request: Request) -> bool:
    return app_state(request).settings.collections_folder is not None


@admin_router.get("/new")
async def new_collection(request: Request) -> Response:
    return _render_form(request)


def _render_form(request: Request, status: int = 200, **context: Any) -> Response:
    if not _has_folder(request):
        raise NotFound("collections-folder: this server has none. Start it with --collections-folder FOLDER")
    methods = {name: (METHODS[name].__doc__ or "").partition("\n")[0] for name in FIXED_CODE_METHODS}
    context = {"values": {}, "error": None, **context, "methods": methods, "usual_method": DEFAULT_HASHER.name}
    context["opens_encoders"] = app_state(request).lifecycle.opens_encoders
    return render(request, "new.html", status=status, all_bits=CREATED_BITS, **context)


@admin_router.post("/new")
async def create_collection(request: Request) -> Response:
    """Create a collection, and go to its page; a form with a mistake comes back as it was."""
    form = await read_form(request)
    try:
        body = _parse_form(form)
        set_actor(actor(request))
        executor = await app_state(request).lifecycle.create(request.state.key, body.name, body.settings())
    except StillhashError as error:
        return _render_form(request, error.status, error=error, values=dict(form.items()))
    return RedirectResponse(f"/c/{quote(executor.name)}/collection", 303)


def _parse_form(form: FormData) -> CreateCollectionBody:
    values: dict[str, Any] = {"name": form_text(form, "name").strip(), "method": form_text(form, "method")}
    values["bits"] = parse_integer(form_text(form, "bits"), "bits")
    encoder = form_text(form, "encoder")
    if encoder:
        values |= {"encoder": encoder, "init_rows": 300, "lexical_field": "text" if encoder == "words" else None}
    else:
        text = form_text(form, "dim").strip()
        if not text:
            raise InvalidInput("dim: expected how many numbers a vector has, got nothing")
        values["dim"] = parse_integer(text, "dim")
    values["keep_features"] = form_text(form, "keep_features") == "1"
    try:
        return CreateCollectionBody.model_validate(values)
    except ValidationError as error:
        raise to_error(error) from None
