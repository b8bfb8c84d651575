"""All errors of the library. Each class carries its HTTP status and its exit code."""

from typing import ClassVar


class StillhashError(Exception):
    """Base of all errors of this library."""

    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init_subclass__(cls, status: int | None = None, exit_code: int | None = None) -> None:
        super().__init_subclass__()
        cls.status = cls.status if status is None else status
        cls.exit_code = cls.exit_code if exit_code is None else exit_code


class InvalidInput(StillhashError, ValueError, status=422, exit_code=2):
    """An argument is invalid; the message names it, what was expected and what came."""


class WrongType(InvalidInput, TypeError):
    """An argument has the wrong type: text among numbers, a sparse matrix for features."""


class NotFitted(StillhashError, ValueError, AttributeError, status=409, exit_code=3):
    """The hasher is not fitted yet: call `fit`, or a first `partial_fit`, before."""


class Conflict(StillhashError, ValueError, status=409, exit_code=4):
    """The request contradicts what is stored: an id that already exists, for instance."""


class Closed(StillhashError, ValueError, status=503, exit_code=12):
    """The collection is closed; open it again to go on."""


class BadState(StillhashError, ValueError, status=500, exit_code=5):
    """Saved state cannot be read: it is damaged, of another class or of an unknown format version."""


class MissingExtra(StillhashError, ImportError, status=501, exit_code=6):
    """An optional dependency is not installed; the message names the extra to install."""


class NotFound(StillhashError, LookupError, status=404, exit_code=8):
    """Nothing with this name exists."""


class Denied(StillhashError, PermissionError, status=401, exit_code=9):
    """The request has no key, or an unknown one."""


class Forbidden(Denied, status=403):
    """The key, or the page that sent the request, has no permission for this."""


class TooLarge(InvalidInput, status=413):
    """The request is larger than the server accepts."""


class TooSlow(InvalidInput, status=408):
    """The body of the request did not arrive in time."""


class Busy(StillhashError, status=503, exit_code=10):
    """The queue is full; nothing of the request was stored. Try again in `retry_after` seconds."""

    retry_after = 1


class TooMany(Busy, status=429):
    """This client exceeded its rate limit."""


class Unreachable(StillhashError, ConnectionError, status=502, exit_code=11):
    """The server does not answer, or is not a stillhash server."""


class StoreFailed(StillhashError, OSError, status=507, exit_code=7):
    """The disk refused a write or returned an error; nothing of the request was stored."""
