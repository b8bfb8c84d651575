"""What can go wrong, as one small tree. Each class carries the HTTP status and the exit code it maps to."""

from __future__ import annotations

from typing import ClassVar


class StillhashError(Exception):
    """Anything this library raises on purpose."""

    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1


class InvalidInput(StillhashError, ValueError):
    """An argument is not what it must be; the message names it, what was found and what is wanted."""

    status = 422
    exit_code = 2


class WrongType(InvalidInput, TypeError):
    """An argument is of a kind that can never do: text among numbers, a sparse matrix for features."""


class NotFitted(StillhashError, ValueError, AttributeError):
    """The hash functions are not fixed yet: `fit`, or a first `partial_fit`, comes before this."""

    status = 409
    exit_code = 3


class Conflict(StillhashError, ValueError):
    """The request contradicts what is stored: an id that is already there, for instance."""

    status = 409
    exit_code = 4


class Closed(StillhashError, ValueError):
    """The collection is closed; open it again to go on."""

    status = 503
    exit_code = 12


class BadState(StillhashError, ValueError):
    """Saved state that cannot be read: damaged, of another class or of an unknown format version."""

    status = 500
    exit_code = 5


class MissingExtra(StillhashError, ImportError):
    """An optional dependency is not installed; the message says which extra brings it."""

    status = 501
    exit_code = 6


class NotFound(StillhashError, LookupError):
    """There is nothing of this name."""

    status = 404
    exit_code = 8


class Denied(StillhashError, PermissionError):
    """No key came with the request, or an unknown one."""

    status = 401
    exit_code = 9


class Forbidden(Denied):
    """The key, or the page that sent the request, may not do this."""

    status = 403


class TooLarge(InvalidInput):
    """More at once than the server takes."""

    status = 413


class Busy(StillhashError):
    """Too much is waiting; nothing of the request was kept. Try again in `retry_after` seconds."""

    status = 503
    exit_code = 10
    retry_after = 1


class TooMany(Busy):
    """More requests than this client may make."""

    status = 429


class Unreachable(StillhashError, ConnectionError):
    """The server does not answer, or not as a stillhash server does."""

    status = 502
    exit_code = 11


class StoreFailed(StillhashError, OSError):
    """The disk would not take a write, or gave an error back; nothing of the request was kept."""

    status = 507
    exit_code = 7
