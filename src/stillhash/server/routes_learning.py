"""Routes that learn, and that list, tag and restore versions of the model."""

from functools import partial

from fastapi import Request
from starlette.responses import Response

from stillhash.collection import Collection
from stillhash.collection.explain import NUMBER_BYTES
from stillhash.collection.learning.probe import ProbeReport, VersionComparison
from stillhash.errors import TooLarge
from stillhash.server import schemas
from stillhash.server.bodies import VoteLines
from stillhash.server.dependencies import ExecutorParam, api_router, app_state
from stillhash.server.responses import json_response
from stillhash.server.schemas import (
    CompareVersionsBody,
    DoubtfulLabelsResponse,
    ListVotesBody,
    ProbeBody,
    QualityResponse,
    SuggestLabelsBody,
    SuggestLabelsResponse,
    VersionResponse,
    VersionsResponse,
    VotesResponse,
)

read_router, write_router = api_router("read", "learning"), api_router("write", "learning")
feedback_router = api_router("feedback", "learning")


@write_router.post("/learn")
async def learn(body: schemas.LearnBody, executor: ExecutorParam) -> VersionResponse:
    """Learn from labelled rows that are not stored as items."""
    return VersionResponse(version=await executor.write(partial(Collection.learn, **vars(body))))


@write_router.post("/fit")
async def fit(body: schemas.FitBody, executor: ExecutorParam) -> VersionResponse:
    """Fit the hash functions now, permanently: by a sample, or by the rows that await codes."""
    return VersionResponse(version=await executor.write(lambda c: _fit(c, body)))


def _fit(collection: Collection, body: schemas.FitBody) -> int:
    collection.fit(**vars(body))
    return int(collection.stats()["version"])


@feedback_router.post("/feedback")
async def feedback(body: schemas.FeedbackBody, executor: ExecutorParam) -> VersionResponse:
    """Learn from a vote up or down on hits of a query."""
    return VersionResponse(version=await executor.write(partial(Collection.feedback, **body.arguments())))


@feedback_router.post("/feedback_many")
async def feedback_many(lines: VoteLines, executor: ExecutorParam) -> VersionResponse:
    """Learn from many votes: lines of JSON with id, vote, query or query_id, and optional source and position.

    They publish one version. If a line is invalid, nothing changes.
    """
    return VersionResponse(version=await executor.write(lambda c: c.feedback_many(lines.votes)))


@write_router.post("/votes", response_model=VotesResponse)
async def votes(request: Request, body: ListVotesBody, executor: ExecutorParam) -> Response:
    """List the votes that count, the latest first: whose they are, on which item and query, and when they came."""
    size, limit = executor.collection.dim * NUMBER_BYTES, app_state(request).settings.max_answer_bytes
    if body.limit * size > limit:
        raise TooLarge(f"limit: expected at most {limit // size} for an answer of {limit} bytes, got {body.limit}")
    request.state.memory.hold(body.limit * size)
    return await executor.read(lambda c: json_response({"votes": c.votes(**body.arguments())}), "slow")


@write_router.post("/flush")
async def flush(executor: ExecutorParam) -> VersionResponse:
    """Learn the labelled items that wait for a full chunk."""
    return VersionResponse(version=await executor.write(Collection.flush))


@read_router.get("/versions", response_model=VersionsResponse)
async def versions(executor: ExecutorParam) -> Response:
    """List the kept versions of the model, the latest last."""
    return json_response({"versions": await executor.read(Collection.versions)})


@read_router.get("/quality", response_model=QualityResponse)
async def quality(executor: ExecutorParam) -> Response:
    """Return the quality on each step of labelled rows, measured before it was learnt."""
    return json_response(await executor.read(Collection.quality))


@read_router.get("/doubtful_labels", response_model=DoubtfulLabelsResponse)
async def doubtful_labels(executor: ExecutorParam, count: int = 100) -> Response:
    """Return the items whose labels are least plausible, with the labels that are predicted instead."""
    items, share = await executor.read(lambda c: (c.doubtful_labels(count), c.stats()["wrong_label_share"]))
    return json_response({"wrong_label_share": share, "items": items})


@read_router.post("/suggest_labels", response_model=SuggestLabelsResponse)
async def suggest_labels(body: SuggestLabelsBody, executor: ExecutorParam) -> Response:
    """Return unlabelled items whose labels would teach most, with labels predicted of them."""
    return json_response({"suggestions": await executor.read(partial(Collection.suggest_labels, **vars(body)))})


@write_router.post("/tag")
async def tag(body: schemas.TagBody, executor: ExecutorParam) -> schemas.TagBody:
    """Name a version, which keeps it permanently."""
    await executor.write(lambda c: c.tag(body.version, body.name))
    return body


@write_router.post("/rollback")
async def rollback(body: schemas.RollbackBody, executor: ExecutorParam) -> VersionResponse:
    """Restore an earlier version under a new number, with identical results."""
    return VersionResponse(version=await executor.write(lambda c: c.rollback(body.version)))


# ---- the probe ----


@read_router.post("/probe", response_model=ProbeReport)
async def probe(body: ProbeBody, executor: ExecutorParam) -> Response:
    """Measure a version on stored items, in total and for each label, the worst first; with the gain over version 0."""
    return json_response(await executor.read(partial(Collection.probe, **vars(body)), "slow"))


@read_router.post("/compare_versions", response_model=VersionComparison)
async def compare_versions(body: CompareVersionsBody, executor: ExecutorParam) -> Response:
    """Compare the first ten hits of stored items by two versions, the largest gain first and the largest loss last."""
    return json_response(await executor.read(partial(Collection.compare_versions, **vars(body)), "slow"))
