"""Routes that list, create and delete collections."""

from collections.abc import Callable
from contextlib import suppress

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
from stillhash.server.write_queue import CollectionExecutor, Result

read_router = api_router("read", "collections", "/v1/collections")
admin_router = api_router("admin", "collections", "/v1/collections")


async def read_all(
    executors: dict[str, CollectionExecutor], work: Callable[[Collection], Result]
) -> dict[CollectionExecutor, Result]:
    """Read from each collection, without those that are deleted meanwhile."""
    results = {}
    for executor in list(executors.values()):
        with suppress(Closed):
            results[executor] = await executor.read(work)
    return results


@read_router.get("")
async def collections(request: Request) -> CollectionsResponse:
    """List the collections that the key has."""
    counts = await read_all(visible_executors(request), lambda c: c.count())
    items = {executor.name: count for executor, count in counts.items()}
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
    app_state(request).sittings.remove(executor.name)
    return DeletedResponse(name=executor.name)
