"""The ASGI application of a front: searches of a published collection, and everything else sent on to its writer."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from stillhash.errors import Busy, MissingExtra, StillhashError, Unreachable
from stillhash.server import routes_items, routes_learning, routes_server
from stillhash.server.app import lifespan, on_error
from stillhash.server.auth import Sessions
from stillhash.server.collection_lifecycle import CollectionLifecycle
from stillhash.server.dependencies import AppState, api_router
from stillhash.server.limits import MemoryBudget
from stillhash.server.metrics import Metrics
from stillhash.server.middleware import RequestMiddleware
from stillhash.server.page_state import QueryCache, Sittings
from stillhash.server.responses import json_response
from stillhash.server.settings import Settings
from stillhash.server.write_queue import CollectionExecutor, ReadExecutor, lower_priority, started_pool
from stillhash.version import __version__

# ---- forwarding ----

WRITER_CONNECT_SECONDS, SILENT_SECONDS = 5.0, 600.0  # until a connection stands, and without a byte of a response
MAX_FORWARDED = 256  # connections to the writer
FORWARDED_HEADER = "x-stillhash-forwarded"  # of requests that a front has sent on
HOP_HEADERS = frozenset({"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"})
HOP_HEADERS |= {"transfer-encoding", "upgrade", "proxy-connection", FORWARDED_HEADER}
OWN_HEADERS = frozenset({"x-request-id", "date", "server"})  # of responses; this server has its own


class Forwarder:
    """Sends requests on to the server whose URL a function returns, "" while it is not known."""

    def __init__(self, writer: Callable[[], str]) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra("httpx is not installed: pip install 'stillhash[async]'") from error
        timeout = httpx.Timeout(SILENT_SECONDS, connect=WRITER_CONNECT_SECONDS, pool=WRITER_CONNECT_SECONDS)
        limits = httpx.Limits(max_connections=MAX_FORWARDED)
        self._writer, self._failures = writer, httpx.HTTPError
        self._client = httpx.AsyncClient(timeout=timeout, limits=limits, follow_redirects=False, trust_env=False)

    async def send(self, request: Request) -> Response:
        """Return the response of the writer; Busy if it does not answer. No request is sent twice."""
        if FORWARDED_HEADER in request.headers:
            raise Unreachable("writer: expected the server that writes the collection, got another front")
        url = self._writer().rstrip("/")
        if urlsplit(url).scheme not in ("http", "https"):
            raise Busy("writer: no server that writes this collection is known here. Searches go on without it")
        path, query = request.scope.get("raw_path", request.url.path.encode()).decode(), request.url.query
        outgoing = self._client.build_request(
            request.method,
            f"{url}{path}{'?' + query if query else ''}",
            headers=_request_headers(request),
            content=_body(request),
        )
        try:
            incoming = await self._client.send(outgoing, stream=True)
        except self._failures as error:
            problem = f"{type(error).__name__}: {error}"
            raise Busy(f"writer: {url} does not answer: {problem}. Searches go on without it") from error
        headers = [pair for pair in incoming.headers.multi_items() if pair[0] not in HOP_HEADERS | OWN_HEADERS]
        response = StreamingResponse(
            incoming.aiter_raw(), incoming.status_code, background=BackgroundTask(incoming.aclose)
        )
        response.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return response

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def _request_headers(request: Request) -> list[tuple[str, str]]:
    """Return the headers to send, the Host that the client named among them, since Origin is compared with it."""
    headers = [pair for pair in request.headers.items() if pair[0] not in HOP_HEADERS | {"x-request-id"}]
    client = request.client.host if request.client is not None else ""
    return [*headers, ("x-request-id", request.state.request_id), (FORWARDED_HEADER, client or "unknown")]


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for part in request.stream():
        if part:
            yield part


# ---- the application ----

FRONT_THREADS, FRONT_SLOW_THREADS = 32, 4  # which wait for shards most of the time
SERVED_ROUTES: tuple[tuple[APIRouter, tuple[str, ...]], ...] = (
    (routes_items.search_router, ("search", "range_search")),
    (routes_items.read_router, ("get", "reconstruct", "count", "count_matching", "ids")),
    (routes_learning.read_router, ("versions", "quality")),
    (routes_server.read_router, ("stats",)),
    (routes_server.public_router, ("health",)),
    (routes_server.server_router, ("metrics",)),
    (routes_server.collections_router, ("collections",)),
)
FORWARDED_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

ready_router = api_router(None, "server", "/v1")


class Front(Protocol):
    """A published collection, with the verbs of a collection that the routes call."""

    dim: int
    bits: int
    codes_only: bool

    def readiness(self) -> dict[str, Any]: ...
    def count(self) -> int: ...


class FrontExecutor(ReadExecutor):
    """Run calls of a front in threads, for the event loop."""

    queued = 0  # writes, which a front has none of

    def __init__(self, name: str, front: Front, timeout: float) -> None:
        self.name, self.collection, self.timeout, self._closed = name, front, timeout, False
        self._readers = {
            "quick": started_pool(FRONT_THREADS, f"search {name}"),
            "slow": started_pool(FRONT_SLOW_THREADS, f"slow search {name}", lower_priority),
        }

    def close(self) -> None:
        """Wait for running calls; those that have not started raise Closed."""
        self._closed = True
        for readers in self._readers.values():
            readers.shutdown(cancel_futures=True)


def create_front_app(
    front: Front, name: str, settings: Settings | None = None, writer: Callable[[], str] = str
) -> FastAPI:
    """Return an ASGI application that serves a published collection under a name. The caller closes the front.

    writer: returns the URL of the server that writes the collection, "" while it is not known.
    """
    settings = settings or Settings()
    app = FastAPI(
        title="stillhash",
        version=__version__,
        description="Searches of a published collection; everything else is sent on to the server that writes it.",
        openapi_url=None,  # the writer describes all routes
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        exception_handlers=dict.fromkeys((StillhashError, RequestValidationError, HTTPException, Exception), on_error),
    )
    executor = FrontExecutor(name, front, settings.timeout)
    executors = {name: cast(CollectionExecutor, executor)}  # whose writes no route of a front calls
    memory, sessions = MemoryBudget(settings.max_memory_bytes), Sessions(settings.keys, settings.session_idle)
    metrics = Metrics(memory)
    lifecycle = CollectionLifecycle({}, settings)
    app.state.stillhash = AppState(executors, settings, metrics, QueryCache(), Sittings(), memory, sessions, lifecycle)
    app.state.front, app.state.forwarder = executor, Forwarder(writer)
    for router, names in SERVED_ROUTES:
        app.router.routes += [route for route in router.routes if isinstance(route, APIRoute) and route.name in names]
    app.include_router(ready_router)
    app.router.add_route("/{path:path}", forward, FORWARDED_METHODS, include_in_schema=False)
    app.add_middleware(RequestMiddleware, settings=settings, metrics=metrics, memory=memory, sessions=sessions)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with lifespan(app):
        yield
    await app.state.forwarder.close()
    app.state.front.close()


@ready_router.get("/ready", response_model=dict[str, Any])
async def ready(request: Request) -> Response:
    """Return whether all shards can be searched: 503 with the reason while some cannot."""
    state = request.app.state.front.collection.readiness()
    if not state["ready"]:
        raise Busy(f"shards: expected a replica of each, got none of {', '.join(map(str, state['missing']))}")
    about = {"manifest": state["number"], "replicas": state["replicas"], "degraded": state["degraded"]}
    return json_response({"ready": True, **about})


async def forward(request: Request) -> Response:
    """Send a request on to the writer."""
    forwarder: Forwarder = request.app.state.forwarder
    return await forwarder.send(request)
