"""FastAPI dependencies: the state of the application, the collection of a path, and keys."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from stillhash.errors import NotFound
from stillhash.server.auth import Role
from stillhash.server.metrics import Metrics
from stillhash.server.query_cache import QueryCache
from stillhash.server.settings import Settings
from stillhash.server.write_queue import CollectionExecutor

KEY_COOKIE = "stillhash_key"  # of a browser that has signed in

# Dependencies are `async` although they wait for nothing: FastAPI would run plain functions in a thread.


class AppState(NamedTuple):
    """State shared by all routes; in `app.state.stillhash`."""

    executors: dict[str, CollectionExecutor]
    settings: Settings
    metrics: Metrics
    query_cache: QueryCache


def app_state(request: Request) -> AppState:
    state: AppState = request.app.state.stillhash
    return state


async def get_executor(request: Request, name: str) -> CollectionExecutor:
    """Return the collection that the path names."""
    executors = app_state(request).executors
    if name not in executors:
        raise NotFound(f"No collection {name!r}. Available: {', '.join(executors)}")
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


KEY_CHECKS = {"read": [Depends(require_read)], "write": [Depends(require_write)], None: []}
