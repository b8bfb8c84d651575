"""The Teach page: one item at a time, with the labels that are predicted of it, answered by single keys.

The page has some items ahead, so that the next one is there at once; answers are sent one after another in the
background. Each is a write of its own: it is on disk when it is acknowledged. Sent twice, it has the same effect.
"""

import json
import statistics
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi import Request
from starlette.datastructures import FormData
from starlette.responses import JSONResponse, RedirectResponse, Response

from stillhash.collection import Collection, Item, LabelSuggestion
from stillhash.collection.filters.facets import Facet
from stillhash.collection.types import TEXT_FIELD, Id
from stillhash.errors import InvalidInput, StillhashError
from stillhash.server.dependencies import ExecutorParam, app_state
from stillhash.server.page_state import LEARN_ANSWERS, SITTING_TOKEN, Sitting
from stillhash.server.pages.cards import ViewModel
from stillhash.server.pages.queries import find_item
from stillhash.server.pages.rendering import form_text, page_router, read_form, render
from stillhash.server.write_queue import CollectionExecutor

# ---- view models ----

MAX_CHOICES = 9  # as many as there are digits
LIKELY_CHANCE = 0.5  # of a label that is chosen from the start
OFFERED_LABELS = 1000  # in the box for other labels
SINGLE_LABEL_MEAN = 1.02  # labels of an item, up to which items of a collection are taken to have one each
MAX_TEXT_LENGTH = 1600  # characters of an item's text
HAS_LABELS = {"labels": {"$exists": True}}
REASONS = {
    "typical": "it stands for many items without a label",
    "new": "nothing that has a label is like it",
    "boundary": "two labels are about equally likely",
    "unsure": "no label is likely, so yours says most",
}


class Choice(NamedTuple):
    label: Any
    value: str  # as JSON
    chance: float | None  # None: it is not predicted
    chosen: bool


class CollectionLabels(NamedTuple):
    """The labels of a collection."""

    labels: list[Any]  # the most frequent first
    single: bool  # whether items have one label each, as far as can be seen
    items: int  # that have labels

    @property
    def fixed(self) -> list[Any] | None:
        """The labels in a fixed order, where they are so few that each can have a key of its own."""
        return sorted(self.labels, key=str) if 0 < len(self.labels) <= MAX_CHOICES else None


def known_labels(collection: Collection) -> CollectionLabels:
    facet: Facet = collection.facets(fields=[], limit=OFFERED_LABELS).labels
    total = sum(value.count for value in facet.values)
    single = 0 < total <= SINGLE_LABEL_MEAN * facet.items
    return CollectionLabels([value.value for value in facet.values], single, facet.items)


def next_items(
    collection: Collection, known: CollectionLabels, sitting: Sitting, skip: list[Id], count: int
) -> ViewModel:
    """Return the items to label next, the most useful first."""
    suggestions = collection.suggest_labels(count, skip=skip)
    items = collection.get([suggestion.id for suggestion in suggestions])
    pairs = [pair for pair in zip(suggestions, items, strict=True) if pair[1] is not None]
    field = collection.lexical_field
    rows = [
        {
            "id": item.id,
            "name": json.dumps(item.id),
            "text": item_text(item, field),
            "reason": REASONS[suggestion.reason],
            "choices": choices_of(suggestion, known, sitting.recent),
        }
        for suggestion, item in pairs
        if item is not None
    ]
    return {"rows": rows, "suggestions": [suggestion for suggestion, _ in pairs]}


def choices_of(suggestion: LabelSuggestion, known: CollectionLabels, recent: list[Any]) -> list[Choice]:
    """Return the numbered choices: predicted labels first, then recent and frequent ones; or all in a fixed order."""
    chances = dict(suggestion.labels)
    labels = known.fixed or list(dict.fromkeys([*chances, *recent, *known.labels]))[:MAX_CHOICES]
    best = max(chances.values(), default=0)
    if known.fixed and chances:
        chances = {label: chances.get(label, 0.0) for label in known.fixed}
    return [
        Choice(
            label,
            json.dumps(label),
            chances.get(label),
            chances.get(label, 0) >= (LIKELY_CHANCE if not known.single else max(LIKELY_CHANCE, best)),
        )
        for label in labels
    ]


def item_text(item: Item, field: str | None) -> str | None:
    """Return the text of an item, cut to a bounded length; None if it has none."""
    metadata = item.metadata or {}
    texts = (metadata.get(name) for name in (field, TEXT_FIELD) if name is not None)
    text = next((text for text in texts if isinstance(text, str)), None)
    if text is None:
        return None
    return text if len(text) <= MAX_TEXT_LENGTH else text[:MAX_TEXT_LENGTH].rstrip() + "…"


def learn_answers(collection: Collection, start: int | None, ids: list[Id]) -> tuple[int, list[float]]:
    """Learn what waits; return the version, and what the model had gained since the version of the start for these.

    Their labels are not learnt yet, so what is measured was learnt from other items: by how much the nDCG of their
    first ten hits is higher now than by the version of the start.
    """
    gains: list[float] = []
    with suppress(StillhashError):  # too few items have labels, or the first version is no longer kept
        if start is not None and ids and start != collection.stats()["version"]:
            comparison = collection.compare_versions(start, ids=ids)
            gains = [query.ndcg[1] - query.ndcg[0] for query in comparison.queries]
    return collection.flush(), gains


def sitting_progress(collection: Collection, sitting: Sitting) -> ViewModel:
    """Return how a sitting goes: counts, the rate, and the gain since it began."""
    return {
        **sitting_counts(sitting),
        "total": collection.count(HAS_LABELS),
        "items": collection.count(),
        "unlearnt": len(sitting.unlearnt),
        **gain_texts(sitting.gains),
    }


def gain_texts(gains: list[float]) -> ViewModel:
    """Say how much better the first page has become since a sitting began, and on what that is measured."""
    if len(gains) < LEARN_ANSWERS:
        return {"gain_text": "\u2013", "explained": "Measured on your answers, from the twentieth on."}
    mean, error = statistics.fmean(gains), statistics.stdev(gains) / len(gains) ** 0.5
    return {
        "gain_text": f"{mean:+.3f}".replace("-", "\u2212"),
        "explained": f"nDCG@10, \u00b1{error:.3f}, of {len(gains)} answers, each before it was learnt",
    }


def sitting_counts(sitting: Sitting) -> ViewModel:
    """Return what a sitting has counted."""
    return {
        "labelled": sitting.count("labelled"),
        "rejected": sitting.count("rejected"),
        "skipped": sitting.count("skipped"),
        "rate": sitting.rate,
        "right": sitting.first_right,
    }


# ---- routes ----

ITEMS_AHEAD = 10
MAX_ANSWER_LABELS = 50
ANSWERS = ("accept", "reject", "skip", "undo")
NO_STORE = {"cache-control": "no-store"}

read_router, write_router = page_router("read"), page_router("write")


@read_router.get("/c/{name}/teach")
async def teach(request: Request, executor: ExecutorParam, sitting: str = "", one: str = "") -> Response:
    """Show the first items of a sitting; without one, begin it."""
    if not request.state.key.has_role("write"):
        return render(request, "teach.html", executor, allowed=False)
    sittings = app_state(request).sittings
    if not SITTING_TOKEN.fullmatch(sitting):
        address = f"/c/{quote(executor.name)}/teach?sitting={sittings.begin()}"
        return RedirectResponse(address, 303, NO_STORE)
    own = sittings.get(executor.name, sitting)
    own.waiting.clear()  # they are shown again, the most useful first
    batch = await _batch(request, executor, own)
    if own.start_version is None:
        own.start_version = await executor.read(lambda c: int(c.stats()["version"]))
    figures = await _progress(executor, own)
    single = batch["known"].single if one == "" else one == "1"
    context: ViewModel = {"allowed": True, "token": sitting, "single": single, "figures": figures}
    response = render(request, "teach.html", executor, **context, **batch)
    response.headers.update(NO_STORE)
    return response


@write_router.get("/c/{name}/teach/items")
async def items(request: Request, executor: ExecutorParam, sitting: str) -> Response:
    """Return the next items of a sitting, to come after those that it has."""
    return render(request, "teach_items.html", executor, **await _batch(request, executor, _sitting(request, sitting)))


async def _batch(request: Request, executor: CollectionExecutor, sitting: Sitting) -> ViewModel:
    hidden = app_state(request).sittings.hidden(executor.name, sitting)

    def read(collection: Collection) -> ViewModel:
        known = known_labels(collection)
        return {"known": known, **next_items(collection, known, sitting, hidden, ITEMS_AHEAD)}

    batch = await executor.read(read, "slow")
    sitting.show(batch["suggestions"])
    return batch


@write_router.get("/c/{name}/teach/progress")
async def progress(request: Request, executor: ExecutorParam, sitting: str) -> Response:
    """Return how a sitting goes."""
    return JSONResponse(await _progress(executor, _sitting(request, sitting)), headers=NO_STORE)


async def _progress(executor: CollectionExecutor, sitting: Sitting) -> ViewModel:
    async with sitting.lock:  # so that an answer that is stored is counted too
        return await executor.read(lambda c: sitting_progress(c, sitting), "slow")


@write_router.post("/c/{name}/teach/learn")
async def learn(request: Request, executor: ExecutorParam) -> Response:
    """Learn the answers that are not learnt yet."""
    form = await read_form(request)
    own = _sitting(request, form_text(form, "sitting"))
    async with own.lock:
        version = await _learn(executor, own)
    return _reply(request, executor, form, {"version": version, **sitting_counts(own)})


@write_router.post("/c/{name}/teach/answer")
async def answer(request: Request, executor: ExecutorParam) -> Response:
    """Take one answer: labels for an item, none of those, later, or that the answer before is taken back."""
    form = await read_form(request)
    verb, labels = form_text(form, "answer"), _parse_answer(form)
    if verb not in ANSWERS or (verb == "accept" and not labels):
        raise InvalidInput(f"answer: expected one of {', '.join(ANSWERS)}, with labels to accept, got {verb[:40]!r}")
    own, sittings = _sitting(request, form_text(form, "sitting")), app_state(request).sittings
    item = await executor.read(lambda c: find_item(c, form_text(form, "id")))
    changed: list[Any] = []
    async with own.lock:
        flush = verb == "accept" and len(own.unlearnt) >= LEARN_ANSWERS
        if verb == "accept":
            # What waits is learnt before this answer, so that taking back the latest one leaves nothing in the model.
            if flush:
                await _learn(executor, own)
            before = await executor.write(lambda c: c.add_labels([item.id], labels))
            changed = [label for label in labels if item.id in before and label not in before[item.id]]
            own.unlearnt.append(item.id)
            own.decide(item.id, "labelled", labels)
        elif verb == "undo":
            if labels:
                await executor.write(lambda c: c.remove_labels([item.id], labels))
                own.unlearnt = [id_ for id_ in own.unlearnt if id_ != item.id]
            own.undo(item.id)
            sittings.restore(executor.name, item.id)
        else:
            own.decide(item.id, "rejected" if verb == "reject" else "skipped")
            if verb == "reject":
                sittings.reject(executor.name, item.id)
    return _reply(request, executor, form, {"added": changed, "learnt": flush, **sitting_counts(own)})


async def _learn(executor: CollectionExecutor, sitting: Sitting) -> int:
    """Learn the answers that wait, after what they show of the gain is measured; return the version."""
    work = partial(learn_answers, start=sitting.start_version, ids=list(sitting.unlearnt))
    version, gains = await executor.write(work)
    sitting.learn(gains)
    return version


def _reply(request: Request, executor: CollectionExecutor, form: FormData, figures: ViewModel) -> Response:
    """Answer a script with figures; without one, go back to the page."""
    if "hx-request" in request.headers:
        return JSONResponse(figures, headers=NO_STORE)
    return RedirectResponse(f"/c/{quote(executor.name)}/teach?sitting={quote(form_text(form, 'sitting'))}", 303)


def _sitting(request: Request, token: str) -> Sitting:
    if not SITTING_TOKEN.fullmatch(token):
        raise InvalidInput(f"sitting: expected the token of a sitting, got {token[:40]!r}")
    return app_state(request).sittings.get(request.path_params["name"], token)


def _parse_answer(form: FormData) -> list[Any]:
    """Return the labels of a form: as JSON in `labels` and `label`, and typed, with commas between, in `other`."""
    values = [value for value in form.getlist("label") if isinstance(value, str)]
    try:
        labels = [json.loads(value) for value in values]
        more = json.loads(form_text(form, "labels") or "[]")
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"labels: expected labels as JSON: {error}") from None
    typed = [word.strip() for word in form_text(form, "other").split(",") if word.strip()]
    if not isinstance(more, list) or len(labels) + len(more) + len(typed) > MAX_ANSWER_LABELS:
        raise InvalidInput(f"labels: expected a list of at most {MAX_ANSWER_LABELS} labels")
    if not all(type(label) in (str, int, float) for label in labels + more):
        raise InvalidInput("labels: expected texts and numbers")
    return list(dict.fromkeys([*labels, *more, *typed]))
