"""Routes that add, change and read items."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import Depends, Request
from starlette.responses import Response

from stillhash.collection import Collection
from stillhash.errors import StillhashError
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.request_body import RowStream
from stillhash.server.responses import error_response, json_response
from stillhash.server.routing import api_router
from stillhash.server.schemas import (
    AddBody,
    CountResponse,
    DeleteBody,
    FeaturesResponse,
    IdsBody,
    ItemsResponse,
    PictureBody,
    PictureResponse,
    RelabelBody,
)

read_router, write_router = api_router("read", "items"), api_router("write", "items")

AddParam = Annotated[AddBody, Depends(AddBody.from_request)]
IdsParam = Annotated[IdsBody, Depends(IdsBody.from_request)]


@write_router.post("/collections/{name}/add")
async def add(body: AddParam, executor: ExecutorParam) -> CountResponse:
    """Add items. They are on disk when this returns."""
    return CountResponse(count=await executor.write(partial(Collection.add, **body.arguments())))


@write_router.post("/collections/{name}/upsert")
async def upsert(body: AddParam, executor: ExecutorParam) -> CountResponse:
    """Add items, and replace those whose ids exist."""
    return CountResponse(count=await executor.write(partial(Collection.upsert, **body.arguments())))


@write_router.post("/collections/{name}/ingest", response_model=CountResponse)
async def ingest(
    request: Request,
    rows: Annotated[RowStream, Depends(RowStream.from_request)],
    executor: ExecutorParam,
    replace: bool = False,
    learn: bool = True,
) -> Response:
    """Add items from a stream of any length: lines of JSON with id, features, and optional labels and metadata.

    They are stored a thousand at a time. If a line is invalid, the error's `acknowledged` counts the rows
    before it that are on disk.
    """
    stored = 0
    verb: Callable[..., int] = Collection.upsert if replace else Collection.add
    try:
        async for columns in rows.chunks():
            stored += await executor.write(partial(verb, learn=learn, **columns), wait_for_slot=True)
    except StillhashError as error:
        return error_response(error, request.state.request_id, acknowledged=stored)
    return json_response({"count": stored})


@write_router.post("/collections/{name}/delete")
async def delete(
    body: Annotated[DeleteBody, Depends(DeleteBody.from_request)], executor: ExecutorParam
) -> CountResponse:
    """Delete items, and count those that existed."""
    return CountResponse(count=await executor.write(lambda c: c.delete(body.ids)))


@write_router.post("/collections/{name}/relabel")
async def relabel(
    body: Annotated[RelabelBody, Depends(RelabelBody.from_request)], executor: ExecutorParam
) -> CountResponse:
    """Replace the labels of items, and learn from them."""
    return CountResponse(count=await executor.write(lambda c: c.relabel(body.ids, body.labels, learn=body.learn)))


@read_router.post("/collections/{name}/get", response_model=ItemsResponse)
async def get(body: IdsParam, executor: ExecutorParam) -> Response:
    """Return items by their ids."""
    return json_response({"items": await executor.read(lambda c: c.get(body.ids))})


@read_router.get("/collections/{name}/sample", response_model=ItemsResponse)
async def sample(executor: ExecutorParam, count: int = 1) -> Response:
    """Return random items."""
    return json_response({"items": await executor.read(lambda c: c.sample(count))})


@read_router.post("/collections/{name}/reconstruct", response_model=FeaturesResponse)
async def reconstruct(body: IdsParam, executor: ExecutorParam) -> Response:
    """Return features rebuilt from the codes of items, to search for similar ones."""
    features = await executor.read(lambda c: c.reconstruct(body.ids))
    return json_response({"features": features.tolist()})


@read_router.post("/collections/{name}/picture")
async def picture(
    body: Annotated[PictureBody, Depends(PictureBody.from_request)], executor: ExecutorParam
) -> PictureResponse:
    """Return the small image that was added with an item."""
    data = await executor.read(lambda c: c.picture(body.id))
    return PictureResponse(picture=None if data is None else base64.b64encode(data).decode())


@read_router.get("/collections/{name}/count")
async def count(executor: ExecutorParam) -> CountResponse:
    """Count the items."""
    return CountResponse(count=await executor.read(Collection.count))
