"""The learning page, which is live: the gain, the curve, the quality of labels, and the versions."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from typing import Any

from fastapi import Request
from starlette.responses import Response, StreamingResponse

from stillhash.collection import Collection
from stillhash.errors import Conflict, NotFitted, StillhashError
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.pages.learning_code import learning_code
from stillhash.server.pages.learning_views import (
    CURVE_MEASURES,
    curve_markers,
    few_steps,
    list_steps,
    read_learning,
    signed,
    summarise_gain,
)
from stillhash.server.pages.rendering import form_text, page_router, parse_integer, read_form, render, templates
from stillhash.server.write_queue import CollectionExecutor

STREAM_EVENTS, EVENT_SECONDS = 5, 1.0  # of one stream: how many events, and the time between two
RECONNECT_MS = 200  # until the browser opens the next stream

read_router, write_router = page_router("read"), page_router("write")


templates.env.filters["format_time"] = lambda timestamp: f"{datetime.fromisoformat(timestamp):%d %b %H:%M:%S}"
templates.env.filters["signed"] = signed
templates.env.globals["curve_measures"] = CURVE_MEASURES


@read_router.get("/c/{name}/learning")
async def learning(request: Request, executor: ExecutorParam) -> Response:
    """Show what learning has gained."""
    view = await executor.read(read_learning)
    view |= await _label_quality(executor)
    return render(request, "learning.html", executor, code=learning_code(executor.name), **view)


@read_router.get("/c/{name}/label_quality")
async def label_quality(request: Request, executor: ExecutorParam) -> Response:
    """Show the quality of each label again."""
    return render(request, "learning_labels.html", executor, **await _label_quality(executor))


async def _label_quality(executor: CollectionExecutor) -> dict[str, Any]:
    """Return the quality of each label, or why there is none."""
    try:
        return {"probe": await executor.read(Collection.probe, "slow"), "no_probe": ""}
    except NotFitted:
        return {"probe": None, "no_probe": "Labels are measured once learning has begun."}
    except Conflict:
        return {"probe": None, "no_probe": "Labels are measured once 20 items or more have some."}


@read_router.get("/c/{name}/steps")
async def steps(request: Request, executor: ExecutorParam) -> Response:
    """Show the table of the steps again, which has the same figures as the charts."""
    return render(request, "learning_steps.html", executor, steps=await executor.read(_steps))


def _steps(collection: Collection) -> list[dict[str, Any]]:
    curve = collection.quality()["curve"]
    return list_steps(curve, curve_markers(curve, collection.learning_events()))


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
    """Return counts and quality; and where the version is not `seen`, the gain, and the later points of the curve."""
    stats = collection.stats()
    version = stats["version"]
    restart = seen < 0 or seen > version  # a later version belongs to another collection
    since = -1 if restart else seen
    progress = {
        **{key: stats[key] for key in ("version", "items", "pending", "fitted", "quality")},
        "alarms": len(stats["drift_alarms"]),
        "restart": restart,
        "points": [],
    }
    if since == version:
        return progress
    curve = collection.quality()["curve"]
    return progress | {
        "points": [point for point in curve if since < point["version"] <= version],
        "markers": curve_markers(curve, collection.learning_events()),
        "gain": summarise_gain(curve, stats),
        "few": few_steps(curve),
    }
