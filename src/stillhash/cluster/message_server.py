"""Serve messages on a port: one thread receives and replies, and others work on what takes long.

All messages that wait are taken at once, so that they can be answered together.
"""

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import zmq
from numpy.typing import NDArray

from stillhash.cluster.messages import Message, error_to_json, pack, unpack
from stillhash.errors import Busy, Unreachable

MAX_TAKEN = 1024  # messages that are answered together
MAX_MESSAGE_BYTES = 1 << 30
MAX_SECONDS = 3600.0  # that a message may wait
MAX_WAITING = 10_000  # calls that the threads for long work have not begun
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 250, 1000  # a peer that is silent for so long is given up
TICK_MS = 250


class Wakeup:
    """Wakes a thread that polls, from any other thread."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        for end in (self._receiver, self._sender):
            end.setblocking(False)
        self.handle = self._receiver.fileno()  # to poll

    def wake(self) -> None:
        with suppress(OSError):  # awake already, or closed
            self._sender.send(b"\0")

    def clear(self) -> None:
        with suppress(OSError):  # nothing is left to read
            while self._receiver.recv(4096):
                pass

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()


class Received:
    """A message that came in, and the address of its sender."""

    def __init__(self, sender: bytes, call_id: bytes, message: Message) -> None:
        self.sender, self.call_id, self.header, self.arrays = sender, call_id, message.header, message.arrays
        self.number = int(self.header.get("number", -1))  # of the commit that it is about
        self.until = time.monotonic() + min(max(0.0, float(self.header.get("seconds", 0.0))), MAX_SECONDS)

    @property
    def call(self) -> str:
        return str(self.header.get("call"))

    @property
    def expired(self) -> bool:
        return time.monotonic() > self.until


class MessageServer:
    """Binds a free port of this address, and passes what comes in to `answer`, which replies now or later.

    Every message gets a reply, also one that came too late, since its sender counts those under way. `name` is that of
    the endpoint. A message for another one is refused: its sender knows a port of a process that has ended.
    """

    def __init__(self, host: str, name: str, answer: Callable[[list[Received]], None], threads: int) -> None:
        self._name = name
        self._context = zmq.Context()
        self._router: Any = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._router.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        self._router.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        self.address = f"tcp://{host}:{self._router.bind_to_random_port(f'tcp://{host}')}"
        self._answer, self._replies, self._wakeup = answer, deque[list[Any]](), Wakeup()
        self._pool = ThreadPoolExecutor(threads, "stillhash-work")
        self._waiting = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stillhash-messages", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def reply(self, to: Received, header: dict[str, Any], arrays: Sequence[NDArray[Any]] = ()) -> None:
        """Send a reply, from any thread."""
        self._replies.append([to.sender, to.call_id, *pack(header, arrays)])
        if threading.current_thread() is not self._thread:
            self._wakeup.wake()

    def wake(self) -> None:
        """Let `answer` run, though nothing came in."""
        self._wakeup.wake()

    def refuse(self, to: Received, error: BaseException) -> None:
        """Reply with an error."""
        self.reply(to, {"error": error_to_json(error)})

    def refuse_expired(self, to: Received) -> None:
        """Reply that a message waited too long."""
        self.refuse(to, Unreachable(f"{self._name}: the time of the call was up before it began"))

    def work(self, received: Received, function: Callable[[Received], None]) -> None:
        """Run a function that takes long in another thread; it replies. What it raises is the reply."""
        if self._waiting >= MAX_WAITING:
            self.refuse(received, Busy(f"calls: expected at most {MAX_WAITING} that wait, got more"))
            return
        self._waiting += 1
        self._pool.submit(self._work, received, function)

    def _work(self, received: Received, function: Callable[[Received], None]) -> None:
        self._waiting -= 1
        try:
            if received.expired:
                self.refuse_expired(received)
            else:
                function(received)
        except BaseException as error:
            self.refuse(received, error)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._wakeup.handle, zmq.POLLIN)
        while not self._stopped.is_set():
            poller.poll(TICK_MS)
            self._wakeup.clear()
            received = self._receive()
            self._answer(received)
            while self._replies:
                with suppress(zmq.ZMQError):  # the sender is gone
                    self._router.send_multipart(self._replies.popleft(), zmq.NOBLOCK, copy=False)
        self._router.close()

    def _receive(self) -> list[Received]:
        """Return the messages that wait."""
        received = []
        for _ in range(MAX_TAKEN):
            try:
                sender, call_id, *frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            except ValueError:  # too few frames
                continue
            try:
                message = Received(bytes(sender), bytes(call_id), unpack([frame.buffer for frame in frames]))
                if message.header.get("to") != self._name:
                    raise Unreachable(f"expected {message.header.get('to')!r:.100} at {self.address}, got {self._name}")
                received.append(message)
            except (Unreachable, ValueError, TypeError, ArithmeticError) as error:
                self._replies.append([bytes(sender), bytes(call_id), *pack({"error": error_to_json(error)})])
        return received

    def stop(self) -> None:
        """Stop answering and free the port."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._wakeup.wake()
            if self._thread.is_alive():
                self._thread.join()
            else:
                self._router.close()
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._context.term()
            self._wakeup.close()
