"""Routes that count and suggest labels and values."""

from dataclasses import asdict

from starlette.responses import Response

from stillhash.server.dependencies import ExecutorParam, api_router
from stillhash.server.facet_schemas import FacetsBody, FacetsResponse, SuggestBody, SuggestResponse
from stillhash.server.responses import json_response

read_router = api_router("read", "search")


@read_router.post("/facets", response_model=FacetsResponse)
async def facets(body: FacetsBody, executor: ExecutorParam) -> Response:
    """Count the items of each label, and of each value of fields, that meet a condition."""
    return await executor.read(lambda c: json_response(asdict(c.facets(**vars(body)))), "slow")


@read_router.post("/suggest", response_model=SuggestResponse)
async def suggest(body: SuggestBody, executor: ExecutorParam) -> Response:
    """Suggest labels, ids and values for what somebody types."""
    return await executor.read(
        lambda c: json_response({"suggestions": [asdict(one) for one in c.suggest(body.text, body.limit)]}), "slow"
    )
