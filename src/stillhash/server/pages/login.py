"""Sign in with a key, which a cookie then holds, and sign out."""

from __future__ import annotations

import re

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from stillhash.errors import Denied
from stillhash.server.dependencies import KEY_COOKIE, app_state
from stillhash.server.pages.rendering import form_text, page_router, read_form, render

LOCAL_PATH = re.compile(r"/(?![/\\])[!-~]*")  # never an address of another server

router = page_router()


@router.get("/login")
async def login(request: Request, next: str = "/") -> Response:
    if not app_state(request).settings.keys.required:
        return RedirectResponse("/", 303)
    return render(request, "login.html", next=next)


@router.post("/login")
async def sign_in(request: Request) -> Response:
    """Store a valid key in a cookie that scripts cannot read and other sites cannot use."""
    form = await read_form(request)
    key, next = form_text(form, "key").strip(), form_text(form, "next")
    try:
        app_state(request).settings.keys.check(key, "read")
    except Denied as error:
        return render(request, "login.html", status=401, next=next, error=error)
    response = RedirectResponse(next if LOCAL_PATH.fullmatch(next) else "/", 303)
    secure = request.url.scheme == "https"
    response.set_cookie(KEY_COOKIE, key, httponly=True, samesite="strict", secure=secure)
    return response


@router.post("/logout")
async def sign_out(request: Request) -> Response:
    response = RedirectResponse("/login", 303)
    response.delete_cookie(KEY_COOKIE, httponly=True, samesite="strict")
    return response
