"""Pictures of items and of uploads."""

from fastapi import Request
from starlette.responses import Response

from stillhash.collection import Collection
from stillhash.server.dependencies import ExecutorParam, app_state
from stillhash.server.pages.queries import find_item
from stillhash.server.pages.rendering import page_router
from stillhash.server.pages.thumbnails import draw_thumbnail, find_thumbnail, thumbnail_response
from stillhash.server.query_cache import Picture

router = page_router("read")


@router.get("/c/{name}/picture")
async def picture(request: Request, executor: ExecutorParam, id: str = "", q: str = "") -> Response:
    """Return the thumbnail of an item, or of an upload."""
    state = app_state(request)
    if q:
        query = state.query_cache.get(executor.name, q)
        return thumbnail_response(request, query.picture or draw_thumbnail(query.title))

    def find(collection: Collection) -> Picture:
        item = find_item(collection, id)
        return find_thumbnail(item, collection.picture(item.id), state.settings.images)

    return thumbnail_response(request, await executor.read(find))
