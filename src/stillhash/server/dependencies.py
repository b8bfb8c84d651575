"""Routers of the HTTP API, and what their routes depend on: the application's state, a collection, keys, a body."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, get_type_hints

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from stillhash.collection.storage.audit import set_actor
from stillhash.errors import Busy, Conflict, Denied, Forbidden, InvalidInput, NotFound, TooLarge, TooMany
from stillhash.server.auth import ANONYMOUS, ANONYMOUS_NAME, ROLES, SESSION_COOKIE, Key, Role, Sessions
from stillhash.server.collection_lifecycle import CollectionLifecycle
from stillhash.server.limits import MemoryBudget
from stillhash.server.metrics import Metrics
from stillhash.server.page_state import QueryCache, Sittings
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
    sittings: Sittings
    memory: MemoryBudget
    sessions: Sessions
    lifecycle: CollectionLifecycle


def app_state(request: Request) -> AppState:
    state: AppState = request.app.state.stillhash
    return state


async def get_executor(request: Request, name: str) -> CollectionExecutor:
    """Return the collection that the path names; one that the key has not is as one that does not exist."""
    executors = visible_executors(request)
    if name not in executors:
        raise NotFound(f"No collection {name!r}. Available: {', '.join(executors) or 'none'}")
    set_actor(actor(request))  # for the audit log; the write queue takes it along from this task
    return executors[name]


ExecutorParam = Annotated[CollectionExecutor, Depends(get_executor)]

bearer = HTTPBearer(auto_error=False, description="A key of this server, if it has keys.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]


def check_key(request: Request, credentials: HTTPAuthorizationCredentials | None, role: Role) -> None:
    """Check the key in the request's header, or the session of a browser that has signed in; and remember the key."""
    state, cookie = app_state(request), request.cookies.get(SESSION_COOKIE, "")
    key: Key | None = ANONYMOUS
    if state.settings.keys.required and credentials is not None:
        key = state.settings.keys.find(credentials.credentials)
    elif state.settings.keys.required:
        key, request.state.renewed_session = state.sessions.get(cookie), state.sessions.renew(cookie)
    if key is None:
        raise Denied("this server needs a key: send 'Authorization: Bearer KEY'")
    request.state.key, request.state.actor = key, key.name
    key.check_role(role)


def actor(request: Request) -> str:
    """Return the name of the key that a request has, "anonymous" without one."""
    return str(getattr(request.state, "actor", ANONYMOUS_NAME))


def visible_executors(request: Request) -> dict[str, CollectionExecutor]:
    """Return the collections that the request's key has; none before the key is checked."""
    key: Key | None = getattr(request.state, "key", None)
    executors = app_state(request).executors
    return {} if key is None else {name: executors[name] for name in key.visible(executors)}


def check_all_collections(request: Request) -> None:
    """Raise Forbidden unless the request's key has all collections."""
    key: Key = request.state.key
    if key.collections is not None:
        raise Forbidden(f"collections: expected a key of all collections, got one of {len(key.collections)}")


def require(role: Role) -> Any:
    """Return a dependency that checks the key of a request for a role."""

    async def check(request: Request, credentials: Credentials = None) -> None:
        check_key(request, credentials, role)

    return Depends(check)


KEY_CHECKS: dict[Role | None, list[Any]] = {None: [], **{role: [require(role)] for role in ROLES}}


class ApiRoute(APIRoute):
    """Route that reads a body by its type's `from_request`: after the key is checked, and within the limits."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        for name, kind in get_type_hints(endpoint).items():
            if name != "return" and hasattr(kind, "from_request"):
                endpoint.__annotations__[name] = Annotated[kind, Depends(kind.from_request)]
                options["openapi_extra"] = {"requestBody": kind.openapi_body()}
        role = next(
            (role for role, checks in KEY_CHECKS.items() if role and checks == options.get("dependencies")), None
        )
        if role is not None:
            options["openapi_extra"] = {**(options.get("openapi_extra") or {}), "x-role": role}
        super().__init__(path, endpoint, **options)


def api_router(role: Role | None, tag: str, prefix: str = "/v1/collections/{name}") -> APIRouter:
    """Return a router for requests with a key of this role; without a role, for everyone."""
    responses: dict[int | str, dict[str, Any]] = {
        error.status: {"model": ErrorResponse, "description": error.__doc__}
        for error in (PUBLIC_ERRORS if role is None else API_ERRORS)
    }
    checks = KEY_CHECKS[role]
    return APIRouter(prefix=prefix, dependencies=checks, responses=responses, tags=[tag], route_class=ApiRoute)
