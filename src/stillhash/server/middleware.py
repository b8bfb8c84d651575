"""The gate: every request gets an id, a place in the log and the metrics, and may be turned away.

Browsers are the reason for two of its checks. A page of another site can make a visitor's browser post here, so what
says it comes from elsewhere may not pass. And a name of that site can be made to point at this machine, so without keys
only the machine's own names are answered.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import Any
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stillhash.errors import Forbidden, StillhashError
from stillhash.server.auth import Rate, is_loopback
from stillhash.server.metrics import Metrics
from stillhash.server.schemas import failed
from stillhash.server.settings import Settings

SAFE = ("GET", "HEAD", "OPTIONS")
FREE = re.compile(r"/static/|/c/[^/]*/picture$")  # what a view brings along, which does not count as requests
ID = re.compile(r"[\w.:-]{1,64}")
POLICY = (
    b"default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; "
    b"form-action 'self'; base-uri 'none'"
)

log = logging.getLogger("stillhash.server")


class Gate:
    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        self.rate = Rate(settings.rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, headers = time.perf_counter(), Headers(scope=scope)
        asked = headers.get("x-request-id", "")
        request_id = asked if ID.fullmatch(asked) else uuid.uuid4().hex
        scope["state"]["request_id"] = request_id
        status = 500

        async def marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answer = MutableHeaders(scope=message)
                answer["x-request-id"] = request_id
                answer["x-content-type-options"] = "nosniff"
                answer["content-security-policy"] = POLICY.decode()
                answer["referrer-policy"] = "same-origin"
            await send(message)

        try:
            self._check(scope, headers)
        except StillhashError as error:
            await failed(error, request_id)(scope, receive, marked)
        else:
            await self.app(scope, receive, marked)
        finally:
            self._tell(scope, status, time.perf_counter() - began)

    def _check(self, scope: Scope, headers: Headers) -> None:
        client = scope.get("client")
        if not FREE.match(scope["path"]):
            self.rate.take(client[0] if client else "")
        host = _split(f"//{headers.get('host', '')}").hostname or ""
        if not self.settings.keys.wanted and not (is_loopback(host) or host == self.settings.host):
            raise Forbidden(f"host is {host!r}; a server without keys answers to this machine's own names")
        origin = headers.get("origin")
        elsewhere = origin is not None and _split(origin).netloc != headers.get("host")
        if scope["method"] not in SAFE and (elsewhere or headers.get("sec-fetch-site") == "cross-site"):
            raise Forbidden("the request comes from a page of another site")

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get("route")
        path = getattr(route, "path", "unknown")  # not what was asked for, which could be anything
        self.metrics.asked(scope["method"], path, status, seconds)
        about: dict[str, Any] = {
            "request_id": scope["state"]["request_id"],
            "client": scope["client"][0] if scope.get("client") else None,
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "ms": round(1000 * seconds, 2),
        }
        log.info("request", extra={"about": about})


def _split(address: str) -> SplitResult:
    """An address that makes no sense is nobody's."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")
