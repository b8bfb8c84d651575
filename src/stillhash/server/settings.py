"""How a server is set up."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stillhash.errors import InvalidInput
from stillhash.server.auth import Keys, is_loopback


@dataclass(frozen=True)
class Settings:
    host: str = "127.0.0.1"
    port: int = 8000  # 0 takes one that is free
    keys: Keys = field(default_factory=Keys)
    rate: float = 0.0  # requests a second of one client; 0 is no limit
    queue: int = 64  # writes that may wait
    timeout: float = 30.0  # seconds until a request that has not begun to write is refused
    most_bytes: int = 64 << 20  # of a request
    most_rows: int = 10_000  # of a request, queries or items
    most_hits: int = 10_000  # of a query
    most_hits_in_all: int = 200_000  # of a request
    images: Path | None = None  # the folder that thumbnails' paths start from; none are read from disk without it
    snapshots: Path | None = None  # the folder that snapshots go to; there are none without it
    most_image_bytes: int = 32 << 20  # of an image that is uploaded

    def check(self) -> None:
        """Refuses to listen to other machines without keys."""
        if not is_loopback(self.host) and not self.keys.wanted:
            raise InvalidInput(
                f"host is {self.host!r}, which other machines can reach; that wants keys: --keys FILE with lines "
                "'read KEY' and 'write KEY', or STILLHASH_READ_KEYS and STILLHASH_WRITE_KEYS"
            )
