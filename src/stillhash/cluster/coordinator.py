"""Send a call to one replica of every shard at once, to others where one fails or is late, until one deadline.

With many shards, calls go to aggregators, each of which searches a group of shards and merges their hits.
"""

import time
from collections.abc import Iterable, Mapping, Sequence

from stillhash.cluster.calls import Call
from stillhash.cluster.dispatcher import Dispatcher
from stillhash.cluster.endpoints import Endpoint
from stillhash.cluster.messages import Message
from stillhash.cluster.requests import SearchRequest
from stillhash.cluster.storage import Storage


class Coordinator:
    """Calls to the shards of one storage. Any thread may call, and waits for the end of its call."""

    def __init__(self, storage: Storage) -> None:
        self._dispatcher = Dispatcher(storage)

    def search(
        self, request: SearchRequest, number: int, rows: Mapping[int, int], until: float, *, partial: bool = False
    ) -> Call:
        """Search all shards with rows; the call holds the hits of each."""
        call = Call("search", number, {shard: n for shard, n in rows.items() if n}, until, partial=partial)
        call.search = request
        return self._finish(call)

    def search_all(
        self, requests: Sequence[SearchRequest], number: int, rows: Mapping[int, int], until: float
    ) -> list[Call]:
        """Search these shards for several requests at once, as an aggregator does; what is missing is left out."""
        calls = [Call("search", number, rows, until, partial=True, grouped=False) for _ in requests]
        for call, request in zip(calls, requests, strict=True):
            call.search = request
            self._dispatcher.submit(call)
        for call in calls:
            call.wait()
        return calls

    def ask(
        self, kind: str, message: Message, number: int, rows: Mapping[int, int], until: float, *, partial: bool = False
    ) -> Call:
        """Send the same message to these shards, and return at once; after `call.wait` the call holds their replies."""
        call = Call(kind, number, rows, until, partial=partial, grouped=False)
        call.message = message
        if call.waiting:
            self._dispatcher.submit(call)
        else:
            call.finish()
        return call

    def notify(self, number: int, shards: Sequence[int]) -> None:
        """Let all replicas of these shards load a commit, without waiting for it."""
        self._dispatcher.submit(Call("update", number, dict.fromkeys(shards, 0), time.monotonic(), grouped=False))

    def behind(self, number: int, shards: Iterable[int]) -> list[int]:
        """Return those of the shards of which no replica is connected, or one that has not reported this commit yet.

        Replicas report what they have loaded in every reply, also to `notify`.
        """
        numbers: dict[int | None, list[int]] = {}
        for connection in self._dispatcher.connections():
            if connection.connected:
                numbers.setdefault(connection.endpoint.shard, []).append(connection.number)
        return sorted(shard for shard in shards if min(numbers.get(shard, [-1])) < number)

    def ready_shards(self) -> dict[int, int]:
        """Return how many replicas of each shard are connected."""
        ready: dict[int, int] = {}
        for endpoint, connected in self.endpoints():
            if connected and endpoint.shard is not None:
                ready[endpoint.shard] = ready.get(endpoint.shard, 0) + 1
        return ready

    def endpoints(self) -> list[tuple[Endpoint, bool]]:
        """Return where replicas and aggregators listen, and which are connected."""
        return [(connection.endpoint, connection.connected) for connection in self._dispatcher.connections()]

    def close(self) -> None:
        """Close all connections; calls under way fail."""
        self._dispatcher.close()

    def _finish(self, call: Call) -> Call:
        if call.waiting:
            self._dispatcher.submit(call)
            call.wait()
        return call
