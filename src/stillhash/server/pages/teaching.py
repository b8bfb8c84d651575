"""The Teach page: one item at a time, with the labels that are predicted of it, answered by single keys.

The page has some items ahead, so that the next one is there at once; answers are sent one after another in the
background. Each is a write of its own: it is on disk when it is acknowledged. Sent twice, it has the same effect.
"""

import json
from functools import partial
from typing import Any
from urllib.parse import quote

from fastapi import Request
from starlette.datastructures import FormData
from starlette.responses import JSONResponse, RedirectResponse, Response

from stillhash.collection import Collection
from stillhash.collection.label_writer import LabelsOfItems
from stillhash.collection.types import Id
from stillhash.errors import InvalidInput
from stillhash.server.dependencies import ExecutorParam, app_state
from stillhash.server.pages import teach_items
from stillhash.server.pages.cards import ViewModel
from stillhash.server.pages.queries import find_item
from stillhash.server.pages.rendering import form_text, page_router, read_form, render
from stillhash.server.sittings import LEARN_ANSWERS, SITTING_TOKEN, Sitting
from stillhash.server.write_queue import CollectionExecutor

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
    if own.probe is None:
        own.probe = await executor.read(teach_items.start_probe, "slow")
    figures = await executor.read(lambda c: teach_items.progress(c, own), "slow")
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
        known = teach_items.known_labels(collection)
        return {"known": known, **teach_items.next_items(collection, known, sitting, hidden, ITEMS_AHEAD)}

    batch = await executor.read(read, "slow")
    sitting.show(batch["suggestions"])
    return batch


@write_router.get("/c/{name}/teach/progress")
async def progress(request: Request, executor: ExecutorParam, sitting: str) -> Response:
    """Return how a sitting goes."""
    own = _sitting(request, sitting)
    return JSONResponse(await executor.read(lambda c: teach_items.progress(c, own), "slow"), headers=NO_STORE)


@write_router.post("/c/{name}/teach/learn")
async def learn(request: Request, executor: ExecutorParam) -> Response:
    """Learn the answers that are not learnt yet."""
    form = await read_form(request)
    own = _sitting(request, form_text(form, "sitting"))
    version = await executor.write(Collection.flush)
    own.unlearnt = 0
    return _reply(request, executor, form, {"version": version, **teach_items.sitting_counts(own)})


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
    flush = verb == "accept" and own.unlearnt >= LEARN_ANSWERS
    if verb == "accept":
        # What waits is learnt before this answer, so that taking back the latest one leaves nothing in the model.
        before = await executor.write(partial(_label, item.id, labels, flush))
        changed = [label for label in labels if item.id in before and label not in before[item.id]]
        own.unlearnt = 1 if flush else own.unlearnt + 1
        own.decide(item.id, "labelled", labels)
    elif verb == "undo":
        if labels:
            await executor.write(lambda c: c.remove_labels([item.id], labels))
            own.unlearnt = max(0, own.unlearnt - 1)
        own.undo(item.id)
        sittings.restore(executor.name, item.id)
    else:
        own.decide(item.id, "rejected" if verb == "reject" else "skipped")
        if verb == "reject":
            sittings.reject(executor.name, item.id)
    return _reply(request, executor, form, {"added": changed, "learnt": flush, **teach_items.sitting_counts(own)})


def _label(id_: Id, labels: list[Any], flush: bool, collection: Collection) -> LabelsOfItems:
    if flush:
        collection.flush()
    return collection.add_labels([id_], labels)


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
