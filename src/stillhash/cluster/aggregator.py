"""An aggregator: searches a group of shards for a front and merges their hits, so that the front gets one reply.

Merges compose exactly: the best of the best of groups are the best of all. An aggregator keeps nothing, so any of them
can serve any group.
"""

import os
import threading
from contextlib import suppress
from typing import Any

from stillhash.cluster.calls import Call
from stillhash.cluster.coordinator import Coordinator
from stillhash.cluster.endpoints import Endpoint
from stillhash.cluster.message_server import MessageServer, Received
from stillhash.cluster.requests import SearchRequest, hits_to_message, search_from_message
from stillhash.cluster.shard_server import RETRY_SECONDS, STALE_HEADER, node_address, node_id
from stillhash.cluster.storage import Storage
from stillhash.errors import InvalidInput, StillhashError
from stillhash.search import Hits
from stillhash.search.merge import merge_all, merge_top

AGGREGATOR_THREADS = 32  # calls under way: they mostly wait for shards
DEADLINE_SHARE = 0.8  # of the time that is left, so that the front gets what came until then


class AggregatorServer:
    """Serves fronts as a shard does. options: `host`, the address to listen on."""

    def __init__(self, storage: str, name: str, options: dict[str, Any] | None = None) -> None:
        self.storage, self.name = Storage(storage, create=False), name
        self._coordinator, self._stopped = Coordinator(self.storage), threading.Event()
        host = (options or {}).get("host") or node_address()
        self._server = MessageServer(host, name, self._answer, AGGREGATOR_THREADS)
        self.endpoint = Endpoint(name, "aggregator", None, self._server.address, os.getpid(), node_id())
        self._server.start()
        threading.Thread(target=self._announce, name="stillhash-updates", daemon=True).start()

    def status(self) -> dict[str, Any]:
        """Return where the aggregator runs."""
        return self.endpoint._asdict()

    def update(self, number: int | None = None) -> dict[str, Any]:
        """Return the status: there is nothing to load."""
        return self.status()

    def stop(self) -> None:
        """Stop answering, and withdraw the endpoint."""
        self._stopped.set()
        self._server.stop()
        self._coordinator.close()
        with suppress(StillhashError):
            self.storage.delete(self.endpoint.file)

    def _announce(self) -> None:
        while not self._stopped.is_set():
            with suppress(StillhashError):
                self.storage.replace(self.endpoint.file, self.endpoint.to_json())
                return
            self._stopped.wait(RETRY_SECONDS)

    def _answer(self, received: list[Received]) -> None:
        for message in received:
            self._server.work(message, self._search)

    def _search(self, message: Received) -> None:
        """Search the shards of a message, and reply with the hits of all of them, and which are missing."""
        if message.call != "search":
            raise InvalidInput(f"call: expected search, got {message.call!r:.40}")
        number, rows = message.number, {int(s): int(n) for s, n in message.header["rows"]}
        until = message.until - (1 - DEADLINE_SHARE) * float(message.header["seconds"])
        requests = search_from_message(message.header["requests"], message.arrays, message.arrays[0].shape[-1])
        calls = self._coordinator.search_all(requests, number, rows, until)
        if any(call.stale for call in calls):
            self._server.reply(message, STALE_HEADER)
            return
        for call in calls:
            if call.refused and call.error is not None:
                raise call.error
        missing = sorted(set().union(*(call.waiting for call in calls)))
        hits = [merge_hits(request, call, missing) for request, call in zip(requests, calls, strict=True)]
        replies = [reply for call in calls for reply in call.replies]
        counts, arrays = hits_to_message(hits)
        seconds = max((reply.header["seconds"] for reply in replies), default=0.0)
        latest = max((reply.header["latest"] for reply in replies), default=number)
        self._server.reply(
            message, {"counts": counts, "seconds": seconds, "latest": latest, "missing": missing}, arrays
        )


def merge_hits(request: SearchRequest, call: Call, missing: list[int]) -> list[Hits]:
    """Return the hits of all shards that replied, without those that are missing for another request."""
    replies = [reply.hits for reply in call.replies if not set(reply.shards) & set(missing)]
    if request.thresholds is None:
        return [merge_top([hits[0] for hits in replies], request.k, len(request.weights))]
    return [merge_all([hits[q] for hits in replies]) for q in range(len(request.weights))]
