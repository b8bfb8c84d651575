"""ASGI middleware: request id, access log, metrics, rate limit, memory, Host and Origin checks.

The last two protect browsers. A page of another site can make a visitor's browser send a POST here, so requests with a
foreign Origin are refused. A name of that site can resolve to this machine (DNS rebinding), so a server without keys
answers only to the machine's own names.
"""

import logging
import re
import time
import uuid
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stillhash.errors import Forbidden, StillhashError, TooLarge, TooSlow
from stillhash.server.auth import SESSION_COOKIE, Sessions, is_loopback, session_cookie
from stillhash.server.limits import MemoryBudget, RateLimiter, RequestMemory
from stillhash.server.metrics import Metrics
from stillhash.server.responses import error_response
from stillhash.server.settings import Settings

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
STATIC_PATHS = re.compile(r"/static/")  # which the rate limit does not count
PICTURE_PATHS = re.compile(r"/c/[^/]*/picture$")  # nor these, parts of a page, of a browser that has signed in
MAX_HEADERS = 100
SEND_BYTES = 1 << 18  # of an answer that are sent at a time
REQUEST_ID = re.compile(r"[\w.:-]{1,64}")
RESPONSE_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "content-security-policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
}

log = logging.getLogger("stillhash.server")


class RequestMiddleware:
    def __init__(
        self, app: ASGIApp, settings: Settings, metrics: Metrics, memory: MemoryBudget, sessions: Sessions
    ) -> None:
        self.app, self.settings, self.metrics, self.memory, self.sessions = app, settings, metrics, memory, sessions
        self.rate_limiter = RateLimiter(settings.rate_limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, headers = time.perf_counter(), Headers(scope=scope)
        request_id = headers.get("x-request-id", "")
        if not REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex
        client = scope["client"][0] if scope.get("client") else ""
        memory = RequestMemory(self.memory, client)
        scope["state"].update(request_id=request_id, memory=memory)
        status = 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                sent = MutableHeaders(scope=message)
                sent.update({"x-request-id": request_id, **RESPONSE_HEADERS})
                if status == TooSlow.status:  # the rest of the body may never arrive
                    sent["connection"] = "close"
                if renewed := scope["state"].get("renewed_session"):
                    sent.append("set-cookie", session_cookie(renewed, secure=scope["scheme"] == "https"))
                if "location" in sent:  # a path of this server, whatever Host the request named
                    sent["location"] = _split(sent["location"])._replace(scheme="", netloc="").geturl()
            elif len(body := message.get("body", b"")) > SEND_BYTES:  # a piece at a time, as the client takes them
                memory.hold_answer(len(body))
                for start in range(0, len(body) - SEND_BYTES, SEND_BYTES):
                    await send({**message, "body": body[start : start + SEND_BYTES], "more_body": True})
                message = {**message, "body": body[start + SEND_BYTES :]}
            await send(message)

        try:
            self._check(scope, headers, client)
        except StillhashError as error:
            await error_response(error, request_id)(scope, receive, send_with_headers)
        else:
            await self.app(scope, receive, send_with_headers)
        finally:
            memory.release()
            self._record(scope, status, time.perf_counter() - start)

    def _check(self, scope: Scope, headers: Headers, client: str) -> None:
        if not (STATIC_PATHS.match(scope["path"]) or self._is_page_picture(scope)):
            self.rate_limiter.take(client)
        if len(headers) > MAX_HEADERS:
            raise TooLarge(f"headers: expected at most {MAX_HEADERS}, got {len(headers)}")
        host = _split(f"//{headers.get('host', '')}").hostname or ""
        if not self.settings.keys.required and not (is_loopback(host) or host == self.settings.host):
            raise Forbidden(f"host: a server without keys answers only to localhost, got {host!r}")
        origin = headers.get("origin")
        foreign = origin is not None and _split(origin).netloc != headers.get("host")
        if scope["method"] not in SAFE_METHODS and (foreign or headers.get("sec-fetch-site") == "cross-site"):
            raise Forbidden("origin: the request comes from a page of another site")

    def _is_page_picture(self, scope: Scope) -> bool:
        """Return whether a request for a picture comes from a browser that has signed in."""
        if not PICTURE_PATHS.match(scope["path"]):
            return False
        cookie = HTTPConnection(scope).cookies.get(SESSION_COOKIE, "")
        return not self.settings.keys.required or self.sessions.get(cookie) is not None

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unknown")  # not the path itself, which could be anything
        self.metrics.observe(scope["method"], route, status, seconds)
        fields = {
            "request_id": scope["state"]["request_id"],
            "client": scope["client"][0] if scope.get("client") else None,
            "method": scope["method"],
            "path": scope["path"],
            "actor": scope["state"].get("actor"),
            "status": status,
            "ms": round(1000 * seconds, 2),
        }
        log.info("request", extra={"fields": fields})


def _split(address: str) -> SplitResult:
    """Split an address; an invalid one has no host."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")
