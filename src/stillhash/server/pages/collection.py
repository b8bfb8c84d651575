"""The collection page: what is stored, and whether it is sound."""

from fastapi import Request
from starlette.responses import Response

from stillhash.collection import Collection
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.pages.rendering import page_router, render

read_router, admin_router = page_router("read"), page_router("admin")


@read_router.get("/c/{name}/collection")
async def collection(request: Request, executor: ExecutorParam) -> Response:
    return render(request, "collection.html", executor, stats=await executor.read(Collection.stats))


@admin_router.post("/c/{name}/verify")
async def verify(request: Request, executor: ExecutorParam) -> Response:
    """Check everything that is stored."""
    return render(request, "verified.html", problems=await executor.read(Collection.verify, "upkeep"))
