"""Clients that misuse a server: slow ones, ones that do not read, oversized requests, wrong keys and heavy filters.

Each kind runs in threads of one process, for a set time, and counts what came of it. They pace themselves:
what is measured is the server, not how fast this machine can send.
"""

import json
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import urllib3

from stillhash.errors import Unsupported

SLOW_CONNECTIONS, UNREAD_CONNECTIONS = 200, 20
WRONG_KEY_THREADS, WRONG_KEY_INTERVAL = 4, 0.04  # seconds from request to request
HEAVY_THREADS = 4  # each sends its next filter when the one before is answered
OVERSIZED_THREADS, OVERSIZED_INTERVAL = 2, 0.5
HEAVY_CONDITIONS = 240
TIMEOUT = 60.0

Outcomes = Counter[str]  # what came of requests or connections -> how often


class Target(NamedTuple):
    """What hostile clients know: the server, the path of a collection, its columns, and keys."""

    host: str
    port: int
    path: str
    dim: int
    read_key: str

    def head(self, verb: str, length: int) -> bytes:
        """Return the first lines of a request."""
        return (
            f"POST {self.path}/{verb} HTTP/1.1\r\nhost: {self.host}\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {self.read_key}\r\ncontent-length: {length}\r\n\r\n"
        ).encode()


def slow(target: Target, until: float, outcomes: Outcomes) -> None:
    """Hold many connections, with half a request each, and send a byte every second."""
    connections: dict[socket.socket, bytes] = {}
    parts = [b"POST /v1/health HTTP/1.1\r\nhost: x\r\nx-slow: ", target.head("search", 100_000)]
    opened = 0
    while time.monotonic() < until:
        while len(connections) < SLOW_CONNECTIONS:
            try:
                connection = socket.create_connection((target.host, target.port), TIMEOUT)
            except OSError:
                outcomes["not accepted"] += 1
                break
            connection.setblocking(False)
            connections[connection] = parts[opened % 2]
            opened += 1
        for connection, part in list(connections.items()):
            try:
                connection.send(part)
                connections[connection] = b" "
                with suppress(BlockingIOError):
                    reply = connection.recv(1 << 16)
                    outcomes[reply[9:12].decode() if reply else "closed"] += 1
                    connections.pop(connection)
                    connection.close()
            except BlockingIOError:
                pass
            except OSError:
                outcomes["closed"] += 1
                connections.pop(connection, None)
                connection.close()
        time.sleep(1.0)
    for connection in connections:
        connection.close()


def unread(target: Target, until: float, outcomes: Outcomes) -> None:
    """Request large answers, and do not read them."""
    body = json.dumps({"query": [0.1] * target.dim, "k": 10_000}).encode()
    connections: list[socket.socket] = []
    while time.monotonic() < until:
        connections = [each for each in connections if not _is_closed(each, outcomes)]
        while len(connections) < UNREAD_CONNECTIONS:
            try:
                connection = socket.create_connection((target.host, target.port), TIMEOUT)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.sendall(target.head("search", len(body)) + body)
                connections.append(connection)
            except OSError:
                outcomes["not accepted"] += 1
                break
        time.sleep(1.0)
    for connection in connections:
        connection.close()


def _is_closed(connection: socket.socket, outcomes: Outcomes) -> bool:
    """Return whether the server has dropped a connection, without reading from it."""
    if sys.platform == "win32":
        raise Unsupported("poll: expected Linux or macOS, got Windows")
    poll = select.poll()
    poll.register(connection, 0)  # errors and the end are reported always
    if poll.poll(0):
        outcomes["closed"] += 1
        connection.close()
        return True
    return False


def wrong_key(target: Target, until: float, outcomes: Outcomes) -> None:
    body = json.dumps({"query": [0.1] * target.dim}).encode()
    _repeat(target, until, outcomes, [("search", body)], WRONG_KEY_INTERVAL, key="x" * 32)


def oversized(target: Target, until: float, outcomes: Outcomes) -> None:
    """Send bodies beyond the limits, or barely within, and request answers beyond the limits."""
    query = [0.123456] * target.dim
    bodies = [
        ("search", b" " * (65 << 20)),
        ("search", json.dumps({"query": [query] * 2000, "k": 2}).encode()),
        ("search", json.dumps({"query": [0.123456] * 1_000_000}).encode()),
        ("search", json.dumps({"query": [query] * 20, "k": 4000, "explain": True}).encode()),
        ("search", json.dumps({"query": query, "k": 10**9}).encode()),
        ("get", json.dumps({"ids": [0] * 10_001}).encode()),
        ("search", b'{"query": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"),
    ]
    _repeat(target, until, outcomes, bodies, OVERSIZED_INTERVAL)


def heavy_filter(target: Target, until: float, outcomes: Outcomes) -> None:
    """Search with as many conditions as are accepted, by columns, and with ones that only SQL can answer."""
    bodies = [
        ("search", json.dumps({"query": [0.1] * target.dim, "where": {"$or": conditions}}).encode())
        for field in ("n", "m")
        for conditions in [[{field: {"$gt": 10**9 + number}} for number in range(HEAVY_CONDITIONS)]]
    ]
    _repeat(target, until, outcomes, bodies, 0.0)


def _repeat(
    target: Target,
    until: float,
    outcomes: Outcomes,
    bodies: list[tuple[str, bytes]],
    interval: float,
    key: str | None = None,
) -> None:
    """Send these bodies in turn, and count the status of each reply."""
    headers = {"authorization": f"Bearer {key or target.read_key}", "content-type": "application/json"}
    with urllib3.PoolManager(timeout=TIMEOUT, retries=False) as pool:
        turn = 0
        while (began := time.monotonic()) < until:
            verb, body = bodies[turn % len(bodies)]
            address = f"http://{target.host}:{target.port}{target.path}/{verb}"
            try:
                outcomes[str(pool.request("POST", address, body=body, headers=headers).status)] += 1
            except urllib3.exceptions.HTTPError:
                outcomes["closed"] += 1
            turn += 1
            time.sleep(max(0.0, began + interval - time.monotonic()))


KINDS: dict[str, tuple[int, Callable[[Target, float, Outcomes], None]]] = {  # with the number of threads
    "slow": (1, slow),
    "unread": (1, unread),
    "wrong key": (WRONG_KEY_THREADS, wrong_key),
    "oversized": (OVERSIZED_THREADS, oversized),
    "heavy filter": (HEAVY_THREADS, heavy_filter),
}


def attack(kind: str, target: Target, seconds: float) -> Outcomes:
    """Run the clients of one kind for so long."""
    count, run = KINDS[kind]
    outcomes: list[Outcomes] = [Counter() for _ in range(count)]
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=run, args=(target, until, each)) for each in outcomes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(outcomes, Counter())
