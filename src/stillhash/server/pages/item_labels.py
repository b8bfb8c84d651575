"""Change the labels of an item."""

from typing import Any

from fastapi import Request
from starlette.responses import Response

from stillhash.collection import Collection
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.pages.queries import PageQuery, find_item, item_query
from stillhash.server.pages.rendering import form_text, page_router, read_form, render

router = page_router("write")


@router.post("/c/{name}/labels")
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
