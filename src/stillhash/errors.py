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


class BadState(StillhashError, ValueError):
    """Saved state that cannot be read: damaged, of another class or of an unknown format version."""

    status = 422
    exit_code = 5


class MissingExtra(StillhashError, ImportError):
    """An optional dependency is not installed; the message says which extra brings it."""

    status = 501
    exit_code = 6


class StoreFailed(StillhashError, OSError):
    """The disk would not take a write, or gave an error back; nothing of the request was kept."""

    status = 507
    exit_code = 7
