"""The application: collections behind desks, routes, the page, and what becomes of errors."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from stillhash.collection import Collection
from stillhash.errors import InvalidInput, NotFound, StillhashError
from stillhash.server import routes, routes_cluster
from stillhash.server.metrics import Metrics
from stillhash.server.middleware import Gate
from stillhash.server.pages import search as search_page
from stillhash.server.schemas import VERSION, failed, told
from stillhash.server.settings import Settings
from stillhash.server.write_queue import Crew, Desk, QueryEncoder

log = logging.getLogger("stillhash.server")


class Unexpected(StillhashError):
    """Something went wrong that should not; the log has the details."""


class NotAllowed(StillhashError):
    """The address is there, but not for this method."""

    status = 405


def create_app(
    collections: dict[str, Collection],
    settings: Settings | None = None,
    eyes: Mapping[str, QueryEncoder] | None = None,
    crews: Mapping[str, Crew] | None = None,
) -> FastAPI:
    """An ASGI application that serves open collections by their names. Whoever opened them closes them.

    `eyes` make features of images and words for the collections of these names; `crews` hold the codes of those that
    are on a cluster.
    """
    settings = settings or Settings()
    if not collections:
        raise InvalidInput("collections is empty; at least one is wanted")
    desks = {
        name: Desk(
            name,
            collection,
            (eyes or {}).get(name),
            (crews or {}).get(name),
            queue=settings.queue,
            timeout=settings.timeout,
        )
        for name, collection in collections.items()
    }
    metrics = Metrics(desks)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        for desk in desks.values():
            desk.close()

    app = FastAPI(
        title="stillhash",
        version=VERSION,
        description="Vector search over compact binary codes whose similarity keeps learning.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        exception_handlers={
            StillhashError: _ours,
            RequestValidationError: _invalid,
            HTTPException: _http,
            Exception: _unexpected,
        },
    )
    app.state.room = routes.Room(desks, settings, metrics)
    for router in (routes.public, routes.reading, routes.writing, routes_cluster.reading, routes_cluster.writing):
        app.include_router(router)
    search_page.install(app)
    app.add_middleware(Gate, settings=settings, metrics=metrics)
    return app


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, StillhashError)
    return failed(error, request.state.request_id)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return failed(told(error.errors()), request.state.request_id)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        response = failed(NotAllowed(f"{request.method} is not for this address"), request.state.request_id)
        response.headers.update(error.headers or {})
        return response
    known = NotFound(f"{request.url.path} is not an address of this server")
    return failed(known if error.status_code == 404 else InvalidInput(str(error.detail)), request.state.request_id)


async def _unexpected(request: Request, error: Exception) -> Response:
    log.exception("unexpected", exc_info=error, extra={"about": {"request_id": request.state.request_id}})
    return failed(Unexpected("something went wrong here; the server's log has the details"), request.state.request_id)
