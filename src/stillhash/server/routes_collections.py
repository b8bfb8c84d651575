"""Routes that list, create and delete collections."""

from fastapi import Request
from starlette.responses import Response

from stillhash.collection import Collection
from stillhash.collection.actor import set_actor
from stillhash.errors import Closed
from stillhash.server.collection_schemas import (
    CollectionsResponse,
    CreateCollectionBody,
    DeleteCollectionBody,
    DeletedResponse,
)
from stillhash.server.dependencies import ExecutorParam, actor, api_router, app_state, visible_executors
from stillhash.server.responses import json_response
from stillhash.server.schemas import StatsResponse
from stillhash.server.write_queue import CollectionExecutor

read_router = api_router("read", "collections", "/v1/collections")
admin_router = api_router("admin", "collections", "/v1/collections")


async def count_items(executors: dict[str, CollectionExecutor]) -> dict[str, int]:
    """Return the number of items of each collection, without those that are deleted meanwhile."""
    counts = {}
    for name, executor in executors.copy().items():
        try:
            counts[name] = await executor.read(Collection.count)
        except Closed:
            continue
    return counts


@read_router.get("")
async def collections(request: Request) -> CollectionsResponse:
    """List the collections that the key has."""
    items = await count_items(visible_executors(request))
    return CollectionsResponse(collections=list(items), items=items)


@admin_router.post("", response_model=StatsResponse)
async def create_collection(request: Request, body: CreateCollectionBody) -> Response:
    """Create an empty collection in the server's folder of collections, and return its stats."""
    set_actor(actor(request))
    executor = await app_state(request).lifecycle.create(request.state.key, body.name, body.settings())
    return json_response(await executor.read(Collection.stats))


@admin_router.delete("/{name}")
async def delete_collection(request: Request, executor: ExecutorParam, body: DeleteCollectionBody) -> DeletedResponse:
    """Delete a collection and all its files. What waits for it meanwhile fails; nothing of it can be restored."""
    await app_state(request).lifecycle.delete(executor.name, body.confirm)
    app_state(request).query_cache.remove(executor.name)
    return DeletedResponse(name=executor.name)
