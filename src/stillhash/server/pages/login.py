"""Sign visitors in and out."""

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from stillhash.errors import Denied
from stillhash.server.auth import SESSION_COOKIE, session_cookie
from stillhash.server.dependencies import app_state
from stillhash.server.pages.rendering import LOCAL_PATH, form_text, page_router, read_form, render

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
    response = RedirectResponse(next if LOCAL_PATH.fullmatch(next) else "/", 303)
    cookie = session_cookie(state.sessions.start(key), secure=request.url.scheme == "https")
    response.headers.append("set-cookie", cookie)
    return response


@router.post("/logout")
async def sign_out(request: Request) -> Response:
    """Let the browser forget its session."""
    response = RedirectResponse("/login", 303)
    response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return response
