"""Where the codes of a collection are, if they are on a cluster, and what can be done about it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from stillhash.errors import NotFound
from stillhash.server import schemas
from stillhash.server.routes import ERRORS, At, may, said, takes
from stillhash.server.schemas import answered
from stillhash.server.write_queue import Crew, Desk

reading = APIRouter(prefix="/v1", dependencies=[may("read")], responses=ERRORS, tags=["cluster"])
writing = APIRouter(prefix="/v1", dependencies=[may("write")], responses=ERRORS, tags=["cluster"])


class Node(schemas.Body):
    node: Annotated[str, Field(min_length=1, description="The id of a node, as the status has it.")]


def crew(at: Desk) -> Crew:
    if at.crew is None:
        raise NotFound(f"{at.name} is not on a cluster; the server is started with --cluster ADDRESS to have it there")
    return at.crew


@reading.get("/collections/{name}/cluster", response_model=dict[str, Any])
async def status(at: At) -> Response:
    """Nodes, shards and their actors, and whether all of them are up to date."""
    found = crew(at)
    return answered(await at.read(lambda _: found.status()))


@writing.post("/collections/{name}/cluster/add_shard", response_model=dict[str, int])
async def add_shard(at: At) -> Response:
    """One more shard, with its share of the rows. Searches go on meanwhile."""
    found = crew(at)
    return answered({"shard": await at.read(lambda _: found.add_shard(), patient=True)})


@writing.post("/collections/{name}/cluster/drain", response_model=dict[str, int], openapi_extra=takes(Node))
async def drain(request: Request, at: At) -> Response:
    """Move every actor off a node, and use it no more."""
    found, told = crew(at), await said(request, Node, at)
    return answered({"moved": await at.read(lambda _: found.drain(told.node), patient=True)})
