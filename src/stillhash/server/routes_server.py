"""Routes of the server itself, and of a collection's upkeep."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

from fastapi import Request
from starlette.responses import PlainTextResponse, Response

from stillhash.collection import Collection
from stillhash.errors import Busy, Closed, Denied, NotFound, StillhashError
from stillhash.server import schemas
from stillhash.server.dependencies import (
    Credentials,
    ExecutorParam,
    api_router,
    app_state,
    check_all_collections,
    check_key,
    visible_executors,
)
from stillhash.server.responses import json_response
from stillhash.server.routes_collections import read_all
from stillhash.server.write_queue import CollectionExecutor, OnShards

public_router, server_router = api_router(None, "server", "/v1"), api_router("read", "server", "/v1")
read_router, admin_router = api_router("read", "upkeep"), api_router("admin", "upkeep")


@public_router.get("/health")
async def health(request: Request, credentials: Credentials = None) -> schemas.HealthResponse:
    """Return whether the server can answer; with a key, also the number of items of each of its collections."""
    counts = await read_all(app_state(request).executors, lambda c: c.count())
    with suppress(Denied):
        check_key(request, credentials, "read")
    visible = {name: counts[executor] for name, executor in visible_executors(request).items() if executor in counts}
    return schemas.HealthResponse(status="ok", stillhash=request.app.version, collections=visible)


@public_router.get("/ready")
async def ready(request: Request, credentials: Credentials = None) -> schemas.ReadyResponse:
    """Return whether all collections can be searched completely; Busy, with the reason, while one cannot.

    A collection on a cluster is ready when every shard has a replica that answers. Shards with fewer replicas than they
    should have are `degraded`. Names of collections are for requests with a key.
    """
    with suppress(Denied):
        check_key(request, credentials, "read")
    visible, degraded, reasons = visible_executors(request), dict[str, list[int]](), list[str]()
    for executor in list(app_state(request).executors.values()):
        name = repr(executor.name) if executor.name in visible else "a collection"
        try:
            few, missing = await _readiness(executor)
        except Closed:  # deleted meanwhile
            continue
        except StillhashError as error:
            reasons.append(f"{name} does not answer: {error}")
            continue
        if missing:
            reasons.append(f"{name}: no replica of {missing} answers")
        if few and executor.name in visible:
            degraded[executor.name] = few
    if reasons:
        raise Busy("; ".join(reasons))
    return schemas.ReadyResponse(ready=True, degraded=degraded)


async def _readiness(executor: CollectionExecutor) -> tuple[list[int], str]:
    """Return the shards that lack some of their replicas, and those that lack all, in words."""
    source = executor.collection if executor.cluster is None else executor.cluster
    if not isinstance(source, OnShards):
        await executor.read(lambda collection: collection.count())
        return [], ""
    state = await executor.read(lambda _: source.readiness())
    missing = state["missing"]
    return list(state.get("degraded", [])), f"shards {', '.join(map(str, missing))}" if missing else ""


@server_router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Return metrics of all collections for Prometheus."""
    check_all_collections(request)
    state = app_state(request)
    stats = await read_all(state.executors, lambda c: c.stats())
    data = await asyncio.to_thread(state.metrics.render, stats)
    return Response(data, media_type="text/plain; version=0.0.4")


@read_router.get("/stats", response_model=schemas.StatsResponse)
async def stats(executor: ExecutorParam) -> Response:
    """Return settings, counts and disk use."""
    return json_response(await executor.read(lambda c: c.stats()))


@admin_router.get("/audit", response_model=schemas.AuditResponse)
async def audit(
    executor: ExecutorParam,
    after: schemas.AuditAfter = None,
    limit: schemas.AuditLimit = 100,
    who: schemas.AuditName = None,
) -> Response:
    """List who changed what, and when, the latest last; page by page."""
    return json_response({"entries": await executor.read(lambda c: c.audit(after, limit, who=who))})


@admin_router.post("/verify")
async def verify(executor: ExecutorParam) -> schemas.VerifyResponse:
    """Check everything that is stored, and list the problems."""
    return schemas.VerifyResponse(problems=await executor.read(Collection.verify, "upkeep"))


@admin_router.post("/snapshot")
async def snapshot(request: Request, executor: ExecutorParam) -> schemas.SnapshotResponse:
    """Copy the collection at one commit to the server's folder of snapshots."""
    folder = app_state(request).settings.snapshots
    if folder is None:
        raise NotFound("snapshots: this server has no folder for them. Start it with --snapshots FOLDER")
    name = f"{executor.name}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    size = await executor.read(lambda c: c.snapshot(folder / name), "upkeep")
    return schemas.SnapshotResponse(name=name, bytes=size)
