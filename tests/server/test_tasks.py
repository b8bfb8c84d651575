"""Long work of a server: progress, cancelling, errors, limits, and the end of the server meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import stillhash
from stillhash import Collection
from stillhash.collection.storage.audit import acting_as
from stillhash.errors import BadState, Busy, Closed, NotFound
from stillhash.server import Settings, tasks
from stillhash.server.tasks import MAX_ENDED_TASKS, MAX_UNFINISHED_TASKS, Report, Task, TaskList
from stillhash.server.write_queue import CollectionExecutor
from tests.collection.fixtures import copied
from tests.server.live_server import live_server
from tests.support.waiting import TIMEOUT, until


class Steps:
    """Work that reports each quarter, and waits for `go` before it ends. It cleans up whatever happens."""

    def __init__(self) -> None:
        self.started, self.go = threading.Event(), threading.Event()
        self.cleaned = False

    def __call__(self, collection: Collection, report: Report) -> int:
        self.started.set()
        try:
            for share in (0.25, 0.5):
                report(share, f"at {share:.0%}")
            while not self.go.wait(0.002):
                report(0.5)
            return len(collection)
        finally:
            self.cleaned = True


@pytest.fixture
def executor(template: Path, tmp_path: Path) -> Iterator[CollectionExecutor]:
    executor = CollectionExecutor("c", stillhash.open(copied(template, tmp_path / "c")), 2, TIMEOUT)
    yield executor
    executor.close()
    executor.collection.close()


def end_of(task: Task) -> str:
    until(lambda: task.ended)
    return task.state


def test_a_task_reports_and_returns(executor: CollectionExecutor) -> None:
    work = Steps()
    with acting_as("ann"):
        task = executor.tasks.start("count", "Count", work)
    assert work.started.wait(TIMEOUT)
    until(lambda: task.share == 0.5)
    assert (task.state, task.message, task.who, task.kind) == ("running", "at 50%", "ann", "count")
    work.go.set()
    assert end_of(task) == "done"
    assert (task.result, task.share, task.error) == (320, 1.0, None)
    assert executor.tasks.get(task.id) is task and executor.tasks.list() == [task]


def test_the_audit_log_has_who_started_it(executor: CollectionExecutor) -> None:
    with acting_as("ann"):
        task = executor.tasks.start("delete", "Delete", lambda c, report: c.delete([1]))
    assert end_of(task) == "done"
    assert executor.collection.audit(limit=1)[0].who == "ann"


def test_one_at_a_time_in_order(executor: CollectionExecutor) -> None:
    first, second = Steps(), Steps()
    tasks_of_both = [executor.tasks.start("count", "Count", work) for work in (first, second)]
    assert first.started.wait(TIMEOUT) and not second.started.is_set()
    assert [task.state for task in executor.tasks.list()] == ["waiting", "running"]
    first.go.set()
    assert second.started.wait(TIMEOUT)
    second.go.set()
    assert [end_of(task) for task in tasks_of_both] == ["done", "done"]


def test_cancelling_ends_the_work(executor: CollectionExecutor) -> None:
    running, waiting = Steps(), Steps()
    task = executor.tasks.start("count", "Count", running)
    later = executor.tasks.start("count", "Count", waiting)
    assert running.started.wait(TIMEOUT)
    executor.tasks.cancel(later)
    assert later.state == "cancelled" and task.state == "running"
    executor.tasks.cancel(task)
    assert end_of(task) == "cancelled"
    assert running.cleaned and not waiting.started.is_set()
    assert task.result is None and task.error is None
    executor.tasks.cancel(task)  # has ended, so it is only dropped from the list
    assert executor.tasks.list() == [later] and end_of(task) == "cancelled"
    with pytest.raises(NotFound, match=r"^No task"):
        executor.tasks.get(task.id)


def test_the_share_never_falls_and_stays_within_0_and_1(executor: CollectionExecutor) -> None:
    seen = []

    def work(collection: Collection, report: Report) -> None:
        for share in (0.5, 0.25, 7.0):
            report(share)
            seen.append(task.share)

    is_set = threading.Event()
    executor.tasks.start("wait", "Wait", lambda c, report: is_set.wait(TIMEOUT))
    task = executor.tasks.start("count", "Count", work)
    is_set.set()
    assert end_of(task) == "done"
    assert seen == [0.5, 0.5, 1.0]


@pytest.mark.parametrize("raised", [BadState("file: expected sound blocks, got damage"), ZeroDivisionError("secret")])
def test_a_fault_is_the_error_of_its_task_only(executor: CollectionExecutor, raised: Exception) -> None:
    def work(collection: Collection, report: Report) -> None:
        raise raised

    task = executor.tasks.start("count", "Count", work)
    other = executor.tasks.start("count", "Count", lambda c, report: len(c))
    assert (end_of(task), end_of(other)) == ("failed", "done")
    assert task.error is not None and "secret" not in str(task.error)
    if isinstance(raised, BadState):
        assert task.error is raised
    else:
        assert type(task.error).__name__ == "Unexpected"


def test_memory_that_lacks_is_busy(executor: CollectionExecutor) -> None:
    def work(collection: Collection, report: Report) -> None:
        raise MemoryError

    task = executor.tasks.start("count", "Count", work)
    assert end_of(task) == "failed" and isinstance(task.error, Busy)


def test_too_many_are_busy_until_one_ends(executor: CollectionExecutor) -> None:
    work = [Steps() for _ in range(MAX_UNFINISHED_TASKS)]
    started = [executor.tasks.start("count", "Count", some) for some in work]
    with pytest.raises(Busy, match=r"^tasks"):
        executor.tasks.start("count", "Count", Steps())
    assert len(executor.tasks.list()) == MAX_UNFINISHED_TASKS
    executor.tasks.cancel(started[-1])
    late = Steps()
    started.append(executor.tasks.start("count", "Count", late))
    for some in (*work, late):
        some.go.set()
    assert [end_of(task) for task in started] == ["done"] * 7 + ["cancelled", "done"]


def test_ended_tasks_are_listed_for_a_while(executor: CollectionExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    for _ in range(MAX_ENDED_TASKS + 5):
        started.append(executor.tasks.start("count", "Count", lambda c, report: len(c)))
        assert end_of(started[-1]) == "done"
    assert executor.tasks.list() == started[:4:-1]
    monkeypatch.setattr(tasks, "ENDED_SECONDS", -1.0)
    assert executor.tasks.list() == []


def test_a_server_stops_while_tasks_run_and_wait(template: Path, tmp_path: Path) -> None:
    collection = stillhash.open(copied(template, tmp_path / "c"))
    running, waiting = Steps(), Steps()
    with live_server({"c": collection}, Settings()) as server:
        listed: TaskList = server.executor().tasks
        started = [listed.start("count", "Count", work) for work in (running, waiting)]
        assert running.started.wait(TIMEOUT)
    assert [task.state for task in started] == ["cancelled", "cancelled"]
    assert running.cleaned and not waiting.started.is_set()
    with pytest.raises(Closed):
        listed.start("count", "Count", Steps())
