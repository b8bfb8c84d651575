"""Limit how often each client may send requests."""

import time

from stillhash.errors import TooMany

MAX_CLIENTS = 10_000  # remembered; the least recently seen is forgotten first


class RateLimiter:
    """Token bucket per client: `per_second` requests a second with bursts of twice as many; 0 is no limit."""

    def __init__(self, per_second: float) -> None:
        self.per_second, self.burst = per_second, max(1.0, 2 * per_second)
        self._buckets: dict[str, tuple[float, float]] = {}  # client -> tokens, time of the last request

    def __len__(self) -> int:
        """Return the number of clients that are remembered."""
        return len(self._buckets)

    def take(self, client: str, now: float | None = None) -> None:
        """Take one token; TooMany if none is left."""
        if not self.per_second:
            return
        now = time.monotonic() if now is None else now
        tokens, last = self._buckets.pop(client, (self.burst, now))
        tokens = min(self.burst, tokens + (now - last) * self.per_second)
        self._buckets[client] = max(0.0, tokens - 1) if tokens >= 1 else tokens, now
        if len(self._buckets) > MAX_CLIENTS:
            del self._buckets[next(iter(self._buckets))]
        if tokens < 1:
            raise TooMany(f"rate limit: expected at most {self.per_second:g} requests a second. Try again in a moment")
