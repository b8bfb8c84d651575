"""The route that forgets items, or a source of votes."""

from dataclasses import asdict
from typing import Annotated

from fastapi import Request
from pydantic import BaseModel, Field

from stillhash.server.dependencies import ExecutorParam, api_router, app_state
from stillhash.server.schemas import DeleteBody

admin_router = api_router("admin", "upkeep")


class ForgetBody(DeleteBody):
    """One of the three."""

    source: Annotated[str | None, Field(description="A source of votes.")] = None


class ForgetResponse(BaseModel):
    items: Annotated[int, Field(description="That were there.")]
    votes: Annotated[int, Field(description="On them, or of the source.")]
    unlearnt: Annotated[int, Field(description="Rows that were learnt of them, and have been taken out exactly.")]
    versions: Annotated[list[int], Field(description="That had learnt from them, and are dropped.")]
    snapshots: Annotated[dict[str, int], Field(description="In the server's folder, that hold so many of them.")]
    remains: Annotated[list[str], Field(description="What the collection still holds of them.")]


@admin_router.post("/forget")
async def forget(body: ForgetBody, request: Request, executor: ExecutorParam) -> ForgetResponse:
    """Remove items, or the votes of a source, from every file, and from what was learnt.

    All codes are rewritten, which takes a while for millions of items; searches go on.
    """
    folder = app_state(request).settings.snapshots
    snapshots = folder if folder is not None and folder.is_dir() else None
    report = await executor.write(lambda c: c.forget(**vars(body), snapshots=snapshots))
    return ForgetResponse(**asdict(report))
