"""The frame of the page: how a view is drawn, and what a visitor sees where a program would get an error as JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates

from stillhash.errors import InvalidInput, StillhashError, TooLarge
from stillhash.server.routes import COOKIE, room
from stillhash.server.schemas import told

HERE = Path(__file__).parent.parent
FORM = 64 << 10  # bytes of a form without a file
TITLES = {
    403: "This key may not do that",
    404: "There is nothing here",
    409: "That does not fit what is stored",
    413: "That is too much at once",
    422: "That cannot be answered",
    429: "Too many requests",
    503: "The server is busy",
}

static = StaticFiles(directory=HERE / "static")
templates = Jinja2Templates(directory=HERE / "templates")


def _stamp() -> str:
    """Changes with the static files, so that a browser keeps them only as long as they are the same."""
    files = sorted(path for path in (HERE / "static").rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:8]


def sentence(message: object) -> str:
    """An error's message, as a reader expects it."""
    words = str(message).rstrip(".")
    return f"{words[:1].upper()}{words[1:]}."


templates.env.filters["sentence"] = sentence
templates.env.globals["stamp"] = _stamp()
templates.env.globals["titles"] = TITLES


def drawn(request: Request, template: str, *, status: int = 200, **shown: Any) -> Response:
    """A view, or a part of one."""
    known = room(request)
    shown |= {"names": list(known.desks), "signed_in": known.settings.keys.wanted and COOKIE in request.cookies}
    headers = {"cache-control": "no-cache"}
    return templates.TemplateResponse(request, template, shown, status, headers)


class PageRoute(APIRoute):
    """Draws what is wrong, and leads who has no key to the door.

    Requests that a script of the page makes get errors as JSON, like any program; the script shows their message.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await answer(request)
            except RequestValidationError as error:
                wrong: StillhashError = told(error.errors())
            except HTTPException as error:
                wrong = InvalidInput(str(error.detail))
            except StillhashError as error:
                wrong = error
            if "hx-request" in request.headers or request.url.path.endswith(("/picture", "/events")):
                raise wrong
            if wrong.status == 401:
                return RedirectResponse(f"/login?{urlencode({'then': _here(request)})}", 303)
            return drawn(request, "wrong.html", status=wrong.status, wrong=wrong)

        return handle


def _here(request: Request) -> str:
    """Where a visitor was; a form cannot be sent again, so who sent one goes to the start."""
    path = quote(request.url.path)
    return (f"{path}?{request.url.query}" if request.url.query else path) if request.method == "GET" else "/"


async def form_of(request: Request, most: int = FORM) -> FormData:
    """The fields of a form that is not too large.

    They are read here and not by FastAPI, which would read all of them before it looks for a key.
    """
    announced = request.headers.get("content-length", "")
    if not announced.isdigit():
        raise InvalidInput("content-length is missing; a form that says how long it is is wanted")
    if int(announced) > most:
        raise TooLarge(f"the form has {announced} bytes; at most {most} are taken")
    return await request.form(max_files=1, max_fields=16, max_part_size=most)


def text(form: FormData, field: str) -> str:
    value = form.get(field, "")
    return value if isinstance(value, str) else ""


def number(value: str, field: str) -> int:
    """A number in an address or a form."""
    if not (value.isascii() and value.isdigit() and len(value) < 19):
        raise InvalidInput(f"{field} is {value!r}; a whole number is wanted")
    return int(value)
