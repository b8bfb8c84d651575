"""Routes of a collection whose codes are on a cluster."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends
from starlette.responses import Response

from stillhash.errors import NotFound
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.responses import json_response
from stillhash.server.routing import api_router
from stillhash.server.schemas import DrainBody
from stillhash.server.write_queue import ClusterControl

read_router, write_router = api_router("read", "cluster"), api_router("write", "cluster")


async def get_cluster(executor: ExecutorParam) -> ClusterControl:
    if executor.cluster is None:
        raise NotFound(f"{executor.name!r} is not on a cluster. Start the server with --cluster ADDRESS")
    return executor.cluster


ClusterParam = Annotated[ClusterControl, Depends(get_cluster)]


@read_router.get("/collections/{name}/cluster", response_model=dict[str, Any])
async def status(executor: ExecutorParam, cluster: ClusterParam) -> Response:
    """Return nodes, shards and their actors, and whether all of them are up to date."""
    return json_response(await executor.read(lambda _: cluster.status()))


@write_router.post("/collections/{name}/cluster/add_shard")
async def add_shard(executor: ExecutorParam, cluster: ClusterParam) -> dict[str, int]:
    """Add a shard, and move its share of the rows to it. Searches go on."""
    return {"shard": await executor.read(lambda _: cluster.add_shard(), unlimited=True)}


@write_router.post("/collections/{name}/cluster/drain")
async def drain(
    executor: ExecutorParam,
    cluster: ClusterParam,
    body: Annotated[DrainBody, Depends(DrainBody.from_request)],
) -> dict[str, int]:
    """Move every actor off a node, and stop using it."""
    return {"moved": await executor.read(lambda _: cluster.drain(body.node), unlimited=True)}
