"""The parts of a discrete-event model: a clock with a heap of events, nodes whose cores are shared, processes.

A node shares its cores fairly between the threads that run on it (processor sharing): with more threads than cores,
each gets the same part of a core. A process runs one task at a time, in order of arrival, as Python does under its
global lock. Ties in time are resolved by the order in which events were added, so a model is deterministic.
"""

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from stillhash.errors import InvalidInput

SimAction = Callable[..., None]
MAX_EVENTS = 50_000_000  # of one simulation: some minutes
SimWork = float | Callable[[], float]  # core-seconds; a function is called when the task starts


class SimClock:
    """A heap of events: actions that run at a simulated time, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[tuple[float, int, SimAction, tuple[Any, ...]]] = []
        self.order = count()
        self.most_events = MAX_EVENTS

    def at(self, time: float, action: SimAction, *args: Any) -> None:
        """Run the action at this time."""
        heapq.heappush(self.events, (time, next(self.order), action, args))

    def after(self, seconds: float, action: SimAction, *args: Any) -> None:
        """Run the action after so many simulated seconds."""
        heapq.heappush(self.events, (self.now + seconds, next(self.order), action, args))

    def run(self, until: float) -> None:
        """Run all events up to this time; refuse to run without end, as clients do that are answered in no time."""
        while self.events and self.events[0][0] <= until:
            self.now, number, action, args = heapq.heappop(self.events)
            if number > self.most_events:
                raise InvalidInput(
                    f"scenario: expected at most {self.most_events:,} events, got more by {self.now:.3g} s"
                )
            action(*args)
        self.now = until


class SimNode:
    """Cores that are shared by the threads of all tasks on them.

    `progress` is the integral of the share of a core that one thread gets. A task of w core-seconds on t threads ends
    when progress has grown by w / t, whatever comes and goes meanwhile, so one heap orders all tasks.
    `background` is the mean number of threads of other programs that compete for the cores.
    """

    def __init__(self, clock: SimClock, cores: float, speed: float = 1.0, background: float = 0.0) -> None:
        self.clock, self.cores, self.speed, self.background = clock, cores, speed, background
        self.alive = True
        self.threads = 0  # of all running tasks
        self.progress = 0.0
        self.updated = 0.0
        self.busy = 0.0  # core-seconds
        self.tasks: list[tuple[float, int, int, SimAction, tuple[Any, ...]]] = []
        self.order = count()
        self.next_event = (-1, 0.0)  # the task that ends next, and the rate at which that was computed
        self.version = 0  # of the event for it; older ones are ignored

    @property
    def rate(self) -> float:
        """Return the share of a core that one thread gets now."""
        return self.speed * min(1.0, self.cores / max(1.0, self.threads + self.background))

    def run(self, work: float, threads: int, done: SimAction, *args: Any) -> None:
        """Run a task of so many core-seconds on so many threads, then the action; a lost node runs nothing."""
        if not self.alive:
            return
        self._advance()
        self.threads += threads
        heapq.heappush(self.tasks, (self.progress + work / threads, next(self.order), threads, done, args))
        self._schedule()

    def lose(self) -> None:
        """Lose the node and all that runs on it."""
        self._advance()
        self.alive, self.threads, self.tasks, self.next_event = False, 0, [], (-1, 0.0)
        self.version += 1

    def restart(self) -> None:
        """Start again, empty."""
        self._advance()
        self.alive = True

    def utilisation(self) -> float:
        """Return the share of all core-seconds until now that tasks used."""
        self._advance()
        return self.busy / (self.cores * self.clock.now) if self.clock.now else 0.0

    def _advance(self) -> None:
        elapsed = self.clock.now - self.updated
        if elapsed:
            self.progress += elapsed * self.rate
            self.busy += elapsed * self.threads * self.rate / self.speed
            self.updated = self.clock.now

    def _schedule(self) -> None:
        if not self.tasks:
            self.next_event = (-1, 0.0)
            return
        rate, (end, number, *_) = self.rate, self.tasks[0]
        if self.next_event == (number, rate):
            return  # the event on the heap is right
        self.version += 1
        self.next_event = (number, rate)
        self.clock.after(max(0.0, end - self.progress) / rate, self._finish, self.version)

    def _finish(self, version: int) -> None:
        if version != self.version:
            return
        self._advance()
        end, _, threads, done, args = heapq.heappop(self.tasks)
        self.progress = max(self.progress, end)  # rounding
        self.threads -= threads
        self._schedule()
        done(*args)


class SimProcess:
    """A server of one task at a time on a node, first come, first served."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.queue: deque[tuple[SimWork, SimAction, tuple[Any, ...]]] = deque()
        self.running = False
        self.started = 0.0
        self.occupied = 0.0  # seconds with a task

    def submit(self, work: SimWork, done: SimAction, *args: Any) -> None:
        """Queue a task, then the action; a lost node drops it."""
        if not self.node.alive:
            return
        self.queue.append((work, done, args))
        if not self.running:
            self._start()

    def lose(self) -> None:
        """Drop all tasks."""
        if self.running:
            self.occupied += self.node.clock.now - self.started
        self.queue.clear()
        self.running = False

    def utilisation(self) -> float:
        """Return the share of the time until now in which there was a task."""
        now = self.node.clock.now
        current = now - self.started if self.running else 0.0
        return (self.occupied + current) / now if now else 0.0

    def _start(self) -> None:
        work, done, args = self.queue.popleft()
        self.running, self.started = True, self.node.clock.now
        self.node.run(work() if callable(work) else work, 1, self._end, done, args)

    def _end(self, done: SimAction, args: tuple[Any, ...]) -> None:
        self.running = False
        self.occupied += self.node.clock.now - self.started
        if self.queue:
            self._start()
        done(*args)
