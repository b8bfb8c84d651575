"""Explain why a hit is where it is."""

import json

from fastapi import Request
from starlette.responses import Response

from stillhash.collection import Answer, Collection
from stillhash.errors import InvalidInput, NotFound
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.pages.queries import PageOptions, PageQuery, read_query
from stillhash.server.pages.rendering import page_router, render
from stillhash.server.pages.view_models import ViewModel

router = page_router("read")


@router.get("/c/{name}/explain")
async def explain(request: Request, executor: ExecutorParam, id: str, left: str = "") -> Response:
    """Explain the rank of a hit."""
    query, options = await read_query(request, executor, request.query_params), PageOptions.parse(request.query_params)
    hit = await executor.read(lambda c: explain_hit(c, query, options, id, left=bool(left)))
    return render(request, "explanation.html", executor, query=query, why=hit)


def explain_hit(collection: Collection, query: PageQuery, options: PageOptions, name: str, *, left: bool) -> ViewModel:
    """Explain a hit of one column, and compare it with the other column's version."""
    now, where = collection.search(query.vector, 1).version, options.where
    version, other = (options.against, now) if left else (None, options.against)
    balance = None if left else options.balance
    answer: Answer = collection.search(
        query.vector, options.last + 1, where=where, version=version, balance=balance, explain=other
    )
    hit = next((hit for hit in answer.hits if json.dumps(hit.id) == name), None)
    if hit is None:
        raise NotFound("the ranking has changed and this item is no longer among the hits. Search again")
    explanation = hit.explanation
    if explanation is None:
        raise InvalidInput("nothing to explain: hits are still ranked by raw features, not by codes")
    own = next((hit.explanation for hit in answer.hits if query.is_item(hit)), None)
    return {
        "hit": hit,
        "explanation": explanation,
        "answer": answer,
        "rank": explanation.rank - (own is not None and own.rank < explanation.rank),
        "other_rank": explanation.other_rank - (own is not None and own.other_rank < explanation.other_rank),
    }
