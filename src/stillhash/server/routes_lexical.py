"""Routes that search for words."""

from fastapi import Request
from starlette.responses import Response

from stillhash.errors import TooLarge
from stillhash.server.dependencies import ExecutorParam, api_router, app_state
from stillhash.server.lexical_schemas import HybridSearchBody, LexicalSearchBody
from stillhash.server.routes_items import HIT_BYTES, search_response
from stillhash.server.schemas import SearchResponse

router = api_router("read", "search")


@router.post("/lexical_search", response_model=SearchResponse)
async def lexical_search(request: Request, body: LexicalSearchBody, executor: ExecutorParam) -> Response:
    """Return the k best items for words, by BM25; where the collection has a lexical field."""
    arguments = {**vars(body), "max_bytes": _check_hits(request, body)}
    return await executor.read(lambda c: search_response(c.lexical_search(**arguments)), "slow")


@router.post("/hybrid_search", response_model=SearchResponse)
async def hybrid_search(request: Request, body: HybridSearchBody, executor: ExecutorParam) -> Response:
    """Return the k best items for a query and words, by their ranks in both searches."""
    arguments = {**body.arguments(), "max_bytes": _check_hits(request, body)}
    return await executor.read(lambda c: search_response(c.hybrid_search(**arguments)), "slow")


def _check_hits(request: Request, body: LexicalSearchBody | HybridSearchBody) -> int:
    """Refuse more hits than one query may have, and reserve their memory; return the most bytes of the answer."""
    settings, hits = app_state(request).settings, body.fetched_hits()
    if hits > settings.max_hits:
        name = "k" if body.k > settings.max_hits else "depth"
        raise TooLarge(f"{name}: expected at most {settings.max_hits}, got {hits}")
    request.state.memory.hold(min(hits * HIT_BYTES, settings.max_answer_bytes))
    return settings.max_answer_bytes
