"""What a key may do: its role and its collections.

Each role includes the ones before it. Without keys everyone may do everything, so a server without keys listens on
localhost only.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from stillhash.errors import Forbidden

Role = Literal["read", "feedback", "write", "admin"]
ROLES: tuple[Role, ...] = ("read", "feedback", "write", "admin")  # each includes the ones before it
ANONYMOUS_NAME = "anonymous"


@dataclass(frozen=True)
class Key:
    """A key as the server stores it: a hash, never the key itself."""

    id: str
    name: str
    role: Role
    collections: frozenset[str] | None = None  # None is all
    salt: bytes = b""
    digest: bytes = b""
    created: str = ""

    def has_role(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    def check_role(self, role: Role) -> None:
        """Raise Forbidden unless the key has this role, or one that includes it."""
        if not self.has_role(role):
            raise Forbidden(f"role: expected a key of the role {role}, got one of the role {self.role}")

    def sees(self, collection: str) -> bool:
        return self.collections is None or collection in self.collections

    def visible(self, collections: Iterable[str]) -> list[str]:
        """Return those of the collections that the key has."""
        return [name for name in collections if self.sees(name)]


ANONYMOUS = Key("", ANONYMOUS_NAME, "admin")  # everyone, on a server without keys


def is_loopback(host: str) -> bool:
    """Return whether an address is this machine's own, which no other machine can reach."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
