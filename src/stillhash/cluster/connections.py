"""Connections of a front to the replicas of all shards, and what is known of their health.

A process that ends, or a node that is silent for a second, disconnects: its requests fail at once and go elsewhere.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

from stillhash.cluster.message_server import HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS, MAX_MESSAGE_BYTES
from stillhash.cluster.storage import Storage
from stillhash.errors import StillhashError

ENDPOINTS = "endpoints"  # a folder of the storage: where replicas listen
REFRESH_SECONDS, MIN_REFRESH_SECONDS = 2.0, 0.1  # between two looks at the endpoints, and after a connection was lost
RECONNECT_MS, MAX_RECONNECT_MS = 20, 500
SUSPECT_SECONDS = 1.0  # that a replica which failed or was late is asked only if no other can be


class Endpoint(NamedTuple):
    """Where a replica of a shard, or an aggregator, listens."""

    name: str
    kind: str  # "shard" or "aggregator"
    shard: int | None
    address: str
    pid: int
    node: str  # of Ray

    def to_json(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Endpoint":
        fields = json.loads(data)
        return cls(**{name: fields[name] for name in cls._fields})

    @property
    def file(self) -> str:
        """The name of its file on the storage."""
        return f"{ENDPOINTS}/{self.name}.json"


def read_endpoints(storage: Storage) -> list[Endpoint]:
    """Read where all replicas listen; files that cannot be read, such as those removed meanwhile, are left out."""
    endpoints = []
    for name in storage.list(ENDPOINTS):
        try:
            endpoints.append(Endpoint.from_json(storage.read(name)))
        except (StillhashError, ValueError, KeyError, TypeError):
            continue
    return endpoints


class Connection:
    """A connection to one replica, the requests that it has not answered, and whether to prefer others."""

    def __init__(self, context: Any, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.connected = False
        self.sent: dict[bytes, Any] = {}  # requests under way, by their id
        self.suspect_until = 0.0
        self.asked = 0  # requests in all, so that replicas take turns
        self.socket: Any = context.socket(zmq.DEALER)
        options = {
            zmq.LINGER: 0,
            zmq.IMMEDIATE: 1,
            zmq.MAXMSGSIZE: MAX_MESSAGE_BYTES,
            zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
            zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS,
            zmq.RECONNECT_IVL: RECONNECT_MS,
            zmq.RECONNECT_IVL_MAX: MAX_RECONNECT_MS,
        }
        for option, value in options.items():
            self.socket.setsockopt(option, value)
        self.monitor: Any = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self.socket.connect(endpoint.address)

    def read_events(self) -> bool:
        """Take what happened to the connection; return whether it was lost meanwhile."""
        lost = False
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)["event"]
            lost = lost or event == zmq.EVENT_DISCONNECTED
            self.connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        return lost

    def send(self, name: bytes, frames: list[Any]) -> bool:
        """Send a message; False if the connection takes none now, since it is lost and that is not known yet."""
        try:
            self.socket.send_multipart([name, *frames], zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        return True

    def suspect(self) -> None:
        """Prefer other replicas for a while."""
        self.suspect_until = time.monotonic() + SUSPECT_SECONDS

    def preference(self, now: float) -> tuple[bool, int, int]:
        """Order connections: those that answered, with the fewest requests under way, in turn."""
        return now < self.suspect_until, len(self.sent), self.asked

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)


class EndpointWatch:
    """Reads the endpoints on the storage again and again in a thread, and passes them on."""

    def __init__(self, storage: Storage, use: Callable[[list[Endpoint]], None]) -> None:
        self._storage, self._use = storage, use
        self._stopped, self._hurry = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="stillhash-endpoints", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Look at the endpoints soon."""
        self._hurry.set()

    def stop(self) -> None:
        self._stopped.set()
        self._hurry.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._hurry.clear()
            with suppress(StillhashError):  # the storage is away; known replicas go on answering
                self._use(read_endpoints(self._storage))
            if not self._stopped.wait(MIN_REFRESH_SECONDS):
                self._hurry.wait(REFRESH_SECONDS)


def group_by_shard(connections: Iterable[Connection]) -> dict[int | None, list[Connection]]:
    """Return the connections of each shard; those of aggregators under None."""
    groups: dict[int | None, list[Connection]] = {}
    for connection in connections:
        groups.setdefault(connection.endpoint.shard, []).append(connection)
    return groups
