"""Routes that search."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from starlette.responses import Response

from stillhash.collection import Answer
from stillhash.errors import TooLarge
from stillhash.server.dependencies import ExecutorParam, app_state
from stillhash.server.request_body import EncodableQuery
from stillhash.server.responses import json_response
from stillhash.server.routing import api_router
from stillhash.server.schemas import FeaturesResponse, RangeSearchBody, SearchBody, SearchResponse

read_router = api_router("read", "search")


@read_router.post("/collections/{name}/search", response_model=SearchResponse)
async def search(
    request: Request,
    body: Annotated[SearchBody, Depends(SearchBody.from_request)],
    executor: ExecutorParam,
) -> Response:
    """Return the k best items for one query or many."""
    settings, queries = app_state(request).settings, body.row_count()
    if body.k > settings.max_hits or body.k * queries > settings.max_total_hits:
        limits = f"{settings.max_hits} for each query and {settings.max_total_hits} in total"
        raise TooLarge(f"k: expected at most {limits}, got {body.k} for {queries} queries")
    return await executor.read(
        lambda c: search_response(
            c.search(body.query, body.k, where=body.where, version=body.version, explain=body.explain)
        )
    )


@read_router.post("/collections/{name}/range_search", response_model=SearchResponse)
async def range_search(
    request: Request,
    body: Annotated[RangeSearchBody, Depends(RangeSearchBody.from_request)],
    executor: ExecutorParam,
) -> Response:
    """Return all items of at least this score."""
    limit = app_state(request).settings.max_total_hits
    most = limit if body.most is None else min(body.most, limit)
    return await executor.read(
        lambda c: search_response(
            c.range_search(body.query, body.threshold, where=body.where, version=body.version, most=most)
        )
    )


def search_response(answers: Answer | list[Answer]) -> Response:
    """Serialise answers; in the reader's thread, since many hits take time."""
    return json_response({"answers": answers if isinstance(answers, list) else [answers]})


@read_router.post("/collections/{name}/encode")
async def encode(
    query: Annotated[EncodableQuery, Depends(EncodableQuery.from_request)], executor: ExecutorParam
) -> FeaturesResponse:
    """Return the features of an image, or of a text where the encoder has text: a query to search for."""
    return FeaturesResponse(features=[(await executor.encode_query(query.value)).tolist()])
