"""The thread of a front that has all its connections: it sends, receives, retries, and ends calls at their deadline.

Each target has a queue of its own: while a replica works, the searches that arrive wait for it together and then go as
one message, and a shard that is stuck delays only the calls that need it.
"""

import itertools
import threading
import time
from collections import deque

import zmq

from stillhash.cluster.calls import Call, Reply, Sent, ShardGroup, ShardTask, build_message
from stillhash.cluster.connections import Connection, ConnectionTable
from stillhash.cluster.endpoints import Endpoint, EndpointWatch
from stillhash.cluster.message_server import Wakeup
from stillhash.cluster.messages import Message, error_from_json, pack, unpack
from stillhash.cluster.requests import hits_from_message
from stillhash.cluster.storage import Storage
from stillhash.errors import Busy, Closed, InvalidInput, StillhashError, StoreFailed, Unreachable

MAX_MESSAGE_QUERIES = 32  # that go together: more would not cost a shard less for each, and leave replicas idle
HEDGE_SECONDS = 0.3  # without a reply, before the message is sent to another replica too
RESEND_SECONDS = 0.05  # before a call that a replica failed is sent again
LOST_SECONDS = 60.0  # after which a reply is not expected any more
TICK_SECONDS, IDLE_SECONDS = 0.02, 1.0  # between looks at deadlines and late replies, and where nothing is under way
GROUP_SHARDS = 16  # that a front sends messages to itself; with more, aggregators do
NOTICE = b""  # the name of a message whose reply no call waits for
RETRIED = (Unreachable, StoreFailed, Busy)  # errors that another replica may not have


class Dispatcher:
    """Takes calls from any thread (`submit`), and finishes each of them: with all replies, or at its deadline."""

    def __init__(self, storage: Storage) -> None:
        self._context = zmq.Context()
        self._wakeup, self._stopped, self._closed = Wakeup(), False, False
        self._new_calls: deque[Call] = deque()
        self._new_endpoints: list[Endpoint] | None = None
        self._queues: dict[ShardGroup, deque[ShardTask]] = {}
        self._delayed: list[tuple[float, ShardTask]] = []
        self._open: set[Call] = set()
        self._ids, self._next_tick = itertools.count(), 0.0
        self._poller = zmq.Poller()
        self._poller.register(self._wakeup.handle, zmq.POLLIN)
        self._table = ConnectionTable(self._context, self._poller)
        self._thread = threading.Thread(target=self._run, name="stillhash-dispatcher", daemon=True)
        self._thread.start()
        self._watch = EndpointWatch(storage, self._use_endpoints)

    def submit(self, call: Call) -> None:
        """Begin a call. Its replies arrive in its own fields."""
        self._new_calls.append(call)
        if self._stopped:  # looked at after the call was added, so that it is either finished or refused
            raise Closed("the index is closed")
        self._wakeup.wake()

    def connections(self) -> list[Connection]:
        """Return all connections, whether they are up or not."""
        return self._table.all()

    def close(self) -> None:
        """Close all connections; calls under way fail."""
        if not self._closed:
            self._closed = True
            self._watch.stop()
            self._stopped = True
            self._wakeup.wake()
            self._thread.join()
            self._context.term()
            self._wakeup.close()

    def _use_endpoints(self, endpoints: list[Endpoint]) -> None:
        self._new_endpoints = endpoints
        self._wakeup.wake()

    # What follows runs in the thread of the dispatcher.

    def _run(self) -> None:
        reason = Closed("the index is closed")
        try:
            while not self._stopped:
                self._take_turn()
        except BaseException:
            reason = Closed("the thread that sends calls to the shards failed; open the index again")
            raise
        finally:
            self._stopped = True
            for call in [*self._open, *self._new_calls]:
                call.error, call.refused = reason, True
                call.finish()
            for connection in self._table.all():
                connection.close()

    def _take_turn(self) -> None:
        """Wait for something to happen, and deal with it."""
        events = dict(self._poller.poll(round(1000 * (TICK_SECONDS if self._open else IDLE_SECONDS))))
        self._wakeup.clear()
        self._connect()
        for connection in self._table.all():
            if connection.monitor in events and connection.read_events():
                self._lose(connection)
            if connection.socket in events:
                self._receive(connection)
        self._accept()
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + TICK_SECONDS
            self._check_time(now)
        for target in [target for target, queue in self._queues.items() if queue]:
            self._send(target, now)

    def _connect(self) -> None:
        """Connect to the latest endpoints; what those that are gone had goes to others."""
        endpoints, self._new_endpoints = self._new_endpoints, None
        if endpoints is not None:
            for connection in self._table.update(endpoints):
                self._retry(connection)

    def _accept(self) -> None:
        """Queue the calls that came in: for each shard, or for groups of shards if there are many."""
        while self._new_calls:
            call = self._new_calls.popleft()
            if call.kind == "update":
                self._notify_all(call)
                continue
            self._open.add(call)
            shards = sorted(call.rows)
            size = GROUP_SHARDS if call.grouped and len(shards) > GROUP_SHARDS else 1
            for start in range(0, len(shards), size):
                self._queue(ShardTask(call, tuple(shards[start : start + size])))

    def _notify_all(self, call: Call) -> None:
        header = {"call": "update", "number": call.number, "seconds": LOST_SECONDS}
        for shard in call.rows:
            connections = self._table.alive((shard,))
            for connection in connections:
                connection.send(NOTICE, pack({**header, "to": connection.endpoint.name}))
            if not connections:
                self._watch.hurry()

    def _queue(self, task: ShardTask) -> None:
        self._queues.setdefault(task.target, deque()).append(task)

    def _send(self, target: ShardGroup, now: float) -> None:
        """Send as much of a queue as the replicas of its target take."""
        queue = self._queues[target]
        while queue:
            connection = self._table.choose(target, now)
            if connection is None:
                if not self._table.alive(target):
                    self._watch.hurry()
                    if len(target) > 1:
                        self._split(queue)
                return
            tasks = self._take(queue)
            if tasks and not self._send_message(connection, tasks, now):
                queue.extendleft(reversed(tasks))
                return  # the next turn knows more of the connection

    def _split(self, queue: deque[ShardTask]) -> None:
        """Send to the shards of a group one by one, since no aggregator is left."""
        while queue:
            call, target = queue.popleft()
            for shard in target:
                if shard in call.waiting:
                    self._queue(ShardTask(call, (shard,)))

    def _take(self, queue: deque[ShardTask]) -> list[ShardTask]:
        """Take the tasks that go as one message: searches that join each other, or one task of another kind."""
        tasks: list[ShardTask] = []
        queries = 0
        while queue and queries < MAX_MESSAGE_QUERIES:
            task = queue[0]
            if task.open:
                if tasks and not tasks[0].call.joins(task.call):
                    break
                tasks.append(task)
                queries += 1 if task.call.search is None else len(task.call.search.weights)
            queue.popleft()
        return tasks

    def _send_message(self, connection: Connection, tasks: list[ShardTask], now: float) -> bool:
        """Send tasks as one message; whether the connection took it."""
        header, arrays, groups = build_message(tasks, now)
        header["to"] = connection.endpoint.name
        name = next(self._ids).to_bytes(8, "little")
        if not connection.send(name, pack(header, arrays)):
            connection.suspect()
            return False
        connection.sent[name] = Sent(tasks, groups)
        connection.turns += 1
        return True

    def _receive(self, connection: Connection) -> None:
        """Take all replies that wait."""
        while True:
            try:
                name, *frames = connection.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            sent = connection.sent.pop(bytes(name), None)
            if sent is None and bytes(name) != NOTICE:
                continue
            try:
                reply = unpack([frame.buffer for frame in frames])
                connection.number = max(connection.number, int(reply.header.get("latest", -1)))
                if sent is not None:
                    self._take_reply(connection, sent, reply)
            except (InvalidInput, LookupError, TypeError, ValueError) as error:
                if sent is not None:
                    self._fail(connection, sent, Unreachable(f"{connection.endpoint.name}: {error}"))

    def _take_reply(self, connection: Connection, sent: Sent, reply: Message) -> None:
        header, arrays = reply
        if "error" in header:
            self._fail(connection, sent, error_from_json(header["error"]))
            return
        connection.suspect_until = 0.0
        if header.get("stale"):
            for task in sent.tasks:
                if task.open:
                    task.call.stale = True
                    self._close_call(task.call)
            return
        hits = sent.split(hits_from_message(header["counts"], arrays) if "counts" in header else [])
        missing = set(header.get("missing", ()))
        for task, own in zip(sent.tasks, hits, strict=True):
            call, target = task
            answered = set(target) - missing
            if not task.open or not answered <= call.waiting:
                continue  # another replica was faster
            call.replies.append(Reply(target, header, arrays, own))
            call.waiting -= answered
            for shard in missing:  # an aggregator did not reach it
                self._queue(ShardTask(call, (shard,)))
            if not call.waiting:
                self._close_call(call)

    def _close_call(self, call: Call) -> None:
        self._open.discard(call)
        call.finish()

    def _fail(self, connection: Connection, sent: Sent, error: StillhashError) -> None:
        """Send to another replica, or to the same one again later; an error of the request itself ends the call."""
        if isinstance(error, RETRIED):
            connection.suspect()
        for task in sent.tasks:
            if not task.open:  # the caller has its answer, or gave up
                continue
            task.call.error = error
            if isinstance(error, RETRIED):
                self._delayed.append((time.monotonic() + RESEND_SECONDS, task))
            else:
                task.call.refused = True
                self._close_call(task.call)

    def _lose(self, connection: Connection) -> None:
        """Send what a lost replica had to others, and look for its successor."""
        connection.suspect()
        self._retry(connection)
        self._watch.hurry()

    def _retry(self, connection: Connection) -> None:
        for sent in connection.sent.values():
            for task in sent.tasks:
                if task.open:
                    self._queues.setdefault(task.target, deque()).appendleft(task)
        connection.sent.clear()

    def _check_time(self, now: float) -> None:
        """End calls whose time is up, send late messages to others too, and queue what was delayed."""
        due = [task for at, task in self._delayed if at <= now]
        self._delayed = [(at, task) for at, task in self._delayed if at > now]
        for task in due:
            self._queue(task)
        for target, queue in list(self._queues.items()):  # a shard that is away for long collects no ended calls
            self._queues[target] = deque(task for task in queue if task.open)
        for connection in self._table.all():
            for name, sent in list(connection.sent.items()):
                if now - sent.at > LOST_SECONDS:
                    del connection.sent[name]
                elif now - sent.at > HEDGE_SECONDS and not sent.hedged:
                    self._hedge(connection, sent)
        for call in list(self._open):
            self._table.note_down(call.waiting, now)
            if now >= call.until or (call.partial and self._table.are_down(call.waiting, now)):
                self._close_call(call)

    def _hedge(self, connection: Connection, sent: Sent) -> None:
        """Send a late message to another replica too, if there is one."""
        connection.suspect()
        if self._table.others(connection):
            sent.hedged = True
            for task in sent.tasks:
                if task.open:
                    self._queue(task)
