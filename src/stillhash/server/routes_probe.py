"""Routes that measure and compare versions of the model on the same stored items."""

from functools import partial

from starlette.responses import Response

from stillhash.collection import Collection
from stillhash.collection.probe import ProbeReport, VersionComparison
from stillhash.server.dependencies import ExecutorParam, api_router
from stillhash.server.probe_schemas import CompareVersionsBody, ProbeBody
from stillhash.server.responses import json_response

read_router = api_router("read", "learning")


@read_router.post("/probe", response_model=ProbeReport)
async def probe(body: ProbeBody, executor: ExecutorParam) -> Response:
    """Measure a version on stored items, in total and for each label, the worst first; with the gain over version 0."""
    return json_response(await executor.read(partial(Collection.probe, **vars(body)), "slow"))


@read_router.post("/compare_versions", response_model=VersionComparison)
async def compare_versions(body: CompareVersionsBody, executor: ExecutorParam) -> Response:
    """Compare the first ten hits of stored items by two versions, the largest gain first and the largest loss last."""
    return json_response(await executor.read(partial(Collection.compare_versions, **vars(body)), "slow"))
