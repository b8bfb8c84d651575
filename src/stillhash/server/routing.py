"""Routers of the HTTP API: path prefix, keys, error responses, and request bodies in OpenAPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

from fastapi import APIRouter
from fastapi.params import Depends as DependsParam
from fastapi.routing import APIRoute

from stillhash.errors import Busy, Conflict, Denied, Forbidden, InvalidInput, NotFound, TooLarge, TooMany
from stillhash.server.auth import Role
from stillhash.server.dependencies import KEY_CHECKS
from stillhash.server.schemas import ErrorResponse

ERRORS = (Denied, Forbidden, NotFound, Conflict, TooLarge, InvalidInput, TooMany, Busy)
PUBLIC_ERRORS = (Forbidden, TooMany, Busy)


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
    responses: dict[int | str, dict[str, Any]] = {
        error.status: {"model": ErrorResponse, "description": error.__doc__}
        for error in (PUBLIC_ERRORS if role is None else ERRORS)
    }
    return APIRouter(prefix="/v1", dependencies=KEY_CHECKS[role], responses=responses, tags=[tag], route_class=ApiRoute)
