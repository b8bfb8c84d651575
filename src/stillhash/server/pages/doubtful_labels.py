"""Labels to check: the items whose labels are least plausible, to keep them or to replace them by those predicted."""

import json
from urllib.parse import quote

from fastapi import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from stillhash.collection import Collection
from stillhash.errors import InvalidInput
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.pages.queries import find_item
from stillhash.server.pages.rendering import form_text, page_router, read_form, render
from stillhash.server.pages.teach_items import item_text

LISTED_DOUBTS = 100
CHECKED_VERBS = ("keep", "replace", "restore")

read_router, write_router = page_router("read"), page_router("write")


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
