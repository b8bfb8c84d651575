"""Routers of the HTTP API: path prefix, keys, error responses, and request bodies in OpenAPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

from fastapi import APIRouter, Depends
from fastapi.params import Depends as DependsParam
from fastapi.routing import APIRoute

from stillhash.server.auth import Role
from stillhash.server.dependencies import require_read, require_write
from stillhash.server.schemas import ErrorResponse

ERRORS = {
    401: "No key, or an unknown one.",
    403: "The key does not allow this.",
    404: "No such collection.",
    409: "The request conflicts with what is stored.",
    413: "Too large.",
    422: "An argument is invalid.",
    429: "Too many requests.",
    503: "Too many requests are waiting.",
}
PUBLIC_ERRORS = (403, 429, 503)


class ApiRoute(APIRoute):
    """Route that shows in OpenAPI the body that a `from_request` dependency reads."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        for hint in get_type_hints(endpoint, include_extras=True).values():
            for depends in getattr(hint, "__metadata__", ()):
                reader: Any = isinstance(depends, DependsParam) and getattr(depends.dependency, "__self__", None)
                if hasattr(reader, "openapi_body"):
                    options["openapi_extra"] = {"requestBody": reader.openapi_body()}
        super().__init__(path, endpoint, **options)


def api_router(role: Role | None, tag: str) -> APIRouter:
    """Return a router below /v1 for requests with a key of this role; without a role, for everyone."""
    required = {"read": [Depends(require_read)], "write": [Depends(require_write)], None: []}[role]
    responses: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorResponse, "description": description}
        for status, description in ERRORS.items()
        if role is not None or status in PUBLIC_ERRORS
    }
    return APIRouter(prefix="/v1", dependencies=required, responses=responses, tags=[tag], route_class=ApiRoute)
