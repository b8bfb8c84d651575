"""Routers of the HTTP API, and what their routes depend on: the application's state, a collection, keys, a body."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, get_type_hints

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from stillhash.collection.actor import set_actor
from stillhash.errors import Busy, Conflict, Denied, Forbidden, InvalidInput, NotFound, TooLarge, TooMany
from stillhash.server.auth import KEY_COOKIE, Role
from stillhash.server.memory import MemoryBudget
from stillhash.server.metrics import Metrics
from stillhash.server.query_cache import QueryCache
from stillhash.server.responses import ErrorResponse
from stillhash.server.settings import Settings
from stillhash.server.write_queue import CollectionExecutor

API_ERRORS = (Denied, Forbidden, NotFound, Conflict, TooLarge, InvalidInput, TooMany, Busy)
PUBLIC_ERRORS = (Forbidden, TooMany, Busy)

# Dependencies are `async` although they wait for nothing: FastAPI would run plain functions in a thread.


class AppState(NamedTuple):
    """State shared by all routes; in `app.state.stillhash`."""

    executors: dict[str, CollectionExecutor]
    settings: Settings
    metrics: Metrics
    query_cache: QueryCache
    memory: MemoryBudget


def app_state(request: Request) -> AppState:
    state: AppState = request.app.state.stillhash
    return state


async def get_executor(request: Request, name: str) -> CollectionExecutor:
    """Return the collection that the path names."""
    executors = app_state(request).executors
    if name not in executors:
        raise NotFound(f"No collection {name!r}. Available: {', '.join(executors)}")
    set_actor(actor(request))  # for the audit log; the write queue takes it along from this task
    return executors[name]


ExecutorParam = Annotated[CollectionExecutor, Depends(get_executor)]

bearer = HTTPBearer(auto_error=False, description="A key of this server, if it has keys.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]


async def require_read(request: Request, credentials: Credentials = None) -> None:
    check_key(request, credentials, "read")


async def require_write(request: Request, credentials: Credentials = None) -> None:
    check_key(request, credentials, "write")


def check_key(request: Request, credentials: HTTPAuthorizationCredentials | None, role: Role) -> None:
    """Check the key in the request's header, or in the cookie of a browser that has signed in."""
    key = credentials.credentials if credentials else request.cookies.get(KEY_COOKIE)
    app_state(request).settings.keys.check(key, role)


def actor(request: Request) -> str:
    """Return the name of the key that a request has, "anonymous" without one."""
    return str(getattr(request.state, "actor", "anonymous"))


KEY_CHECKS = {"read": [Depends(require_read)], "write": [Depends(require_write)], None: []}


class ApiRoute(APIRoute):
    """Route that reads a body by its type's `from_request`: after the key is checked, and within the limits."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        for name, kind in get_type_hints(endpoint).items():
            if name != "return" and hasattr(kind, "from_request"):
                endpoint.__annotations__[name] = Annotated[kind, Depends(kind.from_request)]
                options["openapi_extra"] = {"requestBody": kind.openapi_body()}
        super().__init__(path, endpoint, **options)


def api_router(role: Role | None, tag: str, prefix: str = "/v1/collections/{name}") -> APIRouter:
    """Return a router for requests with a key of this role; without a role, for everyone."""
    responses: dict[int | str, dict[str, Any]] = {
        error.status: {"model": ErrorResponse, "description": error.__doc__}
        for error in (PUBLIC_ERRORS if role is None else API_ERRORS)
    }
    checks = KEY_CHECKS[role]
    return APIRouter(prefix=prefix, dependencies=checks, responses=responses, tags=[tag], route_class=ApiRoute)
