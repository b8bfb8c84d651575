"""The learning page, which is live: the gain, the curve, the quality of labels, and the versions."""

import asyncio
import json
from bisect import bisect_right
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
from fastapi import Request
from starlette.responses import Response, StreamingResponse

from stillhash.collection import Collection
from stillhash.collection.learning.prequential import LearningEvent
from stillhash.collection.learning.trainer import MIN_INIT_ROWS
from stillhash.errors import Conflict, NotFitted, StillhashError
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.pages.cards import ViewModel
from stillhash.server.pages.rendering import form_text, page_router, parse_integer, read_form, render, templates
from stillhash.server.pages.snippets import learning_code
from stillhash.server.write_queue import CollectionExecutor

# ---- view models ----

CURVE_MEASURES = {"ndcg": "nDCG@10", "precision": "P@10", "map": "mAP"}
MIN_CHART_POINTS = 3
NEW_SHARE = 0.3  # of the latest step in the weighted mean
NOISE_STEPS = 30  # latest steps that the noise is estimated from
MIN_NOISE_STEPS = 5
FEW_STEPS_NOISE = 0.01  # of a mean of fewer steps, about
NOISE_ERRORS = 2.0  # a gain below so many times its noise may be chance
RECENT_STEPS = 10  # in which drift is mentioned with the gain
MAX_MARKERS = 500
LISTED_STEPS = 100

Curve = list[dict[str, Any]]  # as `Collection.quality` returns it


def step_values(point: dict[str, Any]) -> dict[str, float]:
    """Return now, before and gain of each measure, by names such as "gain-ndcg"."""
    values: dict[str, float] = {}
    for name in CURVE_MEASURES:
        now, before = point[name], point["before"][name]
        values |= {f"now-{name}": now, f"before-{name}": before, f"gain-{name}": now - before}
    return values


def weighted_means(curve: Curve) -> dict[str, float]:
    """Return the exponentially weighted means of all steps. The first ones, where learning is fast, count for less."""
    means: dict[str, float] = {}
    for n, point in enumerate(curve):
        share = max(NEW_SHARE, 2 / (n + 2))
        means = {k: (1 - share) * means.get(k, 0.0) + share * value for k, value in step_values(point).items()}
    return means


def gain_noise(curve: Curve, name: str) -> float:
    """Return by how much the mean gain is off by chance: from the differences of neighbouring steps."""
    if len(curve) < MIN_NOISE_STEPS:
        return FEW_STEPS_NOISE
    gains = [step_values(point)[f"gain-{name}"] for point in curve[-NOISE_STEPS:]]
    step = np.sqrt(np.mean(np.square(np.diff(gains)) / 2))
    return float(step * np.sqrt(NEW_SHARE / (2 - NEW_SHARE)))


def summarise_gain(curve: Curve, stats: dict[str, Any]) -> ViewModel:
    """Return the gain and a sentence about it: how much better the first page is than before learning."""
    if not curve:
        return {"kind": "none", "title": "No gain measured yet", "sentence": _nothing_measured(stats)}
    means = weighted_means(curve)
    gains = {name: means[f"gain-{name}"] for name in ("ndcg", "precision")}
    certain = {name: abs(gain) > NOISE_ERRORS * gain_noise(curve, name) for name, gain in gains.items()}
    first = "ndcg" if certain["ndcg"] or not certain["precision"] else "precision"
    now, before = (10 * means[f"{when}-precision"] for when in ("now", "before"))
    hits = f"Of the first ten hits, {now:.1f} share a label with the query; before learning it was {before:.1f}."
    view = {"gains": {name: signed(gain) for name, gain in gains.items()}}
    if alarm := next((point["version"] for point in curve[::-1][:RECENT_STEPS] if point["drift"]), None):
        hits += f" The quality on new items fell before version {alarm}; see Drift below."
    if not certain[first]:
        chance = max(NOISE_ERRORS * gain_noise(curve, name) for name in gains)
        why = f"A difference of less than {chance:.3f} may be chance. {hits}"
        return view | {"kind": "none", "title": f"No measurable gain {'now' if alarm else 'yet'}", "sentence": why}
    if gains[first] < 0:
        return view | {"kind": "worse", "title": "The first page is worse than before learning", "sentence": hits}
    return view | {"kind": "better", "title": "The first page is better than before learning", "sentence": hits}


def _nothing_measured(stats: dict[str, Any]) -> str:
    if not stats["fitted"]:
        begins = f"Learning begins with {MIN_INIT_ROWS} items, once some of them have labels or votes"
        return f"{begins}. Until then hits are ranked by cosine, and votes count for their own query."
    step = f"Each {stats['learn_rows']:,} labelled items are searched before they are learnt, which measures the gain"
    return f"{step}; {stats['pending']:,} are waiting."


def few_steps(curve: Curve) -> str:
    """Return a sentence in place of a chart of too few points; empty where there are enough."""
    if len(curve) >= MIN_CHART_POINTS:
        return ""
    if not curve:
        return "There is no chart yet. It begins with the third step of labelled items that are learnt."
    last = curve[-1]
    count = "One step is" if len(curve) == 1 else "Two steps are"
    parts = [f"{title} {last[name]:.3f} ({last['before'][name]:.3f} before learning)"
             for name, title in CURVE_MEASURES.items()]  # fmt: skip
    return f"{count} measured so far, and three make a chart. The latest: {', '.join(parts[:-1])} and {parts[-1]}."


def signed(value: float) -> str:
    """Return a gain with its sign, which zero has not."""
    text = f"{value:+.3f}"
    return "0.000" if text in ("+0.000", "-0.000") else text


def curve_markers(curve: Curve, events: list[LearningEvent]) -> list[ViewModel]:
    """Return what happened along the curve, in order: where, of which kind, and in words; the latest ones."""
    versions, rows = [point["version"] for point in curve], [point["rows"] for point in curve]
    markers = []
    for event in events if curve else []:
        if event.version is None:
            continue
        place = min(bisect_right(versions, event.version), len(rows) - 1)  # the first step that it could change
        for kind, text in _event_texts(event):
            markers.append({"kind": kind, "rows": rows[place], "version": event.version, "text": text})
    for point in curve:
        if point["drift"]:
            text = f"drift: quality fell before version {point['version']}"
            markers.append({"kind": "drift", "rows": point["rows"], "version": point["version"], "text": text})
    return sorted(markers, key=lambda marker: marker["version"])[-MAX_MARKERS:]


def _event_texts(event: LearningEvent) -> list[tuple[str, str]]:
    """Return the kinds of markers of an event, and their texts."""
    texts = []
    if event.votes:
        texts.append(("votes", f"{counted(event.votes, 'thumb')}, version {event.version}"))
    if event.relabelled:
        texts.append(("labels", f"labels of {counted(event.relabelled, 'item')}, version {event.version}"))
    if event.what.startswith("rollback"):
        texts.append(("version", f"{event.what.replace('rollback', 'rolled back')}, version {event.version}"))
    elif event.added or event.learnt:
        texts.append(("version", f"version {event.version}: {counted(event.added + event.learnt, 'item')}"))
    return texts


def counted(count: int, noun: str) -> str:
    """Return a number of things in words."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def list_steps(curve: Curve, markers: list[ViewModel]) -> list[ViewModel]:
    """Return the latest steps as rows of a table, the latest first, with what happened before each of them."""
    steps = []
    for point in curve[-LISTED_STEPS:][::-1]:
        texts = [m["text"] for m in markers if m["rows"] == point["rows"] and m["kind"] != "version"]
        steps.append({"rows": point["rows"], "version": point["version"], **step_values(point), "texts": texts})
    return steps


def read_learning(collection: Collection) -> ViewModel:
    """Read all that the page shows at first, apart from the quality of labels."""
    stats, curve = collection.stats(), collection.quality()["curve"]
    markers = curve_markers(curve, collection.learning_events())
    return {
        "stats": stats,
        "versions": collection.versions()[::-1],
        "gain": summarise_gain(curve, stats),
        "means": weighted_means(curve),
        "few": few_steps(curve),
        "points": len(curve),
        "steps": list_steps(curve, markers),
    }


# ---- routes ----

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
