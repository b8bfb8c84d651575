"""The learning page, which is live."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from typing import Any

from fastapi import Request
from starlette.responses import Response, StreamingResponse

from stillhash.collection import Collection
from stillhash.errors import StillhashError
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.pages.rendering import form_text, page_router, parse_integer, read_form, render, templates
from stillhash.server.write_queue import CollectionExecutor

STREAM_EVENTS, EVENT_SECONDS = 5, 1.0  # of one stream: how many events, and the time between two
LISTED_ITEMS = 100  # with doubtful labels
RECONNECT_MS = 200  # until the browser opens the next stream

read_router, write_router = page_router("read"), page_router("write")


templates.env.filters["format_time"] = lambda timestamp: f"{datetime.fromisoformat(timestamp):%d %b %H:%M:%S}"


@read_router.get("/c/{name}/learning")
async def learning(request: Request, executor: ExecutorParam) -> Response:
    stats, versions = await executor.read(lambda c: (c.stats(), c.versions()[::-1]))
    return render(request, "learning.html", executor, stats=stats, versions=versions)


@read_router.get("/c/{name}/doubtful_labels")
async def doubtful_labels(request: Request, executor: ExecutorParam) -> Response:
    """Show the items whose labels are least plausible."""
    items, share = await executor.read(lambda c: (c.doubtful_labels(LISTED_ITEMS), c.stats()["wrong_label_share"]))
    rows = [{"item": item, "name": json.dumps(item.id)} for item in items]
    return render(request, "doubtful_labels.html", executor, rows=rows, share=share)


@read_router.get("/c/{name}/versions")
async def versions(request: Request, executor: ExecutorParam, all: str = "") -> Response:
    """Show the table of versions: the latest, or all."""
    return await _render_versions(request, executor, all=all)


async def _render_versions(request: Request, executor: CollectionExecutor, **context: Any) -> Response:
    versions = await executor.read(Collection.versions)
    return render(request, "versions.html", executor, versions=versions[::-1], **context)


@write_router.post("/c/{name}/rollback")
async def rollback(request: Request, executor: ExecutorParam) -> Response:
    version = parse_integer(form_text(await read_form(request), "version"), "version")
    restored = await executor.write(lambda c: c.rollback(version))
    message = f"Version {version} is restored as version {restored}; its results are identical."
    return await _render_versions(request, executor, message=message)


@write_router.post("/c/{name}/tag")
async def tag(request: Request, executor: ExecutorParam) -> Response:
    form = await read_form(request)
    version, name = parse_integer(form_text(form, "version"), "version"), form_text(form, "tag").strip()
    await executor.write(lambda c: c.tag(version, name))
    message = f"Version {version} is now tagged {name}, and is kept permanently."
    return await _render_versions(request, executor, message=message)


@read_router.get("/c/{name}/events")
async def events(request: Request, executor: ExecutorParam) -> Response:
    """Stream the state of learning, once a second.

    A stream is short, so that it never delays a shutdown; the browser reconnects and sends the last version it has.
    """
    last = request.headers.get("last-event-id", "")
    seen = int(last) if last.isascii() and last.isdigit() and len(last) < 19 else -1
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_events(executor, seen), media_type="text/event-stream", headers=headers)


async def _events(executor: CollectionExecutor, seen: int) -> AsyncIterator[str]:
    yield f"retry: {RECONNECT_MS}\n\n"
    for number in range(STREAM_EVENTS):
        await asyncio.sleep(EVENT_SECONDS if number else 0)
        try:
            progress = await executor.read(partial(_progress, seen=seen))
        except StillhashError as error:
            yield f"event: failure\ndata: {json.dumps({'message': str(error)})}\n\n"
            continue
        seen = progress["version"]
        yield f"id: {seen}\ndata: {json.dumps(progress)}\n\n"


def _progress(collection: Collection, seen: int) -> dict[str, Any]:
    """Return counts and quality, and the points of the curve after version `seen`."""
    stats = collection.stats()
    version = stats["version"]
    restart = seen < 0 or seen > version  # a later version belongs to another collection
    since = -1 if restart else seen
    curve = collection.quality()["curve"] if since != version else []
    return {
        **{key: stats[key] for key in ("version", "items", "pending", "fitted", "quality")},
        "alarms": len(stats["drift_alarms"]),
        "restart": restart,
        "points": [point for point in curve if since < point["version"] <= version],
    }
