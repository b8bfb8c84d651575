"""Pictures of items: their own, or drawn ones."""

import base64
import hashlib
import re
from itertools import product
from pathlib import Path
from typing import Any

from fastapi import Request
from starlette.responses import Response

from stillhash.collection import Collection, Item
from stillhash.collection.validation import picture_type
from stillhash.server.dependencies import ExecutorParam, app_state
from stillhash.server.page_state import Picture
from stillhash.server.pages.queries import find_item
from stillhash.server.pages.rendering import page_router, templates

# ---- thumbnails ----
#
# Items are not trusted. Only the four image types that cannot carry a script are sent, recognised by their first bytes;
# files are read only inside the folder of the settings.

MAX_THUMBNAIL_BYTES = 8 << 20
DATA_URI = re.compile(r"data:image/(?:png|jpeg|webp|gif);base64,", re.IGNORECASE)
GRID_CELLS = 5  # of a drawing, across and down
MAX_TITLE = 7  # characters of an id in a drawing


def find_thumbnail(item: Item, stored: bytes | None, folder: Path | None) -> Picture:
    """Return the picture stored with an item, or the one its metadata holds or names, or a drawing."""
    image: Any = (item.metadata or {}).get("image")
    data = stored
    if data is None and isinstance(image, str):
        data = _decode_data_uri(image) if image[:5].lower() == "data:" else _read_file(image, folder)
    kind = picture_type(data) if data is not None else None
    return Picture(data, kind) if data is not None and kind is not None else draw_thumbnail(str(item.id))


def _decode_data_uri(uri: str) -> bytes | None:
    head = DATA_URI.match(uri)
    if head is None or len(uri) > 2 * MAX_THUMBNAIL_BYTES:
        return None
    try:
        return base64.b64decode(uri[head.end() :], validate=True)
    except ValueError:
        return None


def _read_file(path: str, folder: Path | None) -> bytes | None:
    """Read a file inside the folder, after following links."""
    if folder is None:
        return None
    try:
        base = folder.resolve(strict=True)
        file = (base / path).resolve(strict=True)
        if not file.is_relative_to(base) or not file.is_file() or file.stat().st_size > MAX_THUMBNAIL_BYTES:
            return None
        return file.read_bytes()
    except (OSError, ValueError, RuntimeError):
        return None


def draw_thumbnail(name: str) -> Picture:
    """Draw a pattern that depends on the name only, and the beginning of the name."""
    digest = hashlib.sha256(name.encode()).digest()
    half = (GRID_CELLS + 1) // 2
    places = product(range(GRID_CELLS), repeat=2)
    cells = [(x, y) for y, x in places if digest[1 + y * half + min(x, GRID_CELLS - 1 - x)] % 2]
    title = name if len(name) <= MAX_TITLE else name[: MAX_TITLE - 1] + "…"
    drawing = templates.get_template("thumbnail.svg").render(hue=digest[0] * 360 // 256, cells=cells, title=title)
    return Picture(drawing.encode(), "image/svg+xml")


def thumbnail_response(request: Request, picture: Picture) -> Response:
    """Return the picture, or 304 if the browser has it."""
    tag = f'"{hashlib.sha256(picture.data).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": "private, max-age=300"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(picture.data, media_type=picture.kind, headers=headers)


# ---- routes ----

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
