"""The ASGI application: state, routes, pages, middleware and error handlers."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from stillhash.collection import Collection
from stillhash.errors import InvalidInput, StillhashError
from stillhash.server import routes_export, routes_items, routes_learning, routes_server, routes_tasks
from stillhash.server.auth import Sessions
from stillhash.server.collection_lifecycle import CollectionLifecycle, OpenQueryEncoder
from stillhash.server.dependencies import AppState
from stillhash.server.limits import MemoryBudget
from stillhash.server.metrics import Metrics
from stillhash.server.middleware import RequestMiddleware
from stillhash.server.page_state import QueryCache, Sittings
from stillhash.server.pages import (
    api_docs,
    collection,
    comparing,
    creation,
    explanations,
    labels,
    learning,
    login,
    pictures,
    search,
    tasks,
    teaching,
    votes,
)
from stillhash.server.pages.rendering import static_files
from stillhash.server.responses import Unexpected, error_response, to_error
from stillhash.server.settings import Settings
from stillhash.server.write_queue import ClusterControl, CollectionExecutor, QueryEncoder, started_pool
from stillhash.version import __version__

ROUTERS = (
    routes_items.search_router,  # first, since routes are tried in this order
    *(routes_server.public_router, routes_server.server_router, routes_server.read_router, routes_server.admin_router),
    *(routes_server.collections_router, routes_server.creation_router),
    *(routes_items.read_router, routes_items.write_router, routes_export.read_router),
    *(routes_learning.read_router, routes_learning.feedback_router, routes_learning.write_router),
    *(routes_items.admin_router, routes_tasks.read_router, routes_tasks.admin_router, routes_tasks.write_router),
    *(routes_server.cluster_router, routes_server.cluster_admin_router),
    *(login.router, api_docs.router, search.router, votes.router, explanations.router, pictures.router),
    *(teaching.read_router, teaching.write_router, labels.read_router, labels.write_router, comparing.router),
    *(learning.read_router, learning.write_router, collection.read_router, collection.write_router),
    *(creation.read_router, creation.admin_router, tasks.read_router, tasks.admin_router),
)

PARSING_THREADS = 2  # of large bodies; more would only take Python's global lock from each other

log = logging.getLogger("stillhash.server")


def create_app(
    collections: dict[str, Collection],
    settings: Settings | None = None,
    query_encoders: Mapping[str, QueryEncoder] | None = None,
    clusters: Mapping[str, ClusterControl] | None = None,
    open_query_encoder: OpenQueryEncoder | None = None,
) -> FastAPI:
    """Return an ASGI application that serves open collections by their names. The caller closes them.

    `query_encoders` encode images and text for the collections of these names; `clusters` hold the codes of those that
    are on a cluster. Those of the settings' `collections_folder` are opened here, and closed with the application;
    `open_query_encoder` opens the encoders of those.
    """
    settings = settings or Settings()
    if not collections and settings.collections_folder is None:
        raise InvalidInput("collections: expected at least one, or a folder to create them in, got none")
    encoders, limits = query_encoders or {}, (settings.max_queued_writes, settings.timeout)
    executors = {
        name: CollectionExecutor(name, collection, *limits, encoders.get(name), (clusters or {}).get(name))
        for name, collection in collections.items()
    }
    lifecycle = CollectionLifecycle(executors, settings, open_query_encoder)
    app = FastAPI(
        title="stillhash",
        version=__version__,
        description="Vector search over compact binary codes whose similarity keeps learning.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        exception_handlers=dict.fromkeys((StillhashError, RequestValidationError, HTTPException, Exception), on_error),
    )
    memory, sessions = MemoryBudget(settings.max_memory_bytes), Sessions(settings.keys, settings.session_idle)
    metrics = Metrics(memory)
    app.state.stillhash = AppState(executors, settings, metrics, QueryCache(), Sittings(), memory, sessions, lifecycle)
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/static", static_files, "static")
    app.add_middleware(RequestMiddleware, settings=settings, metrics=metrics, memory=memory, sessions=sessions)
    return app


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Run what an application needs besides its requests."""
    asyncio.get_running_loop().set_default_executor(started_pool(PARSING_THREADS, "parse"))
    yield
    await app.state.stillhash.lifecycle.close()


async def on_error(request: Request, raised: Exception) -> Response:
    """Answer with our error for whatever was raised."""
    error, request_id = to_error(raised, f"{request.method} {request.url.path}"), request.state.request_id
    if isinstance(error, Unexpected):
        log.exception("unexpected", exc_info=raised, extra={"fields": {"request_id": request_id}})
    response = error_response(error, request_id)
    response.headers.update(getattr(raised, "headers", None) or {})
    return response
