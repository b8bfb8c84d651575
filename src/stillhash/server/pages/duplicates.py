"""Near-duplicates of a collection: find groups of them, and delete all but the first of each."""

import json
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from stillhash.collection import Collection
from stillhash.collection.types import Id
from stillhash.errors import Conflict, InvalidInput, NotFound
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.pages.passages import text_hit
from stillhash.server.pages.rendering import form_text, page_router, parse_integer, read_form, render
from stillhash.server.pages.uploading import require_task
from stillhash.server.routes_long_work import MAX_GROUPS, find_duplicates
from stillhash.server.tasks import Task
from stillhash.server.write_queue import CollectionExecutor

MAX_PAGE_GROUPS, GROUP_PICTURES = 40, 8  # groups on the page, and items of each with a picture
COSINES = {0.99: "almost identical", 0.97: "very alike", 0.95: "alike", 0.9: "loosely alike"}
DISTANCES = {0: "identical codes", 1: "almost identical", 3: "very alike", 6: "alike", 10: "loosely alike"}

read_router, write_router = page_router("read"), page_router("write")


@read_router.post("/c/{name}/duplicates")
async def start_duplicates(request: Request, executor: ExecutorParam) -> Response:
    """Start to look for near-duplicates."""
    form = await read_form(request)
    cosine, distance = (form_text(form, name) for name in ("cosine", "distance"))
    task = await find_duplicates(
        executor,
        _parse_cosine(cosine) if cosine else None,
        parse_integer(distance, "distance") if distance else None,
    )
    if "hx-request" in request.headers:
        return await _render_duplicates(request, executor, task)
    return RedirectResponse(f"/c/{quote(executor.name)}/duplicates?task={task.id}", 303)


def _parse_cosine(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"cosine: expected a number, got {text[:40]!r}") from None


@read_router.get("/c/{name}/duplicates")
async def duplicates(request: Request, executor: ExecutorParam, task: str) -> Response:
    """Show how far the search is, or the groups."""
    return await _render_duplicates(request, executor, require_task(request, executor, task))


@read_router.post("/c/{name}/duplicates/cancel")
async def cancel_duplicates(request: Request, executor: ExecutorParam) -> Response:
    task = require_task(request, executor, form_text(await read_form(request), "task"))
    if not task.ended:
        executor.tasks.cancel(task)
    return await _render_duplicates(request, executor, task)


@write_router.post("/c/{name}/duplicates/delete")
async def delete_duplicates(request: Request, executor: ExecutorParam) -> Response:
    """Delete all items but the first of some groups that the task found, which the visitor has seen."""
    form = await read_form(request)
    task, numbers = require_task(request, executor, form_text(form, "task")), form_text(form, "groups").split(",")
    if task.kind != "duplicates" or task.state != "done":
        raise Conflict("task: expected near-duplicates that were found, got another task, or one that has not ended")
    if len(numbers) > MAX_PAGE_GROUPS:
        raise InvalidInput(f"groups: expected at most {MAX_PAGE_GROUPS}, got {len(numbers)}")
    chosen = {parse_integer(number, "groups") for number in numbers}
    if max(chosen) >= len(task.result["groups"]):
        raise NotFound(f"groups: expected less than {len(task.result['groups'])}, got {max(chosen)}")
    groups: list[list[Id]] = [task.result["groups"][number] for number in sorted(chosen)]

    def delete(collection: Collection) -> int:
        ids = [name for group in groups for name in _surplus(collection, group)]
        return collection.delete(ids) if ids else 0

    return await _render_duplicates(request, executor, task, deleted=await executor.write(delete))


def _surplus(collection: Collection, group: list[Id]) -> list[Id]:
    """Return the items of a group after the first that still exists, which is kept."""
    return [item.id for item in collection.get(group) if item is not None][1:]


async def _render_duplicates(
    request: Request, executor: CollectionExecutor, task: Task, deleted: int | None = None
) -> Response:
    task = replace(task)  # it may end while it is rendered
    context: dict[str, Any] = {"task": task, "deleted": deleted, "max_groups": MAX_GROUPS}
    if task.state == "done":
        context |= await executor.read(lambda c: _remaining_groups(c, task.result["groups"]))
    template = "collection_duplicates.html" if "hx-request" in request.headers else "duplicates_page.html"
    return render(request, template, executor, **context)


def _remaining_groups(collection: Collection, groups: list[list[Id]]) -> dict[str, Any]:
    """Return the groups of two or more items that still exist: the first ones, and how many there are in all."""
    cards: list[dict[str, Any]] = []
    remaining = 0
    for number, group in enumerate(groups):
        items = [item for item in collection.get(group) if item is not None]
        if len(items) > 1:
            remaining += 1
            if len(cards) < MAX_PAGE_GROUPS:
                pictures = [(item, json.dumps(item.id), text_hit(item)) for item in items[:GROUP_PICTURES]]
                cards.append({"number": number, "items": pictures, "count": len(items)})
    return {"groups": cards, "remaining": remaining, "surplus": sum(card["count"] - 1 for card in cards)}
