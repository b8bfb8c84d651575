"""All errors and warnings of the library. Each class of errors carries its HTTP status and its exit code.

What the system lacks, memory, file handles or threads, is reported as `Busy`: `report_shortages` stands on the classes
and functions that callers use.
"""

import errno
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

_Reporting = TypeVar("_Reporting", bound=Callable[..., Any])
NO_THREAD = "can't start new thread"  # as Python says it
OWN_MODULES = (__name__.partition(".")[0], "contextlib")
NO_OBJECT = "PyObject pointer is null"  # as extensions in Rust say it, in an error that is no Exception


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


class Unsupported(StillhashError, NotImplementedError, status=501, exit_code=14):
    """This operating system lacks what the call needs; the message names the system that has it."""


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
    """The queue is full, or file handles or threads lack. Nothing was stored; try again in `retry_after` seconds."""

    retry_after = 1


class OutOfMemory(Busy, MemoryError, exit_code=13):
    """There is not enough memory; nothing of the request was stored. Try again with less at a time, or later."""


class TooMany(Busy, status=429):
    """This client exceeded its rate limit."""


class Unreachable(StillhashError, ConnectionError, status=502, exit_code=11):
    """The server does not answer, or is not a stillhash server."""


class StoreFailed(StillhashError, OSError, status=507, exit_code=7):
    """The disk refused a write or returned an error; nothing of the request was stored."""


class UnknownField(UserWarning):
    """A filter compares a field of the metadata that no item has."""


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warn in the name of the line outside this package that led here."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OWN_MODULES:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def shortage(error: BaseException) -> Busy | None:
    """Return our error for a lack of memory, file handles or threads; None for all others, and for our own."""
    if isinstance(error, StillhashError):
        return None
    number = error.errno if isinstance(error, OSError) else None
    panic = type(error).__name__ == "PanicException" and NO_OBJECT in str(error)
    if panic or isinstance(error, MemoryError) or number == errno.ENOMEM:
        return OutOfMemory(f"memory: expected enough of it, got {str(error) or 'a failed allocation'}. Use fewer rows")
    if number in (errno.EMFILE, errno.ENFILE):
        return Busy(f"file handles: expected a free one, got {error}. Raise the limit, or close some")
    if isinstance(error, RuntimeError) and str(error) == NO_THREAD:
        return Busy("threads: expected one more to start, got a refusal of the system. Raise the limit")
    return None


def report_shortages(target: _Reporting) -> _Reporting:
    """Let a function, or all public methods of a class, raise our errors where memory, handles or threads lack."""
    if isinstance(target, type):
        for name, member in list(vars(target).items()):
            if not name.startswith("_") and inspect.isfunction(member) and not inspect.iscoroutinefunction(member):
                setattr(target, name, report_shortages(member))
        return target

    @functools.wraps(target)
    def reporting(*args: Any, **kwargs: Any) -> Any:
        try:
            return target(*args, **kwargs)
        except BaseException as error:
            if (ours := shortage(error)) is None:
                raise
            raise ours from error

    return reporting  # type: ignore[return-value]
