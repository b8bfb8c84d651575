"""Labels of items: of one, of several at once, and those that are probably wrong."""

import json
from typing import Any
from urllib.parse import quote

from fastapi import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from stillhash.collection import Collection
from stillhash.collection.types import Id
from stillhash.errors import InvalidInput
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.pages.cards import ViewModel
from stillhash.server.pages.queries import MAX_PAGE_HITS, PageQuery, find_item, item_query
from stillhash.server.pages.rendering import form_text, page_router, read_form, render
from stillhash.server.pages.teaching import item_text, known_labels

read_router, write_router = page_router("read"), page_router("write")


@write_router.post("/c/{name}/labels")
async def relabel(request: Request, executor: ExecutorParam) -> Response:
    """Replace the labels of an item, and learn from them."""
    form = await read_form(request)
    name, labels = form_text(form, "id"), form_text(form, "labels")

    def learn(collection: Collection) -> tuple[PageQuery, int]:
        item = find_item(collection, name)
        collection.relabel([item.id], [parse_labels(labels, item.labels)])
        return item_query(collection, name), collection.flush()

    query, version = await executor.write(learn)
    return render(request, "labels.html", executor, query=query, learnt=version)


def parse_labels(text: str, current: list[Any]) -> list[Any]:
    """Parse labels separated by commas; a current label that is a number stays one."""
    known = {str(label): label for label in current}
    return [known.get(word, word) for word in dict.fromkeys(part.strip() for part in text.split(",")) if word]


# ---- several hits ----

MAX_SELECTION_BYTES = 1 << 20
MAX_SELECTED_LABELS = 50
SELECTION_VERBS = ("add", "remove", "restore")


@write_router.get("/c/{name}/select")
async def labels(request: Request, executor: ExecutorParam) -> Response:
    """Return the labels of the collection, for the box of the bar."""
    known = await executor.read(known_labels, "slow")
    return render(request, "select_labels.html", labels=known.labels)


@write_router.post("/c/{name}/select")
async def select(request: Request, executor: ExecutorParam) -> Response:
    """Add labels to the selected items, remove them, or restore what they had; learn it; and say what changed."""
    form = await read_form(request, MAX_SELECTION_BYTES)
    verb, names = form_text(form, "verb"), form_text(form, "labels")
    if verb not in SELECTION_VERBS:
        raise InvalidInput(f"verb: expected one of {', '.join(SELECTION_VERBS)}, got {verb[:40]!r}")
    ids, lists = _parse_selection(form_text(form, "items"), with_labels=verb == "restore")

    def change(collection: Collection) -> ViewModel:
        if verb == "restore":
            collection.relabel(ids, lists)
            return {"changed": len(ids), "before": [], "labels": [], "version": collection.flush()}
        words = parse_names(names, collection)
        before = (collection.add_labels if verb == "add" else collection.remove_labels)(ids, words)
        entries = [{"id": name, "labels": own} for name, own in before.items()]
        return {"changed": len(before), "before": entries, "labels": words, "version": collection.flush()}

    return JSONResponse(await executor.write(change), headers={"cache-control": "no-store"})


def parse_names(text: str, collection: Collection) -> list[Any]:
    """Parse labels separated by commas; what the collection has as a number stays one."""
    words = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not 0 < len(words) <= MAX_SELECTED_LABELS:
        raise InvalidInput(f"labels: expected 1 to {MAX_SELECTED_LABELS} labels, got {len(words)}")
    known = {str(label): label for label in known_labels(collection).labels if not isinstance(label, str)}
    return [known.get(word, word) for word in words]


def _parse_selection(text: str, *, with_labels: bool) -> tuple[list[Id], list[Any]]:
    """Return ids of a JSON list; or of one with id and labels of each item, also their labels."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"items: expected a list as JSON: {error}") from None
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_PAGE_HITS:
        raise InvalidInput(f"items: expected a list of 1 to {MAX_PAGE_HITS} items")
    if not with_labels:
        return entries, []
    if not all(isinstance(entry, dict) and isinstance(entry.get("labels"), list) for entry in entries):
        raise InvalidInput("items: expected the id and the labels of each item")
    return [entry.get("id") for entry in entries], [entry["labels"] for entry in entries]


# ---- labels to check ----

LISTED_DOUBTS = 100
CHECKED_VERBS = ("keep", "replace", "restore")


@read_router.get("/c/{name}/doubtful_labels")
async def doubtful_labels(request: Request, executor: ExecutorParam) -> Response:
    """Show the items whose labels are least plausible."""
    rows, share = await executor.read(lambda c: (_rows(c), c.stats()["wrong_label_share"]))
    return render(request, "doubtful_labels.html", executor, rows=rows, share=share)


def _rows(collection: Collection) -> list[dict[str, object]]:
    doubtful, field = collection.doubtful_labels(LISTED_DOUBTS), collection.lexical_field
    items = {item.id: item for item in collection.get([one.id for one in doubtful]) if item is not None}
    return [
        {"item": one, "name": json.dumps(one.id), "text": item_text(items[one.id], field)}
        for one in doubtful
        if one.id in items
    ]


@write_router.post("/c/{name}/doubtful_labels")
async def check(request: Request, executor: ExecutorParam) -> Response:
    """Keep the labels of an item, which takes it off the list; replace them; or restore those it had before."""
    form = await read_form(request)
    verb, name = form_text(form, "verb"), form_text(form, "id")
    try:
        labels = json.loads(form_text(form, "labels") or "[]")
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"labels: expected a list as JSON: {error}") from None
    if verb not in CHECKED_VERBS or not isinstance(labels, list):
        raise InvalidInput(f"verb: expected one of {', '.join(CHECKED_VERBS)}, and a list of labels, got {verb[:40]!r}")

    def write(collection: Collection) -> list[object]:
        item = find_item(collection, name)
        new = item.labels if verb == "keep" else labels
        collection.relabel([item.id], [new], learn=new != item.labels)  # what stays is not learnt a second time
        return item.labels

    before = await executor.write(write)
    if "hx-request" in request.headers:
        return JSONResponse({"before": before}, headers={"cache-control": "no-store"})
    return RedirectResponse(f"/c/{quote(executor.name)}/doubtful_labels", 303)
