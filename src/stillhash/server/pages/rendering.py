"""Render pages, and show errors as pages."""

import asyncio
import hashlib
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import FormData, QueryParams
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates

from stillhash.errors import InvalidInput, StillhashError, TooLarge, TooSlow
from stillhash.server.auth import ANONYMOUS, Key, Role
from stillhash.server.dependencies import KEY_CHECKS, app_state, visible_executors
from stillhash.server.pages.passages import text_hit
from stillhash.server.responses import to_error
from stillhash.server.settings import MIN_RATE
from stillhash.server.write_queue import CollectionExecutor

SERVER_FOLDER = Path(__file__).parent.parent
MAX_FORM_BYTES = 64 << 10  # without a file
VIEWS = {  # in the head of each page
    "Search": "",
    "Teach": "/teach",
    "Learning": "/learning",
    "Collection": "/collection",
}
LOCAL_PATH = re.compile(r"/(?![/\\])[!-~]*")  # never an address of another server

static_files = StaticFiles(directory=SERVER_FOLDER / "static")
templates = Jinja2Templates(directory=SERVER_FOLDER / "templates")


def _static_hash() -> str:
    """Hash the static files, so that browsers reload them when they change."""
    files = sorted(path for path in (SERVER_FOLDER / "static").rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:8]


def element_key(name: str) -> str:
    """Return a key for the HTML elements of an item, whose id may hold any character."""
    return hashlib.sha256(name.encode()).hexdigest()[:12]


templates.env.filters["element_key"] = element_key
templates.env.filters["text_hit"] = text_hit
templates.env.globals |= {"static_hash": _static_hash(), "views": VIEWS}


def render(
    request: Request, template: str, executor: CollectionExecutor | None = None, *, status: int = 200, **context: Any
) -> Response:
    """Render a page, or a part of one; with an executor, a page of its collection."""
    if executor is not None:
        context |= {"executor": executor, "name": executor.name}
    key: Key | None = getattr(request.state, "key", None)  # None before the visitor has signed in
    context["collections"] = list(visible_executors(request))
    context |= {"visitor": key, "signed_in": key not in (None, ANONYMOUS)}
    return templates.TemplateResponse(request, template, context, status, {"cache-control": "no-cache"})


class PageRoute(APIRoute):
    """Show errors as pages, and redirect visitors without a key to /login.

    Requests of the page's own scripts get errors as JSON; the script shows the message.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except (RequestValidationError, HTTPException, StillhashError) as raised:
                error = to_error(raised, f"{request.method} {request.url.path}")
            if "hx-request" in request.headers or request.url.path.endswith(("/picture", "/events")):
                raise error
            if error.status == 401:
                return RedirectResponse(f"/login?{urlencode({'next': _return_path(request)})}", 303)
            return render(request, "error.html", status=error.status, error=error)

        return handle


def page_router(role: Role | None = None) -> APIRouter:
    """Return a router of pages for visitors with a key of this role; without a role, for everyone."""
    return APIRouter(route_class=PageRoute, include_in_schema=False, dependencies=KEY_CHECKS[role])


def _return_path(request: Request) -> str:
    """Return where to go after the login; a form cannot be sent again, so its visitor goes to the start."""
    path = quote(request.url.path)
    return (f"{path}?{request.url.query}" if request.url.query else path) if request.method == "GET" else "/"


async def read_form(request: Request, max_bytes: int = MAX_FORM_BYTES) -> FormData:
    """Read the fields of a form; here and not by FastAPI, which would read them before it checks the key."""
    length = request.headers.get("content-length", "")
    if not length.isdigit():
        raise InvalidInput("content-length: expected the size of the form, got none")
    if int(length) > max_bytes:
        raise TooLarge(f"form: expected at most {max_bytes} bytes, got {length}")
    try:
        async with asyncio.timeout(app_state(request).settings.body_seconds + int(length) / MIN_RATE):
            return await request.form(max_files=1, max_fields=64, max_part_size=max_bytes)
    except TimeoutError:
        raise TooSlow(f"form: expected at least {MIN_RATE} bytes a second, got fewer") from None


def form_text(form: FormData | QueryParams, field: str) -> str:
    """Return a field of a form, or a parameter of an address, that is a text; else an empty one."""
    value = form.get(field, "")
    return value if isinstance(value, str) else ""


def parse_integer(text: str, field: str) -> int:
    """Parse a whole number of an address or a form."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidInput(f"{field}: expected a whole number, got {text!r}")
    return int(text)
