"""All errors of the library. Each class carries its HTTP status and its exit code."""

from __future__ import annotations

from typing import ClassVar


class StillhashError(Exception):
    """Base of all errors of this library."""

    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1


class InvalidInput(StillhashError, ValueError):
    """An argument is invalid; the message names it, what was expected and what came."""

    status = 422
    exit_code = 2


class WrongType(InvalidInput, TypeError):
    """An argument has the wrong type: text among numbers, a sparse matrix for features."""


class NotFitted(StillhashError, ValueError, AttributeError):
    """The hasher is not fitted yet: call `fit`, or a first `partial_fit`, before."""

    status = 409
    exit_code = 3


class Conflict(StillhashError, ValueError):
    """The request contradicts what is stored: an id that already exists, for instance."""

    status = 409
    exit_code = 4


class Closed(StillhashError, ValueError):
    """The collection is closed; open it again to go on."""

    status = 503
    exit_code = 12


class BadState(StillhashError, ValueError):
    """Saved state cannot be read: it is damaged, of another class or of an unknown format version."""

    status = 500
    exit_code = 5


class MissingExtra(StillhashError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""

    status = 501
    exit_code = 6


class NotFound(StillhashError, LookupError):
    """Nothing with this name exists."""

    status = 404
    exit_code = 8


class Denied(StillhashError, PermissionError):
    """The request has no key, or an unknown one."""

    status = 401
    exit_code = 9


class Forbidden(Denied):
    """The key, or the page that sent the request, has no permission for this."""

    status = 403


class TooLarge(InvalidInput):
    """The request is larger than the server accepts."""

    status = 413


class Busy(StillhashError):
    """The queue is full; nothing of the request was stored. Try again in `retry_after` seconds."""

    status = 503
    exit_code = 10
    retry_after = 1


class TooMany(Busy):
    """This client exceeded its rate limit."""

    status = 429


class Unreachable(StillhashError, ConnectionError):
    """The server does not answer, or is not a stillhash server."""

    status = 502
    exit_code = 11


class StoreFailed(StillhashError, OSError):
    """The disk refused a write or returned an error; nothing of the request was stored."""

    status = 507
    exit_code = 7
