"""Label several hits at once, and take it back."""

import json
from typing import Any

from fastapi import Request
from starlette.responses import JSONResponse, Response

from stillhash.collection import Collection
from stillhash.collection.types import Id
from stillhash.errors import InvalidInput
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.pages.cards import ViewModel
from stillhash.server.pages.queries import MAX_PAGE_HITS
from stillhash.server.pages.rendering import form_text, page_router, read_form, render
from stillhash.server.pages.teach_items import known_labels

MAX_SELECTION_BYTES = 1 << 20
MAX_SELECTED_LABELS = 50
SELECTION_VERBS = ("add", "remove", "restore")

router = page_router("write")


@router.get("/c/{name}/select")
async def labels(request: Request, executor: ExecutorParam) -> Response:
    """Return the labels of the collection, for the box of the bar."""
    known = await executor.read(known_labels, "slow")
    return render(request, "select_labels.html", labels=known.labels)


@router.post("/c/{name}/select")
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
