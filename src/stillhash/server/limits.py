"""Limits: the memory of requests in flight, requests a second of a client, and connections."""

import asyncio
import time
from collections import Counter
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stillhash.errors import Busy, InvalidInput, TooMany
from stillhash.platform import SYSTEM
from stillhash.server.responses import error_response
from stillhash.server.settings import Settings

# ---- memory ----
#
# What a request holds is reserved as it arrives, and released when its answer is sent. Small requests are not counted,
# so that they are served while large ones are refused; the cap on connections bounds them.

SMALL_BYTES = 1 << 18  # that a request may hold uncounted
BODY_COPIES = 3  # a body as it came, as text, and as numbers
CLIENT_SHARE = 2  # one client may hold 1/2 of the budget


class MemoryBudget:
    """Bytes that requests hold, in all and by client. Only the event loop uses it."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._by_client: Counter[str] = Counter()

    def check(self, client: str, size: int) -> None:
        """Raise Busy if so many bytes more of a client are beyond the budget, or beyond its share."""
        if self.used + size > self.limit or self._by_client[client] + size > self.limit // CLIENT_SHARE:
            held = f"requests in flight hold {self.used >> 20} of {self.limit >> 20} MiB"
            raise Busy(f"memory: {held}, and this one needs {size >> 20} more. Try again in a moment, or request less")

    def count(self, client: str, size: int) -> None:
        """Count more bytes of a client; fewer, if negative."""
        self.used += size
        self._by_client[client] += size
        if not self._by_client[client]:
            del self._by_client[client]


class RequestMemory:
    """What one request holds of the budget."""

    def __init__(self, budget: MemoryBudget, client: str) -> None:
        self.budget, self.client = budget, client
        self.held = self._counted = 0

    def hold(self, size: int) -> None:
        """Hold more bytes; Busy if they are beyond the budget."""
        if self.held + size > SMALL_BYTES:
            self.budget.check(self.client, self.held + size - self._counted)
        self._hold(self.held + size)

    def hold_answer(self, size: int) -> None:
        """Hold an answer of this size, which is there already and is not refused."""
        self._hold(max(self.held, size))

    def release(self) -> None:
        """Give everything back."""
        self._hold(0)

    def _hold(self, size: int) -> None:
        self.held, counted = size, size if size > SMALL_BYTES else 0
        if counted != self._counted:
            self.budget.count(self.client, counted - self._counted)
            self._counted = counted


# ---- requests a second ----

MAX_CLIENTS = 10_000  # remembered; the least recently seen is forgotten first


class RateLimiter:
    """Token bucket per client: `per_second` requests a second with bursts of twice as many; 0 is no limit."""

    def __init__(self, per_second: float) -> None:
        self.per_second, self.burst = per_second, max(1.0, 2 * per_second)
        self._buckets: dict[str, tuple[float, float]] = {}  # client -> tokens, time of the last request

    def __len__(self) -> int:
        """Return the number of clients that are remembered."""
        return len(self._buckets)

    def take(self, client: str, now: float | None = None) -> None:
        """Take one token; TooMany if none is left."""
        if not self.per_second:
            return
        now = time.monotonic() if now is None else now
        tokens, last = self._buckets.pop(client, (self.burst, now))
        tokens = min(self.burst, tokens + (now - last) * self.per_second)
        self._buckets[client] = max(0.0, tokens - 1) if tokens >= 1 else tokens, now
        if len(self._buckets) > MAX_CLIENTS:
            del self._buckets[next(iter(self._buckets))]
        if tokens < 1:
            raise TooMany(f"rate limit: expected at most {self.per_second:g} requests a second. Try again in a moment")


# ---- connections ----
#
# uvicorn has a timeout for idle connections only. Without these, clients that send half a request, or do not read their
# answer, would keep file handles and memory for as long as they like.

MAX_HEADER_BYTES = 1 << 16  # of a request, before its body
MAX_OPEN_FILES = 1 << 16  # that the limit of this process is raised to
SPARE_FILES = 16  # for files that are open for a moment
MIN_CONNECTIONS = 8


class LimitedConnection(HttpToolsProtocol):
    """One connection. If there are too many, the one that has waited longest for its next request is closed."""

    settings: ClassVar[Settings]
    waiting: ClassVar[dict["LimitedConnection", None]]  # for a request, in order of time

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._header_bytes, self._in_headers, self._in_body = 0, False, False
        self._deadline: asyncio.TimerHandle | None = None
        self._send_deadline: asyncio.TimerHandle | None = None
        if len(self.connections) > self.settings.max_connections:
            if not self.waiting:
                self._refuse()
                return
            next(iter(self.waiting)).abort()
        self.waiting[self] = None
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self in self.waiting and not self.transport.is_closing():
            self._header_bytes += 0 if self._in_body else len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self.abort()
            elif self._deadline is None:
                self._await_headers()

    def on_message_begin(self) -> None:
        self._in_headers = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._in_headers, self._in_body = False, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # otherwise the next request is here already
            self._header_bytes = 0
            self.waiting[self] = None
            if self._in_headers and self._deadline is None:  # part of the next request came with this one
                self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the time in which the client must take what was sent: less than a piece of an answer."""
        super().pause_writing()
        if self._send_deadline is None:
            self._send_deadline = self.loop.call_later(self.settings.send_seconds, self.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._send_deadline is not None:
            self._send_deadline.cancel()
            self._send_deadline = None

    def abort(self) -> None:
        """Close the connection now, without sending what is left."""
        self._stop_waiting()
        if self.transport is not None:
            self.transport.abort()

    def _await_headers(self) -> None:
        self._deadline = self.loop.call_later(self.settings.header_seconds, self.abort)

    def _stop_waiting(self) -> None:
        self.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self) -> None:
        response = error_response(Busy(f"connections: all {self.settings.max_connections} are in use"), "")
        head = "".join(f"{name.decode()}: {value.decode()}\r\n" for name, value in response.raw_headers)
        status = f"HTTP/1.1 {response.status_code} Service Unavailable\r\nconnection: close\r\n"
        self.transport.write(f"{status}{head}\r\n".encode() + bytes(response.body))
        self.transport.close()


def limited_connections(settings: Settings) -> type[LimitedConnection]:
    """Return the protocol of one server's connections."""
    return type("ServerConnection", (LimitedConnection,), {"settings": settings, "waiting": {}})


def available_connections(settings: Settings, reading_threads: int) -> int:
    """Return how many connections this process has file handles for, at most those of the settings.

    Each thread that reads has its own connection to SQLite, of up to three files.
    """
    limit = SYSTEM.raise_open_file_limit(MAX_OPEN_FILES)
    if limit is None:
        return settings.max_connections
    reserved = SYSTEM.count_open_files() + 3 * reading_threads + SPARE_FILES
    if limit - reserved < MIN_CONNECTIONS:
        least = reserved + MIN_CONNECTIONS
        raise InvalidInput(f"open files: expected a limit of at least {least} (ulimit -n), got {limit}")
    return min(settings.max_connections, limit - reserved)
