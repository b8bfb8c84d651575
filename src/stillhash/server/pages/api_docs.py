"""The reference of the HTTP API, with requests to try: Swagger UI, from files of this server."""

from fastapi import Request
from starlette.responses import Response

from stillhash.server.pages.rendering import page_router, render

router = page_router()


@router.get("/docs")
async def api_docs(request: Request) -> Response:
    """Show the OpenAPI description, which anyone may read; the requests that it sends need a key as ever."""
    return render(request, "api_docs.html")
