"""The collection page: what is stored, by labels and fields, and whether it is sound."""

import json
from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from stillhash.collection import Collection
from stillhash.collection.duplicates import check_likeness
from stillhash.collection.facets import Facet, Facets
from stillhash.collection.trainer import MIN_INIT_ROWS
from stillhash.collection.types import Id
from stillhash.encoders import is_text_encoder
from stillhash.errors import Busy
from stillhash.server.dependencies import ExecutorParam, app_state
from stillhash.server.file_imports import accepted_suffixes
from stillhash.server.pages.duplicates import COSINES, DISTANCES
from stillhash.server.pages.passages import TextHit, text_hit
from stillhash.server.pages.rendering import page_router, render
from stillhash.server.pages.uploading import visible_task
from stillhash.server.routes_long_work import file_indexer

FIRST_LABELS, MAX_LABELS = 24, 1000  # that are shown at first, and after that
FIELD_VALUES = 8
HIDDEN_FIELDS = ("content", "text", "start", "end", "chunk", "chunks")  # that indexing writes, for itself
EXAMPLE_CHOICES = 12  # items of a label among which one is looked for that is no other label's example

read_router, write_router = page_router("read"), page_router("write")


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
