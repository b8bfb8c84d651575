"""Work on a Ray cluster: tasks that may die with their machine and are then done elsewhere, and errors as our own.

A task leaves whole files behind or none, and doing it twice leaves the same bytes, so it may be tried again freely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from stillhash.errors import StillhashError, Unreachable

RETRIES = 5  # of a task whose process or machine died
AHEAD = 2  # tasks under way for each core of the cluster


def task(function: Callable[..., Any], returns: int = 1) -> Any:
    """A function as a Ray task of one core, anywhere."""
    return ray.remote(num_cpus=1, max_retries=RETRIES, num_returns=returns)(function)


def each(
    function: Callable[..., Any], shared: Any, arguments: Iterable[tuple[Any, ...]], at_once: int | None = None
) -> Iterator[tuple[int, Any]]:
    """The results of function(shared, *arguments[n]) as they come, each with its n.

    So many tasks are under way at once, or a few for each core that the cluster has at the time. Once one fails for
    good, so does this, and what is under way is given up.
    """
    remote, rest = task(function), enumerate(arguments)
    known = ray.put(shared)
    under_way: dict[Any, int] = {}
    try:
        while True:
            room = (at_once or AHEAD * _cores()) - len(under_way)
            for _, (number, given) in zip(range(room), rest, strict=False):  # in this order: nothing is skipped
                under_way[remote.remote(known, *given)] = number
            if not under_way:
                return
            done, _ = ray.wait(list(under_way))
            for ref in done:
                number = under_way.pop(ref)
                yield number, got(ref)
    finally:
        cancel(under_way)


def got(ref: Any) -> Any:
    """The result of a task; what went wrong in it, as it would have been raised here."""
    try:
        return ray.get(ref)
    except RayError as error:
        cause: BaseException = error
        while isinstance(cause, RayTaskError) and cause.cause is not None:
            cause = cause.cause
        if isinstance(cause, StillhashError):
            raise cause from None
        if isinstance(error, RayTaskError):
            raise
        raise Unreachable(f"the cluster gave a task up after {RETRIES} more tries: {cause}") from error


def cancel(refs: Iterable[Any]) -> None:
    for ref in refs:
        with suppress(RayError):
            ray.cancel(ref)


def _cores() -> int:
    """Of the cluster, at this time."""
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return max(1, int(resources.get("CPU", 1)))
