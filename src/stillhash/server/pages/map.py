"""The map of a collection: points that a script draws, and the same by group as a table.

Points are sent as bytes: the length of a JSON header as uint32, the header, then x and y of each point as float32, its
main label as uint8, and as uint8 whether that label is predicted. Ids are not sent: the page asks for items by points.
"""

import json
import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from fastapi import Request
from starlette.responses import Response

from stillhash.collection import Collection, ItemLayout
from stillhash.collection.layout import MAX_LAYOUT_ITEMS, LayoutSide
from stillhash.errors import Conflict, InvalidInput, NotFitted
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.pages.passages import text_hit
from stillhash.server.pages.rendering import page_router, parse_integer, render
from stillhash.server.write_queue import CollectionExecutor

MAP_POINTS = 20_000, 50_000, 100_000  # that a visitor may choose from
CACHED_LAYOUTS = 4  # of a collection
MAP_LISTED_ITEMS = 48  # of a selection at a time
SENT_LABELS = 250  # the others are OTHER_LABEL
OTHER_LABEL, NO_LABEL = 254, 255
MAP_SIDES: dict[LayoutSide, str] = {"features": "Looks", "labels": "Labels"}

router = page_router("read")


class LayoutKey(NamedTuple):
    """What tells a layout from others of the same collection."""

    by: LayoutSide
    points: int
    change: int  # the last one of the collection

    def __str__(self) -> str:
        return f"{self.by}-{self.points}-{self.change}"


_cache: WeakKeyDictionary[CollectionExecutor, OrderedDict[str, ItemLayout]] = WeakKeyDictionary()


async def find_layout(executor: CollectionExecutor, by: LayoutSide, points: int) -> tuple[str, ItemLayout]:
    """Return the layout of the latest commit, and its key; computed once for all visitors."""
    layouts = _cache.setdefault(executor, OrderedDict())
    change = await executor.read(lambda c: max((entry.number for entry in c.audit(limit=1)), default=0))
    key = str(LayoutKey(by, points, change))
    if key not in layouts:
        layouts[key] = await executor.read(lambda c: c.layout(points, by=by), "slow")
        while len(layouts) > CACHED_LAYOUTS:
            layouts.popitem(last=False)
    layouts.move_to_end(key)
    return key, layouts[key]


def cached_layout(executor: CollectionExecutor, key: str) -> ItemLayout:
    """Return a layout that was shown a short time ago."""
    layouts = _cache.get(executor)
    if layouts is None or key not in layouts:
        raise Conflict("map: the collection has changed since. Load the page again")
    return layouts[key]


@router.get("/c/{name}/map")
async def show_map(
    request: Request, executor: ExecutorParam, by: str = "features", points: str = "", label: str = ""
) -> Response:
    side = check_side(by)
    count = min(MAX_LAYOUT_ITEMS, max(1, parse_integer(points, "points"))) if points else MAP_POINTS[0]
    context: dict[str, Any] = {"sides": MAP_SIDES, "by": side, "points": count, "label": label}
    try:
        key, layout = await find_layout(executor, side, count)
    except NotFitted as error:
        stats = await executor.read(Collection.stats)
        return render(request, "map.html", executor, layout=None, error=error, stats=stats, **context)
    groups = list(layout_groups(layout))
    fewer = dict(zip(MAP_POINTS, (0, *MAP_POINTS), strict=False))
    context["choices"] = [some for some in MAP_POINTS if fewer[some] < layout.items]
    return render(request, "map.html", executor, layout=layout, key=key, groups=groups, **context)


@router.get("/c/{name}/map/points")
async def map_points(executor: ExecutorParam, key: str = "") -> Response:
    """Return the points of a map that is shown."""
    data = pack_layout(cached_layout(executor, key))
    return Response(data, media_type="application/octet-stream", headers={"cache-control": "private, max-age=3600"})


@router.get("/c/{name}/map/items")
async def map_items(
    request: Request,
    executor: ExecutorParam,
    key: str = "",
    points: str = "",
    total: str = "",
    first: str = "0",
    box: str = "",
) -> Response:
    """List the items of some points: those of a selection, a part at a time."""
    layout = cached_layout(executor, key)
    numbers = [parse_integer(text, "points") for text in points.split(",") if text]
    if len(numbers) > MAP_LISTED_ITEMS or any(number >= len(layout.ids) for number in numbers):
        raise InvalidInput(f"points: expected at most {MAP_LISTED_ITEMS} numbers of points, got {points[:60]!r}")
    items = await executor.read(lambda c: c.get([layout.ids[number] for number in numbers]))
    cards = [
        {"item": item, "name": json.dumps(item.id), "text": text_hit(item), "point": number}
        for number, item in zip(numbers, items, strict=True)
        if item is not None
    ]
    start = parse_integer(first, "first")
    total_items = parse_integer(total, "total") if total else len(numbers)
    context: dict[str, Any] = {
        "total": total_items,
        "first": start,
        "key": key,
        "box": box,
        "known": layout.labels[:SENT_LABELS],
    }
    return render(request, "map_items.html", executor, cards=cards, **context)


def check_side(by: str) -> LayoutSide:
    side = next((side for side in MAP_SIDES if side == by), None)
    if side is None:
        raise InvalidInput(f"by: expected one of {', '.join(MAP_SIDES)}, got {by[:40]!r}")
    return side


def pack_layout(layout: ItemLayout) -> bytes:
    """Return a layout as the page's script reads it."""
    counts = np.bincount(layout.main + 1, minlength=len(layout.labels) + 1).tolist()
    labels = [[str(label), count] for label, count in zip(layout.labels, counts[1:], strict=True)]
    about = {"points": len(layout.ids), "names": labels[:SENT_LABELS], "version": layout.version}
    header = json.dumps(about).encode()
    header += b" " * (-len(header) % 4)  # so that what follows is aligned
    numbers = np.where(layout.main < 0, NO_LABEL, np.where(layout.main < SENT_LABELS, layout.main, OTHER_LABEL))
    parts = [layout.coordinates.astype("<f4"), numbers.astype(np.uint8), layout.predicted.astype(np.uint8)]
    return struct.pack("<I", len(header)) + header + b"".join(part.tobytes() for part in parts)


def layout_groups(layout: ItemLayout) -> Iterator[dict[str, Any]]:
    """Describe each main label: how many items have it, of how many it is predicted, and where they are."""
    for number, label in [*enumerate(layout.labels[:SENT_LABELS]), (-1, None)]:
        members = layout.main == number
        if members.any():
            places = layout.coordinates[members].astype(np.float64)
            yield {
                "label": label,
                "count": int(members.sum()),
                "predicted": int(layout.predicted[members].sum()),
                "centre": places.mean(axis=0).tolist(),
                "width": float(np.sqrt(places.var(axis=0).sum())),
            }
