"""Routes about the server: its state, its collections, and the cluster."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from stillhash.collection import Collection
from stillhash.collection.storage.audit import set_actor
from stillhash.errors import Busy, Closed, Denied, NotFound, StillhashError
from stillhash.server import schemas
from stillhash.server.bodies import RequestBody
from stillhash.server.dependencies import (
    Credentials,
    ExecutorParam,
    actor,
    api_router,
    app_state,
    check_all_collections,
    check_key,
    visible_executors,
)
from stillhash.server.responses import json_response
from stillhash.server.schemas import (
    CollectionsResponse,
    CreateCollectionBody,
    DeleteCollectionBody,
    DeletedResponse,
    StatsResponse,
)
from stillhash.server.write_queue import ClusterControl, CollectionExecutor, OnShards, Result

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


@admin_router.post("/build_rescoring")
async def build_rescoring(executor: ExecutorParam, body: schemas.BuildRescoringBody) -> schemas.MissingResponse:
    """Build rescoring codes of items in a collection that has none, by the features that they were added with.

    Once all items have one, a task `build_rescoring` lets the collection have them.
    """
    missing = await executor.write(partial(Collection.build_rescoring, **vars(body)))
    return schemas.MissingResponse(missing=missing)


@admin_router.post("/snapshot")
async def snapshot(request: Request, executor: ExecutorParam) -> schemas.SnapshotResponse:
    """Copy the collection at one commit to the server's folder of snapshots."""
    folder = app_state(request).settings.snapshots
    if folder is None:
        raise NotFound("snapshots: this server has no folder for them. Start it with --snapshots FOLDER")
    name = f"{executor.name}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    size = await executor.read(lambda c: c.snapshot(folder / name), "upkeep")
    return schemas.SnapshotResponse(name=name, bytes=size)


# ---- collections ----

collections_router = api_router("read", "collections", "/v1/collections")
creation_router = api_router("admin", "collections", "/v1/collections")


async def read_all(
    executors: dict[str, CollectionExecutor], work: Callable[[Collection], Result]
) -> dict[CollectionExecutor, Result]:
    """Read from each collection, without those that are deleted meanwhile."""
    results = {}
    for executor in list(executors.values()):
        with suppress(Closed):
            results[executor] = await executor.read(work)
    return results


@collections_router.get("")
async def collections(request: Request) -> CollectionsResponse:
    """List the collections that the key has."""
    counts = await read_all(visible_executors(request), lambda c: c.count())
    items = {executor.name: count for executor, count in counts.items()}
    return CollectionsResponse(collections=list(items), items=items)


@creation_router.post("", response_model=StatsResponse)
async def create_collection(request: Request, body: CreateCollectionBody) -> Response:
    """Create an empty collection in the server's folder of collections, and return its stats."""
    set_actor(actor(request))
    executor = await app_state(request).lifecycle.create(request.state.key, body.name, body.settings())
    return json_response(await executor.read(Collection.stats))


@creation_router.delete("/{name}")
async def delete_collection(request: Request, executor: ExecutorParam, body: DeleteCollectionBody) -> DeletedResponse:
    """Delete a collection and all its files. What waits for it meanwhile fails; nothing of it can be restored."""
    await app_state(request).lifecycle.delete(executor.name, body.confirm)
    app_state(request).query_cache.remove(executor.name)
    app_state(request).sittings.remove(executor.name)
    return DeletedResponse(name=executor.name)


# ---- the cluster ----

cluster_router, cluster_admin_router = api_router("read", "cluster"), api_router("admin", "cluster")


class NodeBody(RequestBody):
    node: Annotated[str, Field(min_length=1, description="The id of a node, as in the cluster's status.")]


class ShardBody(RequestBody):
    shard: Annotated[int, Field(ge=0, description="The number of a shard, as in the cluster's status.")]


async def get_cluster(executor: ExecutorParam) -> ClusterControl:
    if executor.cluster is None:
        raise NotFound(f"{executor.name!r} is not on a cluster. Start the server with --cluster ADDRESS")
    return executor.cluster


ClusterParam = Annotated[ClusterControl, Depends(get_cluster)]


@cluster_router.get("/cluster", response_model=dict[str, Any])
async def status(executor: ExecutorParam, cluster: ClusterParam) -> Response:
    """Return nodes, shards, actors, moves with their progress, and problems."""
    return json_response(await executor.read(lambda _: cluster.status(), "slow"))


@cluster_admin_router.post("/cluster/add_shard")
async def add_shard(executor: ExecutorParam, cluster: ClusterParam) -> dict[str, int]:
    """Add a shard, and move its share of the rows to it. Searches go on."""
    return {"shard": await executor.read(lambda _: cluster.add_shard(), "upkeep")}


@cluster_admin_router.post("/cluster/remove_shard")
async def remove_shard(executor: ExecutorParam, cluster: ClusterParam, body: ShardBody) -> dict[str, int]:
    """Give the rows of a shard to the others, and stop it. Searches go on."""
    await executor.read(lambda _: cluster.remove_shard(body.shard), "upkeep")
    return {"shard": body.shard}


@cluster_admin_router.post("/cluster/drain")
async def drain(executor: ExecutorParam, cluster: ClusterParam, body: NodeBody) -> dict[str, int]:
    """Move every actor off a node, and stop using it."""
    return {"moved": await executor.read(lambda _: cluster.drain(body.node), "upkeep")}


@cluster_admin_router.post("/cluster/undrain")
async def undrain(executor: ExecutorParam, cluster: ClusterParam, body: NodeBody) -> dict[str, int]:
    """Use a drained node again, and move actors to it."""
    return {"moved": await executor.read(lambda _: cluster.undrain(body.node), "upkeep")}


@cluster_admin_router.post("/cluster/rebalance")
async def rebalance(executor: ExecutorParam, cluster: ClusterParam) -> dict[str, int]:
    """Move actors between nodes and segments between shards until they are even."""
    return {"moved": await executor.read(lambda _: cluster.rebalance(), "upkeep")}


@cluster_admin_router.post("/cluster/compact", response_model=dict[str, Any])
async def compact(executor: ExecutorParam, cluster: ClusterParam) -> Response:
    """Join small segments and drop deleted rows, on all shards. Searches and writes go on."""
    return json_response(await executor.read(lambda _: cluster.compact(), "upkeep"))
