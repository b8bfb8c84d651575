"""A budget for the memory of all requests in flight: their bodies, and the answers they wait for.

What a request holds is reserved as it arrives, and released when its answer is sent. Small requests are not counted,
so that they are served while large ones are refused; the cap on connections bounds them.
"""

from collections import Counter

from stillhash.errors import Busy

SMALL_BYTES = 1 << 18  # that a request may hold uncounted
BODY_COPIES = 3  # a body as it came, as text, and as numbers
CLIENT_SHARE = 2  # one client may hold 1/2 of the budget


class MemoryBudget:
    """Bytes that requests hold, in all and by client. Only the event loop uses it."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._by_client: Counter[str] = Counter()

    def check(self, client: str, size: int) -> None:
        """Raise Busy if so many bytes more of a client are beyond the budget, or beyond its share."""
        if self.used + size > self.limit or self._by_client[client] + size > self.limit // CLIENT_SHARE:
            held = f"requests in flight hold {self.used >> 20} of {self.limit >> 20} MiB"
            raise Busy(f"memory: {held}, and this one needs {size >> 20} more. Try again in a moment, or request less")

    def count(self, client: str, size: int) -> None:
        """Count more bytes of a client; fewer, if negative."""
        self.used += size
        self._by_client[client] += size
        if not self._by_client[client]:
            del self._by_client[client]


class RequestMemory:
    """What one request holds of the budget."""

    def __init__(self, budget: MemoryBudget, client: str) -> None:
        self.budget, self.client = budget, client
        self.held = self._counted = 0

    def hold(self, size: int) -> None:
        """Hold more bytes; Busy if they are beyond the budget."""
        if self.held + size > SMALL_BYTES:
            self.budget.check(self.client, self.held + size - self._counted)
        self._hold(self.held + size)

    def hold_answer(self, size: int) -> None:
        """Hold an answer of this size, which is there already and is not refused."""
        self._hold(max(self.held, size))

    def release(self) -> None:
        """Give everything back."""
        self._hold(0)

    def _hold(self, size: int) -> None:
        self.held, counted = size, size if size > SMALL_BYTES else 0
        if counted != self._counted:
            self.budget.count(self.client, counted - self._counted)
            self._counted = counted
