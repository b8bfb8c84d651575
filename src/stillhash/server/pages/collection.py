"""The page of a collection: what is stored, near-duplicates, uploads, health."""

import json
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from stillhash.collection import Collection
from stillhash.collection.filters.facets import Facet, Facets
from stillhash.collection.learning.trainer import MIN_INIT_ROWS
from stillhash.collection.maintenance.duplicates import check_likeness
from stillhash.collection.types import Id
from stillhash.encoders import is_text_encoder
from stillhash.errors import Busy, Conflict, InvalidInput, NotFound
from stillhash.server.auth import Key
from stillhash.server.dependencies import ExecutorParam, app_state
from stillhash.server.pages.passages import TextHit, text_hit
from stillhash.server.pages.rendering import form_text, page_router, parse_integer, read_form, render
from stillhash.server.routes_tasks import MAX_GROUPS, file_indexer, find_duplicates, start_import
from stillhash.server.tasks import Task
from stillhash.server.uploads import accepted_suffixes
from stillhash.server.write_queue import CollectionExecutor

# ---- near-duplicates ----

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


# ---- uploads ----


def visible_task(request: Request, executor: CollectionExecutor, task_id: str) -> Task | None:
    """Return a task of this id that the visitor may see, None if it is listed no more."""
    key: Key = request.state.key
    try:
        task = executor.tasks.get(task_id)
    except NotFound:
        return None
    return task if key.has_role(task.role) else None


def require_task(request: Request, executor: CollectionExecutor, task_id: str) -> Task:
    """Return a task of this id that the visitor may see."""
    task = visible_task(request, executor, task_id)
    if task is None:
        raise NotFound("task: it is listed no more. Start it again")
    return task


@write_router.post("/c/{name}/import")
async def start_upload(request: Request, executor: ExecutorParam) -> Response:
    """Take files, and import them; a browser without scripts goes back to the page."""
    task = await start_import(request, executor)
    if "hx-request" in request.headers:
        return render(request, "collection_import.html", executor, task=task)
    return RedirectResponse(f"/c/{quote(executor.name)}/collection?task={task.id}#add", 303)


@write_router.get("/c/{name}/import")
async def import_progress(request: Request, executor: ExecutorParam, task: str) -> Response:
    """Show how far an import is."""
    return render(request, "collection_import.html", executor, task=require_task(request, executor, task))


@write_router.post("/c/{name}/import/cancel")
async def cancel_import(request: Request, executor: ExecutorParam) -> Response:
    task = require_task(request, executor, form_text(await read_form(request), "task"))
    if not task.ended:
        executor.tasks.cancel(task)
    if "hx-request" in request.headers:
        return render(request, "collection_import.html", executor, task=task)
    return RedirectResponse(f"/c/{quote(executor.name)}/collection?task={task.id}#add", 303)


# ---- the page ----

FIRST_LABELS, MAX_LABELS = 24, 1000  # that are shown at first, and after that
HIDDEN_FIELDS = ("content", "text", "start", "end", "chunk", "chunks")  # that indexing writes, for itself
EXAMPLE_CHOICES = 12  # items of a label among which one is looked for that is no other label's example


class LabelCard(NamedTuple):
    """A label, how many items have it, and one of them."""

    label: Any
    items: int
    percent: float  # of the most frequent one
    example: str  # an id as JSON
    text: TextHit | None  # of the example, where that is a text


@read_router.get("/c/{name}/collection")
async def collection(request: Request, executor: ExecutorParam, labels: str = "", task: str = "") -> Response:
    """Show labels and fields, and ways to add items; internals are folded."""
    limit = MAX_LABELS if labels == "all" else FIRST_LABELS
    stats = await executor.read(Collection.stats)
    try:
        facets, cards = await executor.read(lambda c: read_facets(c, limit), "slow")
    except Busy:  # it takes long, once, for a large collection
        facets, cards = None, []
    indexer = file_indexer(executor)
    context: dict[str, Any] = {"stats": stats, "facets": facets, "label_cards": cards}
    context |= {"fields": listed_fields(facets), "noun": item_noun(executor.collection)}
    context |= {"suffixes": accepted_suffixes(indexer), "takes_files": indexer is not None}
    context |= {"max_upload": app_state(request).settings.max_upload_bytes, "all_labels": labels == "all"}
    context |= {"task": visible_task(request, executor, task) if task else None}
    likeness = check_likeness(context["stats"])
    context |= {"cosines": COSINES, "distances": DISTANCES, "likeness": likeness, "min_init_rows": MIN_INIT_ROWS}
    return render(request, "collection.html", executor, **context)


def read_facets(collection: Collection, limit: int) -> tuple[Facets, list[LabelCard]]:
    """Count labels and fields, and find an example for each label."""
    facets = collection.facets(limit=limit)
    values = facets.labels.values
    examples = _different_examples(collection, facets.labels)
    items = {item.id: item for item in collection.get(list(set(examples))) if item is not None}
    most = max((value.count for value in values), default=1)
    cards = []
    for value, example in zip(values, examples, strict=True):
        text = text_hit(items[example]) if example in items else None
        share = 100 * value.count / most
        cards.append(LabelCard(value.value, value.count, share, json.dumps(example), text))
    return facets, cards


def _different_examples(collection: Collection, labels: Facet) -> list[Id]:
    """Return an item for each label; for the most frequent ones different items, where there are some."""
    examples: list[Id] = []
    for number, value in enumerate(labels.values):
        example = value.example
        if number < FIRST_LABELS and example in examples:
            others = collection.ids({"labels": value.value}, limit=EXAMPLE_CHOICES)
            example = next((name for name in others if name not in examples), example)
        examples.append(example)
    return examples


def item_noun(collection: Collection) -> str:
    """Return what the items are, for people."""
    if collection.encoder is None:
        return "items"
    return "texts" if is_text_encoder(collection.encoder.name) else "images"


def listed_fields(facets: Facets | None) -> list[Facet]:
    """Return the fields of the metadata that say something to people."""
    return [] if facets is None else [field for field in facets.fields if field.field not in HIDDEN_FIELDS]


@write_router.post("/c/{name}/fit")
async def fit(request: Request, executor: ExecutorParam) -> Response:
    """Fix the hash functions by the items there are."""
    await executor.write(Collection.fit)
    return RedirectResponse(f"/c/{quote(executor.name)}/collection", 303)
