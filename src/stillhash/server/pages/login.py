"""Sign visitors in and out."""

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from stillhash.errors import Denied
from stillhash.server.dependencies import app_state
from stillhash.server.pages.rendering import LOCAL_PATH, form_text, page_router, read_form, render
from stillhash.server.sessions import SESSION_COOKIE

router = page_router()


@router.get("/login")
async def login(request: Request, next: str = "/") -> Response:
    if not app_state(request).settings.keys.required:
        return RedirectResponse("/", 303)
    return _render_login(request, next)


def _render_login(request: Request, next: str, error: Denied | None = None) -> Response:
    minutes = app_state(request).settings.session_idle / 60
    return render(request, "login.html", status=error.status if error else 200, next=next, error=error, minutes=minutes)


@router.post("/login")
async def sign_in(request: Request) -> Response:
    """Start a session for a valid key, in a cookie that scripts cannot read and other sites cannot use."""
    form = await read_form(request)
    state, next = app_state(request), form_text(form, "next")
    try:
        key = state.settings.keys.find(form_text(form, "key").strip())
    except Denied as error:
        return _render_login(request, next, error)
    state.sessions.end(request.cookies.get(SESSION_COOKIE, ""))
    response = RedirectResponse(next if LOCAL_PATH.fullmatch(next) else "/", 303)
    secure = request.url.scheme == "https"
    response.set_cookie(SESSION_COOKIE, state.sessions.start(key), httponly=True, samesite="strict", secure=secure)
    return response


@router.post("/logout")
async def sign_out(request: Request) -> Response:
    """End the session, also on the server, so that a copy of its cookie is worth nothing."""
    app_state(request).sessions.end(request.cookies.get(SESSION_COOKIE, ""))
    response = RedirectResponse("/login", 303)
    response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return response
