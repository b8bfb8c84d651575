"""Connections of a front to the replicas of all shards, and what is known of their health.

A process that ends, or a node that sends nothing for a second, disconnects: its requests go to others at once.
"""

import time
from collections.abc import Iterable
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from stillhash.cluster.calls import ShardGroup
from stillhash.cluster.endpoints import Endpoint
from stillhash.cluster.message_server import HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS, MAX_MESSAGE_BYTES

MAX_IN_FLIGHT = 2  # messages that a replica has at a time: one that it works on, one that waits there
MIN_RECONNECT_MS, MAX_RECONNECT_MS = 20, 500
SUSPECT_SECONDS = 1.0  # for which a replica that failed or was late is used only if no other can be
DOWN_SECONDS = 1.0  # without any replica, after which a partial answer does not wait for a shard


class Connection:
    """A connection to one replica, the requests that it has not answered, and whether to prefer others."""

    def __init__(self, context: Any, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.connected = False
        self.number = -1  # the latest commit that the replica reported to have loaded
        self.sent: dict[bytes, Any] = {}  # requests under way, by their id
        self.suspect_until = 0.0
        self.turns = 0  # requests in all, so that replicas take turns
        self.socket: Any = context.socket(zmq.DEALER)
        options = {
            zmq.LINGER: 0,
            zmq.IMMEDIATE: 1,
            zmq.MAXMSGSIZE: MAX_MESSAGE_BYTES,
            zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
            zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS,
            zmq.RECONNECT_IVL: MIN_RECONNECT_MS,
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
            self.number = -1  # it may be another process from now on
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
        return now < self.suspect_until, len(self.sent), self.turns

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)


class ConnectionTable:
    """All connections of a front, by the shard that they lead to."""

    def __init__(self, context: Any, poller: Any) -> None:
        self._context, self._poller = context, poller
        self._connections: dict[Endpoint, Connection] = {}
        self._by_shard: dict[int | None, list[Connection]] = {}  # those of aggregators under None
        self._down_since: dict[int, float] = {}  # shards without a replica

    def all(self) -> list[Connection]:
        """Return all connections, whether they are up or not."""
        return list(self._connections.values())

    def update(self, endpoints: Iterable[Endpoint]) -> list[Connection]:
        """Connect to new endpoints, and close the connections to those that are gone, which are returned."""
        current = set(endpoints)
        gone = [self._connections.pop(endpoint) for endpoint in self._connections.keys() - current]
        for connection in gone:
            self._poller.unregister(connection.socket)
            self._poller.unregister(connection.monitor)
            connection.close()
        for endpoint in current - self._connections.keys():
            connection = self._connections[endpoint] = Connection(self._context, endpoint)
            self._poller.register(connection.socket, zmq.POLLIN)
            self._poller.register(connection.monitor, zmq.POLLIN)
        self._by_shard = {}
        for connection in self._connections.values():
            self._by_shard.setdefault(connection.endpoint.shard, []).append(connection)
        return gone

    def alive(self, group: ShardGroup) -> list[Connection]:
        """Return the connections that are up: of one shard or, for several, of aggregators."""
        connections = self._by_shard.get(group[0] if len(group) == 1 else None, ())
        return [connection for connection in connections if connection.connected]

    def others(self, connection: Connection) -> list[Connection]:
        """Return the connections that are up and can replace this one."""
        same = self._by_shard.get(connection.endpoint.shard, ())
        return [other for other in same if other.connected and other is not connection]

    def choose(self, group: ShardGroup, now: float) -> Connection | None:
        """Return the one to use; None if all replicas are busy or away. Busy ones are better than those that failed."""
        best = min(self.alive(group), key=lambda connection: connection.preference(now), default=None)
        return None if best is None or len(best.sent) >= MAX_IN_FLIGHT else best

    def are_down(self, shards: Iterable[int], now: float) -> bool:
        """Whether none of these shards has had a replica for a while."""
        return all(now - self._down_since.get(shard, now) > DOWN_SECONDS for shard in shards)

    def note_down(self, shards: Iterable[int], now: float) -> None:
        """Note since when shards have no replica."""
        for shard in shards:
            if self.alive((shard,)):
                self._down_since.pop(shard, None)
            else:
                self._down_since.setdefault(shard, now)
