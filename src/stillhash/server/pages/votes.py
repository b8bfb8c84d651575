"""Votes of visitors on hits."""

import json

from fastapi import Request
from starlette.responses import Response

from stillhash.collection import Collection, Item
from stillhash.errors import InvalidInput
from stillhash.server.dependencies import ExecutorParam, app_state
from stillhash.server.pages import view_models
from stillhash.server.pages.queries import PageOptions, find_item, read_query
from stillhash.server.pages.rendering import form_text, page_router, read_form, render
from stillhash.server.pages.view_models import Ranks, ViewModel
from stillhash.server.query_cache import HitVote

router = page_router("feedback")


@router.post("/c/{name}/thumb")
async def thumb(request: Request, executor: ExecutorParam) -> Response:
    """Learn from a thumb, and show the new results and which hits moved."""
    form = await read_form(request)
    options, name, up = PageOptions.parse(form), form_text(form, "id"), form_text(form, "up") == "1"
    query, cache = await read_query(request, executor, form), app_state(request).query_cache
    vector = query.vector
    if vector is None:
        raise InvalidInput("words: expected an encoder of texts to learn from a thumb")

    def learn(collection: Collection) -> tuple[Ranks, Item, int]:
        previous, item = view_models.search(collection, query, options), find_item(collection, name)
        version = collection.feedback(vector, item.id, "up" if up else "down", source="page")
        return view_models.rank_by_name(previous), item, version

    previous, item, version = await executor.write(learn)
    cache.add_vote(executor.name, query.name, json.dumps(item.id), HitVote(up, version))
    votes = cache.votes(executor.name, query.name)
    results = await executor.read(lambda c: view_models.compare(c, query, options, votes, previous))
    context: ViewModel = {"query": query, "options": options, "results": results, "learnt": version, "voted": item}
    return render(request, "results.html", executor, **context)
