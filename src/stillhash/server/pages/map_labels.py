"""Label all items of a rectangle of the map at once, and take that back."""

import math
import secrets
from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from fastapi import Request
from starlette.datastructures import FormData
from starlette.responses import Response

from stillhash.collection import Collection, ItemLayout
from stillhash.collection.types import Id
from stillhash.errors import Conflict, InvalidInput, TooLarge
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.pages.item_labels import parse_labels
from stillhash.server.pages.map import cached_layout
from stillhash.server.pages.rendering import form_text, page_router, read_form, render
from stillhash.server.write_queue import CollectionExecutor

MAX_LABELLED_ITEMS = 5000  # at once: learning them takes about a second
MAX_UNDONE = 16  # changes of a collection that can be taken back

router = page_router("write")

_before: WeakKeyDictionary[CollectionExecutor, OrderedDict[str, dict[Id, list[Any]]]] = WeakKeyDictionary()


@router.post("/c/{name}/map/label")
async def label_box(request: Request, executor: ExecutorParam) -> Response:
    """Add labels to the items whose points are in a rectangle, and learn from them."""
    form = await read_form(request)
    chosen = items_within(cached_layout(executor, form_text(form, "key")), parse_box(form))
    labels = parse_labels(form_text(form, "labels"), [])
    if not labels:
        raise InvalidInput("labels: expected at least one, got none")
    if not 0 < len(chosen) <= MAX_LABELLED_ITEMS:
        expected = f"from 1 to {MAX_LABELLED_ITEMS:,} items in the rectangle"
        raise TooLarge(f"box: expected {expected}, got {len(chosen):,}. Zoom in, and select fewer")

    def add(collection: Collection) -> dict[Id, list[Any]]:
        existing = [item.id for item in collection.get(chosen) if item is not None]
        before = collection.add_labels(existing, labels)
        collection.flush()
        return dict(before)

    before = await executor.write(add)
    changes, token = _before.setdefault(executor, OrderedDict()), secrets.token_hex(8)
    changes[token] = before
    while len(changes) > MAX_UNDONE:
        changes.popitem(last=False)
    context: dict[str, Any] = {
        "labels": labels,
        "count": len(before),
        "same": len(chosen) - len(before),
        "token": token,
    }
    return render(request, "map_labelled.html", executor, **context)


@router.post("/c/{name}/map/unlabel")
async def undo_labels(request: Request, executor: ExecutorParam) -> Response:
    """Give items back the labels that they had before."""
    form = await read_form(request)
    before = _before.get(executor, OrderedDict()).pop(form_text(form, "token"), None)
    if before is None:
        raise Conflict("labels: this change can no longer be taken back")

    def restore(collection: Collection) -> int:
        existing = [item.id for item in collection.get(list(before)) if item is not None]
        if existing:
            collection.relabel(existing, [before[name] for name in existing])
            collection.flush()
        return len(existing)

    count = await executor.write(restore)
    return render(request, "map_labelled.html", executor, restored=count)


def parse_box(form: FormData) -> list[float]:
    """Return left, bottom, right and top of a rectangle."""
    parts = form_text(form, "box").split(",")
    try:
        box = [float(part) for part in parts]
    except ValueError:
        box = []
    if len(box) != 4 or not all(map(math.isfinite, box)):
        raise InvalidInput(f"box: expected four numbers, got {','.join(parts)[:60]!r}")
    return box


def items_within(layout: ItemLayout, box: list[float]) -> list[Id]:
    """Return the items whose points are in a rectangle, edges included."""
    left, bottom, right, top = box
    x, y = layout.coordinates.astype(np.float64).T
    inside = np.flatnonzero((left <= x) & (x <= right) & (bottom <= y) & (y <= top))
    return [layout.ids[number] for number in inside.tolist()]
