"""Routes that learn, and that list, tag and restore versions of the model."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from starlette.responses import Response

from stillhash.collection import Collection
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.responses import json_response
from stillhash.server.routing import api_router
from stillhash.server.schemas import (
    FeedbackBody,
    FitBody,
    LearnBody,
    QualityResponse,
    RollbackBody,
    TagBody,
    VersionResponse,
    VersionsResponse,
)

read_router, write_router = api_router("read", "learning"), api_router("write", "learning")


@write_router.post("/collections/{name}/learn")
async def learn(
    body: Annotated[LearnBody, Depends(LearnBody.from_request)], executor: ExecutorParam
) -> VersionResponse:
    """Learn from labelled rows that are not stored as items."""
    return VersionResponse(version=await executor.write(lambda c: c.learn(body.features, body.labels)))


@write_router.post("/collections/{name}/fit")
async def fit(body: Annotated[FitBody, Depends(FitBody.from_request)], executor: ExecutorParam) -> VersionResponse:
    """Fit the hash functions now, permanently: by a sample, or by the rows that await codes."""
    return VersionResponse(version=await executor.write(lambda c: _fit(c, body)))


def _fit(collection: Collection, body: FitBody) -> int:
    collection.fit(body.features, body.labels)
    return int(collection.stats()["version"])


@write_router.post("/collections/{name}/feedback")
async def feedback(
    body: Annotated[FeedbackBody, Depends(FeedbackBody.from_request)], executor: ExecutorParam
) -> VersionResponse:
    """Learn from a vote up or down on hits of a query."""
    version = await executor.write(
        lambda c: c.feedback(body.vector(), body.id, body.relevant, weight=body.weight, source=body.source)
    )
    return VersionResponse(version=version)


@write_router.post("/collections/{name}/flush")
async def flush(executor: ExecutorParam) -> VersionResponse:
    """Learn the labelled items that wait for a full chunk."""
    return VersionResponse(version=await executor.write(Collection.flush))


@read_router.get("/collections/{name}/versions", response_model=VersionsResponse)
async def versions(executor: ExecutorParam) -> Response:
    """List the kept versions of the model, the latest last."""
    return json_response({"versions": await executor.read(Collection.versions)})


@read_router.get("/collections/{name}/quality", response_model=QualityResponse)
async def quality(executor: ExecutorParam) -> Response:
    """Return the quality on each chunk of labelled rows, measured before it was learnt."""
    return json_response(await executor.read(Collection.quality))


@write_router.post("/collections/{name}/tag")
async def tag(body: Annotated[TagBody, Depends(TagBody.from_request)], executor: ExecutorParam) -> TagBody:
    """Name a version, which keeps it permanently."""
    await executor.write(lambda c: c.tag(body.version, body.name))
    return body


@write_router.post("/collections/{name}/rollback")
async def rollback(
    body: Annotated[RollbackBody, Depends(RollbackBody.from_request)], executor: ExecutorParam
) -> VersionResponse:
    """Restore an earlier version under a new number, with identical results."""
    return VersionResponse(version=await executor.write(lambda c: c.rollback(body.version)))
