"""Thumbnails: a picture that came with an item, as bytes or as the path of a file, or else a drawing.

What an item says is not trusted. Only the four kinds of pictures that cannot carry a script are sent, each known by its
first bytes and not by its name; files are read only inside the one folder that the server was given for them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import html
import re
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from stillhash.collection import Item
from stillhash.collection.types import picture_kind

MOST = 8 << 20  # bytes of a picture
INSIDE = re.compile(r"data:image/(?:png|jpeg|webp|gif);base64,", re.IGNORECASE)
CELLS = 5  # of a drawing, across and down
SHOWN = 7  # characters of an id in a drawing


class Picture(NamedTuple):
    data: bytes
    kind: str


def picture_of(item: Item, stored: bytes | None, folder: Path | None) -> Picture:
    """The picture that is stored with an item, or that its metadata has or names, or a drawing."""
    told: Any = (item.metadata or {}).get("image")
    data = stored
    if data is None and isinstance(told, str):
        data = _inside(told) if told[:5].lower() == "data:" else _from_file(told, folder)
    kind = picture_kind(data) if data is not None else None
    return Picture(data, kind) if data is not None and kind is not None else drawing(str(item.id))


def _inside(uri: str) -> bytes | None:
    head = INSIDE.match(uri)
    if head is None or len(uri) > 2 * MOST:
        return None
    try:
        return base64.b64decode(uri[head.end() :], validate=True)
    except (binascii.Error, ValueError):
        return None


def _from_file(path: str, folder: Path | None) -> bytes | None:
    """A file inside the folder, wherever links lead."""
    if folder is None:
        return None
    try:
        base = folder.resolve(strict=True)
        file = (base / path).resolve(strict=True)
        if not file.is_relative_to(base) or not file.is_file() or file.stat().st_size > MOST:
            return None
        return file.read_bytes()
    except (OSError, ValueError, RuntimeError):
        return None


def drawing(name: str) -> Picture:
    """A pattern that is always the same for a name, and the beginning of the name."""
    digest = hashlib.sha256(name.encode()).digest()
    hue = digest[0] * 360 // 256
    half = (CELLS + 1) // 2
    cells = "".join(
        f'<rect x="{x}" y="{y}" width="1" height="1"/>'
        for y in range(CELLS)
        for x in range(CELLS)
        if digest[1 + y * half + min(x, CELLS - 1 - x)] % 2
    )
    short = name if len(name) <= SHOWN else name[: SHOWN - 1] + "…"
    data = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 100">'
        f'<rect width="100" height="100" fill="hsl({hue} 30% 86%)"/>'
        f'<g transform="translate(20 10) scale(12)" fill="hsl({hue} 35% 62%)">{cells}</g>'
        f'<text x="50" y="90" font-family="system-ui, sans-serif" font-size="15" text-anchor="middle" '
        f'fill="hsl({hue} 45% 24%)">{html.escape(short)}</text></svg>'
    )
    return Picture(data.encode(), "image/svg+xml")


def sent(request: Request, picture: Picture) -> Response:
    """The picture, or that it is still the one the browser has."""
    tag = f'"{hashlib.sha256(picture.data).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": "private, max-age=300"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(picture.data, media_type=picture.kind, headers=headers)
