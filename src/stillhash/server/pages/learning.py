"""The page's views of learning, which is live, and of the collection itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from stillhash.collection import Collection
from stillhash.errors import StillhashError
from stillhash.server.pages.rendering import PageRoute, drawn, form_of, number, templates, text
from stillhash.server.routes import At, may
from stillhash.server.write_queue import Desk

LOOKS, PAUSE = 5, 1.0  # of a stream of events: how many, and the seconds between; then the browser asks anew
AGAIN = 200  # milliseconds until it does

looking = APIRouter(route_class=PageRoute, include_in_schema=False, dependencies=[may("read")])
changing = APIRouter(route_class=PageRoute, include_in_schema=False, dependencies=[may("write")])


def _when(made: str) -> str:
    """A moment, as a table has room for."""
    return f"{datetime.fromisoformat(made):%d %b %H:%M:%S}"


def _bytes(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


templates.env.filters |= {"when": _when, "as_bytes": _bytes}

# ---- learning ----


@looking.get("/c/{name}/learning")
async def learning(request: Request, at: At) -> Response:
    stats, versions = await at.read(lambda c: (c.stats(), c.versions()[::-1]))
    return drawn(request, "learning.html", name=at.name, stats=stats, versions=versions)


@looking.get("/c/{name}/versions")
async def versions(request: Request, at: At, all: str = "") -> Response:
    """The table of versions: the latest, or all."""
    return await _versions(request, at, all=all)


async def _versions(request: Request, at: Desk, said: str = "", all: str = "") -> Response:
    kept = await at.read(Collection.versions)
    return drawn(request, "versions.html", name=at.name, versions=kept[::-1], said=said, all=all)


@changing.post("/c/{name}/rollback")
async def rollback(request: Request, at: At) -> Response:
    version = number(text(await form_of(request), "version"), "version")
    made = await at.write(lambda c: c.rollback(version))
    return await _versions(request, at, f"Version {made} answers as version {version} did, to the byte.")


@changing.post("/c/{name}/tag")
async def tag(request: Request, at: At) -> Response:
    form = await form_of(request)
    version, name = number(text(form, "version"), "version"), text(form, "tag").strip()
    await at.write(lambda c: c.tag(version, name))
    return await _versions(request, at, f"Version {version} is now called {name}, and is kept.")


@looking.get("/c/{name}/events")
async def events(request: Request, at: At) -> Response:
    """How learning stands, told once a second.

    A stream is short, so that it never keeps a server from stopping; the browser asks again and says what it has seen.
    """
    last = request.headers.get("last-event-id", "")
    seen = int(last) if last.isascii() and last.isdigit() and len(last) < 19 else -1
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_told(at, seen), media_type="text/event-stream", headers=headers)


async def _told(at: Desk, seen: int) -> AsyncIterator[str]:
    yield f"retry: {AGAIN}\n\n"
    for look in range(LOOKS):
        await asyncio.sleep(PAUSE if look else 0)
        try:
            news = await at.read(partial(_news, seen=seen))
        except StillhashError as error:
            yield f"event: wrong\ndata: {json.dumps({'message': str(error)})}\n\n"
            continue
        seen = news["version"]
        yield f"id: {seen}\ndata: {json.dumps(news)}\n\n"


def _news(collection: Collection, seen: int) -> dict[str, Any]:
    """What there is to tell somebody who has seen the curve up to a version."""
    stats = collection.stats()
    version = stats["version"]
    fresh = seen < 0 or seen > version  # who has seen more than there is saw another collection
    since = -1 if fresh else seen
    curve = collection.quality()["curve"] if since != version else []
    return {
        **{key: stats[key] for key in ("version", "items", "pending", "fitted", "quality")},
        "alarms": len(stats["drift_alarms"]),
        "fresh": fresh,
        "points": [point for point in curve if since < point["version"] <= version],
    }


# ---- the collection ----


@looking.get("/c/{name}/collection")
async def collection(request: Request, at: At) -> Response:
    stats = await at.read(Collection.stats)
    return drawn(request, "collection.html", name=at.name, stats=stats, waiting=at.waiting, queue=at.queue)


@looking.post("/c/{name}/verify")
async def verify(request: Request, at: At) -> Response:
    """Looks at all that is stored."""
    return drawn(request, "verified.html", problems=await at.read(Collection.verify, patient=True))
