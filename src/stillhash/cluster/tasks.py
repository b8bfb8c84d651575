"""Run Ray tasks that may die with their machine and are then run elsewhere, with errors as if raised here.

A task writes complete files or none, and running it twice writes the same bytes, so it may be retried freely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from stillhash.errors import StillhashError, Unreachable

TASK_RETRIES = 5  # of a task whose process or machine died
TASKS_PER_CORE = 2  # under way, for each core of the cluster

ProgressCallback = Callable[[int, int, int, float], None]  # parts done, parts, rows done, rows per second of this run


def remote_task(function: Callable[..., Any], returns: int = 1) -> Any:
    """Make a function a Ray task of one core, on any node."""
    return ray.remote(num_cpus=1, max_retries=TASK_RETRIES, num_returns=returns)(function)


def run_tasks(
    function: Callable[..., Any], shared: Any, arguments: Iterable[tuple[Any, ...]], max_tasks: int | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield the results of function(shared, *arguments[n]) as they come, each with its n.

    At most `max_tasks` are under way, or a few for each core that the cluster has at the time. When one fails
    permanently, the others are cancelled.
    """
    remote, queue = remote_task(function), enumerate(arguments)
    shared_ref = ray.put(shared)
    running: dict[Any, int] = {}
    try:
        while True:
            cores = int(ray.cluster_resources().get("CPU", 1))  # type: ignore[no-untyped-call]
            free = (max_tasks or TASKS_PER_CORE * max(1, cores)) - len(running)
            for _, (number, args) in zip(range(free), queue, strict=False):  # in this order: nothing is skipped
                running[remote.remote(shared_ref, *args)] = number
            if not running:
                return
            done, _ = ray.wait(list(running))
            for ref in done:
                yield running.pop(ref), get_result(ref)
    finally:
        cancel(running)


def get_result(ref: Any) -> Any:
    """Wait for the result of a task; raise its error as it would have been raised here."""
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
        raise Unreachable(f"a task failed after {TASK_RETRIES} retries: {cause}") from error


def cancel(refs: Iterable[Any]) -> None:
    """Cancel tasks that still run."""
    for ref in refs:
        with suppress(RayError):
            ray.cancel(ref)
