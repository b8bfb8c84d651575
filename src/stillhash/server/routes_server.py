"""Routes of the server itself, of a collection's upkeep, and of the cluster that holds its codes."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.responses import PlainTextResponse, Response

from stillhash.collection import Collection
from stillhash.errors import Denied, NotFound
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
from stillhash.server.write_queue import ClusterControl

public_router, server_router = api_router(None, "server", "/v1"), api_router("read", "server", "/v1")
read_router, admin_router = api_router("read", "upkeep"), api_router("admin", "upkeep")
cluster_read_router, cluster_admin_router = api_router("read", "cluster"), api_router("admin", "cluster")


@public_router.get("/health")
async def health(request: Request, credentials: Credentials = None) -> schemas.HealthResponse:
    """Return whether the server can answer; with a key, also the number of items of each of its collections."""
    counts = await read_all(app_state(request).executors, lambda c: c.count())
    with suppress(Denied):
        check_key(request, credentials, "read")
    visible = {name: counts[executor] for name, executor in visible_executors(request).items() if executor in counts}
    return schemas.HealthResponse(status="ok", stillhash=request.app.version, collections=visible)


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


async def get_cluster(executor: ExecutorParam) -> ClusterControl:
    if executor.cluster is None:
        raise NotFound(f"{executor.name!r} is not on a cluster. Start the server with --cluster ADDRESS")
    return executor.cluster


ClusterParam = Annotated[ClusterControl, Depends(get_cluster)]


@cluster_read_router.get("/cluster", response_model=dict[str, Any])
async def status(executor: ExecutorParam, cluster: ClusterParam) -> Response:
    """Return nodes, shards and their actors, and whether all of them are up to date."""
    return json_response(await executor.read(lambda _: cluster.status()))


@cluster_admin_router.post("/cluster/add_shard")
async def add_shard(executor: ExecutorParam, cluster: ClusterParam) -> dict[str, int]:
    """Add a shard, and move its share of the rows to it. Searches go on."""
    return {"shard": await executor.read(lambda _: cluster.add_shard(), "upkeep")}


@cluster_admin_router.post("/cluster/drain")
async def drain(executor: ExecutorParam, cluster: ClusterParam, body: schemas.DrainBody) -> dict[str, int]:
    """Move every actor off a node, and stop using it."""
    return {"moved": await executor.read(lambda _: cluster.drain(body.node), "upkeep")}
