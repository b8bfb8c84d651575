"""Routes that add labels to items, and remove them."""

from functools import partial
from typing import Any

from stillhash.collection import Collection
from stillhash.collection.label_writer import LabelsOfItems
from stillhash.server.dependencies import ExecutorParam, api_router
from stillhash.server.label_schemas import LabelsBody, LabelsResponse

write_router = api_router("write", "items")


@write_router.post("/add_labels")
async def add_labels(body: LabelsBody, executor: ExecutorParam) -> LabelsResponse:
    """Add labels to items, and learn from them."""
    return _response(await executor.write(partial(Collection.add_labels, **vars(body))))


@write_router.post("/remove_labels")
async def remove_labels(body: LabelsBody, executor: ExecutorParam) -> LabelsResponse:
    """Remove labels from items, and learn from those that are left."""
    return _response(await executor.write(partial(Collection.remove_labels, **vars(body))))


def _response(before: LabelsOfItems) -> LabelsResponse:
    entries: list[Any] = [{"id": name, "labels": labels} for name, labels in before.items()]
    return LabelsResponse(before=entries)
