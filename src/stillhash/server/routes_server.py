"""Routes of the server itself, and of a collection's upkeep."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import Request
from starlette.responses import PlainTextResponse, Response

from stillhash.collection import Collection
from stillhash.errors import Denied, NotFound
from stillhash.server.dependencies import Credentials, ExecutorParam, app_state, check_key
from stillhash.server.responses import json_response
from stillhash.server.routing import api_router
from stillhash.server.schemas import (
    CollectionsResponse,
    HealthResponse,
    SnapshotResponse,
    StatsResponse,
    VerifyResponse,
)

public_router = api_router(None, "server")
server_router = api_router("read", "server")
read_router, write_router = api_router("read", "upkeep"), api_router("write", "upkeep")


@public_router.get("/health")
async def health(request: Request, credentials: Credentials = None) -> HealthResponse:
    """Return whether the server can answer; with a key, also the number of items of each collection."""
    executors = app_state(request).executors
    counts = {name: await executor.read(Collection.count) for name, executor in executors.items()}
    try:
        check_key(request, credentials, "read")
    except Denied:
        counts = {}
    return HealthResponse(status="ok", stillhash=request.app.version, collections=counts)


@server_router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Return metrics for Prometheus."""
    state = app_state(request)
    executor = next(iter(state.executors.values()))
    data = await executor.read(lambda _: state.metrics.render())
    return Response(data, media_type="text/plain; version=0.0.4")


@server_router.get("/collections")
async def collections(request: Request) -> CollectionsResponse:
    """List the collections."""
    return CollectionsResponse(collections=list(app_state(request).executors))


@read_router.get("/collections/{name}/stats", response_model=StatsResponse)
async def stats(executor: ExecutorParam) -> Response:
    """Return settings, counts and disk use."""
    return json_response(await executor.read(Collection.stats))


@read_router.post("/collections/{name}/verify")
async def verify(executor: ExecutorParam) -> VerifyResponse:
    """Check everything that is stored, and list the problems."""
    return VerifyResponse(problems=await executor.read(Collection.verify, unlimited=True))


@write_router.post("/collections/{name}/snapshot")
async def snapshot(request: Request, executor: ExecutorParam) -> SnapshotResponse:
    """Copy the collection at one commit to the server's folder of snapshots."""
    folder = app_state(request).settings.snapshots
    if folder is None:
        raise NotFound("snapshots: this server has no folder for them. Start it with --snapshots FOLDER")
    name = f"{executor.name}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    size = await executor.read(lambda c: c.snapshot(folder / name), unlimited=True)
    return SnapshotResponse(name=name, bytes=size)
