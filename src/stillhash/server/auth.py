"""API keys: what each may do, and where they come from.

A read key may search, a write key may do everything. Without keys everyone may do everything, so a server without keys
listens on localhost only.
"""

import hmac
import ipaddress
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from stillhash.errors import Denied, Forbidden, InvalidInput

MIN_KEY_LENGTH = 16
KEY_COOKIE = "stillhash_key"  # of a browser that has signed in

log = logging.getLogger("stillhash.server")

Role = Literal["read", "write"]


class Keys(NamedTuple):
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        return bool(self.read or self.write)

    def check(self, key: str | None, role: Role) -> None:
        """Raise Denied or Forbidden unless the key has this role."""
        if not self.required:
            return
        if key is None:
            raise Denied("this server needs a key: send 'Authorization: Bearer KEY'")
        can_write, can_read = _contains(self.write, key), _contains(self.read, key)
        if not (can_write or can_read):
            raise Denied("unknown key")
        if role == "write" and not can_write:
            raise Forbidden("this key may read, not write")


def _contains(keys: tuple[str, ...], key: str) -> bool:
    """Compare with every key, so that the time does not depend on which one matches."""
    return sum([hmac.compare_digest(key.encode(), one.encode()) for one in keys]) > 0


def load_keys(file: Path | None, environment: Mapping[str, str] = os.environ) -> Keys:
    """Load keys from lines 'read KEY' and 'write KEY' of a file, and from STILLHASH_READ_KEYS, STILLHASH_WRITE_KEYS."""
    keys: dict[str, list[str]] = {
        role: environment.get(f"STILLHASH_{role.upper()}_KEYS", "").replace(",", " ").split()
        for role in ("read", "write")
    }
    try:
        lines = file.read_text().splitlines() if file is not None else []
        if file is not None and file.stat().st_mode & 0o077:
            log.warning("keys: %s can be read by others on this machine. Run: chmod 600 %s", file, file)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"keys: cannot read {str(file)!r}: {error}") from None
    for number, line in enumerate(lines, 1):
        role, *values = line.split() or ["#"]
        if role.startswith("#"):
            continue
        if role not in keys or len(values) != 1:
            raise InvalidInput(f"keys: {file}, line {number}: expected 'read KEY' or 'write KEY'")
        keys[role] += values
    for key in keys["read"] + keys["write"]:
        if len(key) < MIN_KEY_LENGTH or not key.isascii() or not key.isprintable():
            raise InvalidInput(f"keys: expected at least {MIN_KEY_LENGTH} ASCII characters, got {len(key)} characters")
    return Keys(tuple(keys["read"]), tuple(keys["write"]))


def is_loopback(host: str) -> bool:
    """Return whether an address is this machine's own, which no other machine can reach."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
