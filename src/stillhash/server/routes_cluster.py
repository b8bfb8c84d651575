"""Routes of the cluster that serves a collection: its status, and what changes shards and nodes."""

from typing import Annotated, Any

from fastapi import Depends
from pydantic import Field
from starlette.responses import Response

from stillhash.errors import NotFound
from stillhash.server.dependencies import ExecutorParam, api_router
from stillhash.server.request_body import RequestBody
from stillhash.server.responses import json_response
from stillhash.server.write_queue import ClusterControl

read_router, admin_router = api_router("read", "cluster"), api_router("admin", "cluster")


class NodeBody(RequestBody):
    node: Annotated[str, Field(min_length=1, description="The id of a node, as in the cluster's status.")]


class ShardBody(RequestBody):
    shard: Annotated[int, Field(ge=0, description="The number of a shard, as in the cluster's status.")]


async def get_cluster(executor: ExecutorParam) -> ClusterControl:
    if executor.cluster is None:
        raise NotFound(f"{executor.name!r} is not on a cluster. Start the server with --cluster ADDRESS")
    return executor.cluster


ClusterParam = Annotated[ClusterControl, Depends(get_cluster)]


@read_router.get("/cluster", response_model=dict[str, Any])
async def status(executor: ExecutorParam, cluster: ClusterParam) -> Response:
    """Return nodes, shards, actors, moves with their progress, and problems."""
    return json_response(await executor.read(lambda _: cluster.status(), "slow"))


@admin_router.post("/cluster/add_shard")
async def add_shard(executor: ExecutorParam, cluster: ClusterParam) -> dict[str, int]:
    """Add a shard, and move its share of the rows to it. Searches go on."""
    return {"shard": await executor.read(lambda _: cluster.add_shard(), "upkeep")}


@admin_router.post("/cluster/remove_shard")
async def remove_shard(executor: ExecutorParam, cluster: ClusterParam, body: ShardBody) -> dict[str, int]:
    """Give the rows of a shard to the others, and stop it. Searches go on."""
    await executor.read(lambda _: cluster.remove_shard(body.shard), "upkeep")
    return {"shard": body.shard}


@admin_router.post("/cluster/drain")
async def drain(executor: ExecutorParam, cluster: ClusterParam, body: NodeBody) -> dict[str, int]:
    """Move every actor off a node, and stop using it."""
    return {"moved": await executor.read(lambda _: cluster.drain(body.node), "upkeep")}


@admin_router.post("/cluster/undrain")
async def undrain(executor: ExecutorParam, cluster: ClusterParam, body: NodeBody) -> dict[str, int]:
    """Use a drained node again, and move actors to it."""
    return {"moved": await executor.read(lambda _: cluster.undrain(body.node), "upkeep")}


@admin_router.post("/cluster/rebalance")
async def rebalance(executor: ExecutorParam, cluster: ClusterParam) -> dict[str, int]:
    """Move actors between nodes and segments between shards until they are even."""
    return {"moved": await executor.read(lambda _: cluster.rebalance(), "upkeep")}


@admin_router.post("/cluster/compact", response_model=dict[str, Any])
async def compact(executor: ExecutorParam, cluster: ClusterParam) -> Response:
    """Join small segments and drop deleted rows, on all shards. Searches and writes go on."""
    return json_response(await executor.read(lambda _: cluster.compact(), "upkeep"))
