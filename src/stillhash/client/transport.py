"""HTTP transport of both clients: JSON, retries, and typed errors.

A request that changes nothing, or changes the same thing twice, is always retried. Any other request is retried only if
nothing was stored: by the server's answer, or because it could not be reached.

Everything here is a coroutine. `Connections` is what differs: those of `AsyncClient` suspend it while they wait for the
network; those of `Client` block, so that its coroutines run from start to end without an event loop.
"""

import json
import os
import random
import ssl
from collections.abc import AsyncIterator
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

from stillhash import errors
from stillhash.errors import Busy, Closed, InvalidInput, StillhashError, Unreachable
from stillhash.numeric.validation import check_integer, check_number

JSON_TYPE, NDJSON_TYPE, RAW_TYPE = "application/json", "application/x-ndjson", "application/octet-stream"
REQUEST_LINES = 1000  # of a stream, in one request
MAX_POOLED = 16  # connections that are kept open
MAX_RESPONSE_BYTES = 1 << 30
FIRST_BACKOFF, MAX_BACKOFF = 0.1, 10.0  # seconds before a retry; doubles up to the maximum

RetryWhen = Literal["always", "not stored", "not sent"]
NOTHING_STORED = (429, 503)  # statuses of a server that stored nothing
RETRY_STATUSES: dict[RetryWhen, tuple[int, ...]] = {
    "always": (*NOTHING_STORED, 502, 504),  # of an unavailable server, or of a proxy before it
    "not stored": NOTHING_STORED,
    "not sent": (),
}


class HttpResponse(NamedTuple):
    status: int
    retry_after: str  # the header, or ""
    data: bytes


class ConnectionFailed(Exception):
    """No response came, or too large a one."""

    def __init__(self, reason: object, *, sent: bool, permanent: bool = False) -> None:
        super().__init__(str(reason))
        self.sent = sent  # false: the server certainly has nothing of the request
        self.permanent = permanent  # a retry would fail in the same way


class Connections(Protocol):
    """A pool of connections to a server."""

    async def send(self, method: str, url: str, body: bytes | None, headers: dict[str, str]) -> HttpResponse:
        """Send a request once, and return its response, at most MAX_RESPONSE_BYTES; or raise ConnectionFailed."""

    async def sleep(self, seconds: float) -> None:
        """Wait; other tasks may run meanwhile."""

    async def close(self) -> None:
        """Close all connections."""


class Transport:
    def __init__(self, connections: Connections, url: str, key: str | None, timeout: float, retries: int) -> None:
        if key is not None and not (isinstance(key, str) and key.isascii() and key.isprintable()):
            raise InvalidInput("key: expected printable ASCII text")
        self.url, self.retries = url.rstrip("/"), check_integer(retries, "retries", 0)
        self._connections = connections
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._max_retry_after = min(timeout, MAX_BACKOFF)  # of what the server asks for
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        await self._connections.close()

    async def request(
        self, method: str, path: str, body: bytes | None = None, kind: str = JSON_TYPE, retry: RetryWhen = "always"
    ) -> dict[str, Any]:
        """Send a request of this content type, and return the JSON object of its response; or raise its error."""
        response = await self._send(method, path, body, kind, retry)
        try:
            payload = json.loads(response.data)
        except (ValueError, RecursionError):
            payload = None
        if not isinstance(payload, dict) or (response.status != 200 and not {"error", "message"} <= payload.keys()):
            raise Unreachable(f"{self.url} answers {response.status}, but is not a stillhash server")
        if response.status != 200:
            raise to_error(payload, response.retry_after)
        return payload

    async def sleep(self, seconds: float) -> None:
        """Wait; other tasks may run meanwhile."""
        await self._connections.sleep(seconds)

    async def _send(self, method: str, path: str, body: bytes | None, kind: str, retry: RetryWhen) -> HttpResponse:
        """Send a request, again while `retry` allows it, and return the last response."""
        headers = self._headers if body is None else {**self._headers, "content-type": kind}
        tries = 0
        while True:
            if self._closed:
                raise Closed("The client is closed")
            try:
                response = await self._connections.send(method, self.url + path, body, headers)
                if tries == self.retries or response.status not in RETRY_STATUSES[retry]:
                    return response
                retry_after = int(response.retry_after) if response.retry_after.isdecimal() else 0
            except ConnectionFailed as error:
                if tries == self.retries or error.permanent or (error.sent and retry != "always"):
                    raise Unreachable(f"{self.url} does not answer: {error}") from error
                retry_after = 0
            await self._connections.sleep(self._backoff(tries, retry_after))
            tries += 1

    def _backoff(self, tries: int, retry_after: int) -> float:
        """Return the seconds to wait before the next try."""
        doubled = min(MAX_BACKOFF, FIRST_BACKOFF * 2.0 ** min(tries, 10))
        return max(doubled, min(retry_after, self._max_retry_after)) + random.uniform(0, FIRST_BACKOFF)

    async def post_lines(self, path: str, lines: AsyncIterator[bytes]) -> int:
        """Post a stream in several requests, and return the number of stored rows; continue after a busy server."""
        stored, tries = 0, 0
        chunk: list[bytes] = []
        while True:
            try:
                chunk = chunk or await self._next_lines(lines)
                if not chunk:
                    return stored
                stored += (await self.request("POST", path, b"\n".join(chunk), NDJSON_TYPE, "not sent"))["count"]
                chunk, tries = [], 0
            except StillhashError as error:
                acknowledged = vars(error).get("acknowledged", 0)  # of this chunk
                stored, chunk, tries = stored + acknowledged, chunk[acknowledged:], tries + 1
                vars(error)["acknowledged"] = stored
                if not isinstance(error, Busy) or tries > self.retries:
                    raise
                await self._connections.sleep(self._backoff(tries, error.retry_after))

    async def _next_lines(self, lines: AsyncIterator[bytes]) -> list[bytes]:
        chunk = []
        async for line in lines:
            chunk.append(line)
            if len(chunk) == REQUEST_LINES:
                break
            await self._connections.sleep(0)  # a stream that never waits would stop other tasks
        return chunk


def check_address(url: object) -> str:
    """Return the address of a server; anything else is an error."""
    try:
        if isinstance(url, str) and urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname:
            return url
    except ValueError:  # an address in brackets that is none
        pass
    raise InvalidInput(f"url: expected http://HOST:PORT, got {url!r}")


def check_timeout(timeout: float) -> float:
    return check_number(timeout, "timeout", above=0)


def tls_context(ca: str | os.PathLike[str] | None) -> ssl.SSLContext:
    """Return a context that trusts the certificates of a file; None trusts those of the system."""
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, TypeError) as error:  # ssl.SSLError, if the file has no certificate, is an OSError
        raise InvalidInput(f"ca: expected a file of certificates in PEM, got {ca!r}: {error}") from None


def to_error(payload: dict[str, Any], retry_after: str = "") -> StillhashError:
    """Return the error of the class that the server names, with its other fields as attributes."""
    kind = getattr(errors, str(payload["error"]), StillhashError)
    known = isinstance(kind, type) and issubclass(kind, StillhashError)
    error = (kind if known else StillhashError)(payload["message"])
    vars(error).update({name: payload[name] for name in ("request_id", "acknowledged") if name in payload})
    if isinstance(error, Busy) and retry_after.isdecimal():
        vars(error)["retry_after"] = int(retry_after)
    return error
