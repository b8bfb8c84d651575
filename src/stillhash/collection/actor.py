"""Who changes a collection: the name that the audit log has of a change.

    with acting_as("importer"):
        collection.add(ids, features)

The name belongs to the context (contextvars), so to one thread or task: a thread that is started inside the block does
not have it. Without one, it is the operating system's user.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from stillhash.errors import InvalidInput, WrongType
from stillhash.platform import SYSTEM

MAX_ACTOR_LENGTH = 200

_actor: ContextVar[str] = ContextVar("actor")


@contextmanager
def acting_as(name: str) -> Iterator[None]:
    """Make all changes inside the block under this name, which the audit log will have."""
    token = _actor.set(check_actor(name))
    try:
        yield
    finally:
        _actor.reset(token)


def set_actor(name: str) -> None:
    """Set the name for the rest of this context, as a task that answers one request does."""
    _actor.set(check_actor(name))


def current_actor() -> str:
    """Return the name under which changes are made now."""
    return _actor.get(None) or system_user()


def check_actor(name: str, argument: str = "name") -> str:
    """Validate a name for the audit log: printable, and not longer than the log keeps."""
    if not isinstance(name, str):
        raise WrongType(f"{argument}: expected a string, got {name!r}")
    if not name.strip() or not name.isprintable() or len(name) > MAX_ACTOR_LENGTH:
        raise InvalidInput(f"{argument}: expected 1 to {MAX_ACTOR_LENGTH} printable characters, got {name[:50]!r}")
    return name


@cache
def system_user() -> str:
    """Return the name of the operating system's user, or its number where there is no valid name."""
    try:
        return check_actor(SYSTEM.user_name() or "")
    except InvalidInput:
        return SYSTEM.unnamed_user()
