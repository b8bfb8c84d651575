"""The ASGI application of a front: searches of a published collection, and everything else sent on to its writer."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, cast

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from stillhash.errors import Busy, StillhashError
from stillhash.server import routes_collections, routes_items, routes_learning, routes_server
from stillhash.server.app import lifespan, on_error
from stillhash.server.auth import Sessions
from stillhash.server.collection_lifecycle import CollectionLifecycle
from stillhash.server.dependencies import AppState, api_router
from stillhash.server.forwarding import Forwarder
from stillhash.server.memory import MemoryBudget
from stillhash.server.metrics import Metrics
from stillhash.server.middleware import RequestMiddleware
from stillhash.server.query_cache import QueryCache
from stillhash.server.responses import json_response
from stillhash.server.settings import Settings
from stillhash.server.sittings import Sittings
from stillhash.server.write_queue import CollectionExecutor, ReadExecutor, lower_priority, started_pool
from stillhash.version import __version__

FRONT_THREADS, FRONT_SLOW_THREADS = 32, 4  # which wait for shards most of the time
SERVED_ROUTES: tuple[tuple[APIRouter, tuple[str, ...]], ...] = (
    (routes_items.search_router, ("search", "range_search")),
    (routes_items.read_router, ("get", "reconstruct", "count", "count_matching", "ids")),
    (routes_learning.read_router, ("versions", "quality")),
    (routes_server.read_router, ("stats",)),
    (routes_server.public_router, ("health",)),
    (routes_server.server_router, ("metrics",)),
    (routes_collections.read_router, ("collections",)),
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
