"""Long work of a collection, with progress: a snapshot, an export, a verification.

A task runs in the collection's thread for upkeep, one at a time, after those that were started before it. It reports
the share that is done; to cancel it, that report raises an error in its thread, so that it ends as work that fails
does, and leaves nothing behind. What has ended is listed for a while, with its result or its error.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from stillhash.collection import Collection
from stillhash.collection.storage.audit import current_actor
from stillhash.errors import Busy, Closed, NotFound, StillhashError, report_shortages
from stillhash.server.auth import Role
from stillhash.server.responses import Unexpected, to_error

MAX_UNFINISHED_TASKS = 8  # of a collection, that wait or run
MAX_ENDED_TASKS = 20  # of a collection, that are listed
ENDED_SECONDS = 24 * 3600.0  # that they are listed for

TaskState = Literal["waiting", "running", "done", "failed", "cancelled"]

log = logging.getLogger("stillhash.server")


class TaskCancelled(Exception):
    """Ends the work of a task that is cancelled: its report of progress raises this."""


@dataclass(eq=False)
class Task:
    """Work that waits, runs or has ended. Only its thread changes it once it runs; all others read it."""

    kind: str  # "snapshot", "export", "verify", "compact", or what else there is
    title: str  # for people
    role: Role  # that may see and cancel it
    who: str  # started it
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    created: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    state: TaskState = "waiting"
    share: float = 0.0  # that is done, from 0 to 1
    message: str = ""  # what it does now
    result: Any = None  # of one that is done
    error: StillhashError | None = None  # of one that has failed
    ended_at: float = 0.0  # by time.monotonic
    cancelling: bool = False

    @property
    def ended(self) -> bool:
        return self.state not in ("waiting", "running")

    def report(self, share: float, message: str | None = None) -> None:
        """Say how much is done, which never falls, and what is done now; TaskCancelled if the task is to end."""
        if self.cancelling:
            raise TaskCancelled
        self.share = max(self.share, min(1.0, float(share)))
        if message is not None:
            self.message = message


Report = Callable[..., None]  # Task.report
TaskWork = Callable[[Collection, Report], Any]


class TaskList:
    """The tasks of one collection; those that have ended are dropped after a while."""

    def __init__(self, collection: Collection, pool: ThreadPoolExecutor) -> None:
        self._collection, self._pool = collection, pool
        self._lock = threading.Lock()  # guards all that follows, and the state of tasks
        self._closed = False
        self._tasks: dict[str, Task] = {}
        self._futures: dict[str, Future[None]] = {}  # of tasks that have not ended

    def start(self, kind: str, title: str, work: TaskWork, role: Role = "admin") -> Task:
        """Start work, which gets the collection and `Task.report`; Busy if too many tasks wait already."""
        task = Task(kind, title, role, current_actor())
        with self._lock:
            if self._closed:
                raise Closed("tasks: the collection is being closed")
            if len(self._futures) >= MAX_UNFINISHED_TASKS:
                raise Busy(f"tasks: {len(self._futures)} are waiting or running. Cancel one, or try again later")
            run = partial(copy_context().run, self._run, task, work)  # the actor, for the audit log
            self._tasks[task.id], self._futures[task.id] = task, self._pool.submit(run)
            self._drop_ended()
        return task

    def list(self) -> list[Task]:
        """Return the tasks, the latest first."""
        with self._lock:
            self._drop_ended()
            return list(self._tasks.values())[::-1]

    def get(self, task_id: str) -> Task:
        with self._lock:
            task = self._tasks.get(task_id)
        if task is None:
            raise NotFound(f"No task {task_id[:40]!r}; those that have ended are listed for a day, and no more than 20")
        return task

    def cancel(self, task: Task) -> None:
        """Let a task end soon. One that has ended already stays as it is, and is no longer listed."""
        with self._lock:
            if task.ended:
                self._tasks.pop(task.id, None)
                return
            task.cancelling = True
            if self._futures[task.id].cancel():  # it has not started
                self._end(task, "cancelled")

    def close(self) -> None:
        """Cancel all tasks, and refuse others. The caller waits for the thread."""
        with self._lock:
            self._closed = True
            unfinished = [self._tasks[task_id] for task_id in self._futures]
        for task in unfinished:
            self.cancel(task)

    def _run(self, task: Task, work: TaskWork) -> None:
        """Run in the thread for upkeep. No error leaves this: it is the task's."""
        try:
            with self._lock:
                if task.ended:
                    return
                task.state = "running"
            task.report(0.0)
            result = report_shortages(work)(self._collection, task.report)
        except TaskCancelled:
            self._finish(task, "cancelled")
        except BaseException as raised:  # also a panic of an extension, which is no Exception
            task.error = to_error(raised, task.kind) if isinstance(raised, Exception) else Unexpected(repr(raised))
            if isinstance(task.error, Unexpected):
                log.exception("unexpected", exc_info=raised, extra={"fields": {"task": task.kind}})
            self._finish(task, "failed")
        else:
            task.result, task.share = result, 1.0
            self._finish(task, "done")

    def _finish(self, task: Task, state: TaskState) -> None:
        with self._lock:
            self._end(task, state)
            self._drop_ended()

    def _end(self, task: Task, state: TaskState) -> None:
        task.ended_at, task.state = time.monotonic(), state
        self._futures.pop(task.id, None)

    def _drop_ended(self) -> None:
        """Drop the earliest of those that have ended, where they are too many or too old."""
        ended = sorted((task for task in self._tasks.values() if task.ended), key=lambda task: task.ended_at)
        oldest = time.monotonic() - ENDED_SECONDS
        for number, task in enumerate(ended):
            if number < len(ended) - MAX_ENDED_TASKS or task.ended_at < oldest:
                del self._tasks[task.id]
