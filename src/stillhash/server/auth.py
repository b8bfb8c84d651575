"""Who may do what: keys, where they come from, and how often a client may ask.

A read key may search, a write key may do all. Without keys everybody may do all, which is why a server without keys
listens to this machine alone.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from stillhash.errors import Denied, Forbidden, InvalidInput, TooMany

LEAST = 16  # characters of a key
CLIENTS = 10_000  # that are remembered; whoever asked longest ago is forgotten first

Role = Literal["read", "write"]


class Keys(NamedTuple):
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    @property
    def wanted(self) -> bool:
        return bool(self.read or self.write)

    def check(self, key: str | None, role: Role) -> None:
        """Refuses a request for this role without a key that may."""
        if not self.wanted:
            return
        if key is None:
            raise Denied("this server wants a key: send 'Authorization: Bearer KEY'")
        writes, reads = _among(key, self.write), _among(key, self.read)
        if not (writes or reads):
            raise Denied("the key is unknown")
        if role == "write" and not writes:
            raise Forbidden("the key may read, not write")


def _among(key: str, keys: tuple[str, ...]) -> bool:
    """In the same time whichever it is, if any."""
    return sum([hmac.compare_digest(key.encode(), one.encode()) for one in keys]) > 0


def keys_from(file: Path | None, environment: Mapping[str, str] = os.environ) -> Keys:
    """Keys from a file with lines 'read KEY' or 'write KEY', and from STILLHASH_READ_KEYS and STILLHASH_WRITE_KEYS."""
    found: dict[str, list[str]] = {
        role: environment.get(f"STILLHASH_{role.upper()}_KEYS", "").replace(",", " ").split()
        for role in ("read", "write")
    }
    for number, line in _lines(file):
        role, *given = line.split()
        if role not in found or len(given) != 1:
            raise InvalidInput(f"{file}, line {number}: 'read KEY' or 'write KEY' is wanted")
        found[role] += given
    for key in found["read"] + found["write"]:
        if len(key) < LEAST or not key.isascii() or not key.isprintable():
            raise InvalidInput(f"a key has {len(key)} characters; at least {LEAST} of plain ASCII are wanted")
    return Keys(tuple(found["read"]), tuple(found["write"]))


def _lines(file: Path | None) -> list[tuple[int, str]]:
    """What is neither empty nor a comment, by its number."""
    if file is None:
        return []
    try:
        lines = enumerate(file.read_text().splitlines(), 1)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"keys is {str(file)!r}; it cannot be read: {error}") from None
    return [(number, line.strip()) for number, line in lines if line.strip() and not line.strip().startswith("#")]


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own, which no other machine can reach."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Rate:
    """At most so many requests a second for each client, with twice as many at once (a token bucket); 0 is no limit."""

    def __init__(self, per_second: float) -> None:
        self.per_second, self.most = per_second, max(1.0, 2 * per_second)
        self._left: dict[str, tuple[float, float]] = {}  # of each client: tokens, and when that was

    def take(self, client: str, now: float | None = None) -> None:
        if not self.per_second:
            return
        now = time.monotonic() if now is None else now
        tokens, then = self._left.pop(client, (self.most, now))
        tokens = min(self.most, tokens + (now - then) * self.per_second)
        self._left[client] = max(0.0, tokens - 1) if tokens >= 1 else tokens, now
        if len(self._left) > CLIENTS:
            del self._left[next(iter(self._left))]
        if tokens < 1:
            raise TooMany(f"more than {self.per_second:g} requests a second; wait a moment")
