"""A replica of a shard: a process that Ray starts, places and restarts, and that answers messages on its own port."""

import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import numpy as np

from stillhash.cluster.endpoints import Endpoint
from stillhash.cluster.item_calls import ITEM_CALLS, answer_item_call
from stillhash.cluster.manifest import latest_number
from stillhash.cluster.message_server import MessageServer, Received
from stillhash.cluster.requests import SearchRequest, hits_to_message, search_from_message
from stillhash.cluster.segment_cache import CACHE_BYTES, SegmentCache
from stillhash.cluster.shard import Shard, StaleNumber
from stillhash.cluster.storage import Storage
from stillhash.errors import InvalidInput, StillhashError, Unreachable
from stillhash.numeric.validation import check_integer

FOLLOW_SECONDS = 2.0  # without a notice, until a replica looks for a new commit itself
RETRY_SECONDS = 1.0  # until the next try to reach a storage that failed
MAX_COLUMNS = 1 << 20  # bytes of a rescoring code
WORK_THREADS = 2  # for filters and items, beside the thread that searches
STALE_HEADER = {"stale": True}


class ShardServer:
    """Serves one shard. It answers as soon as it is made, so a process that Ray restarts serves again by itself.

    options: `host`, the address to listen on; `threads`, the most of one search; `device`, where it searches; `cache`
    and `cache_bytes`, of the copies of segments from a URL.
    """

    def __init__(self, storage: str, shard: int, name: str, options: dict[str, Any] | None = None) -> None:
        options = options or {}
        self.storage, self.name = Storage(storage, create=False), name
        cache = SegmentCache(self.storage, options.get("cache"), options.get("cache_bytes", CACHE_BYTES))
        self.shard = Shard(self.storage, shard, cache, options.get("threads"), options.get("device", "cpu"))
        self._parked: list[Received] = []  # searches of commits that are not loaded yet
        self._requested, self._load_event, self._stopped = -1, threading.Event(), threading.Event()
        self._failure: Exception | None = None  # of the last update
        self._server = MessageServer(options.get("host") or node_address(), name, self._answer, WORK_THREADS)
        self.endpoint = Endpoint(name, "shard", shard, self._server.address, os.getpid(), node_id())
        self._server.start()
        self._updater = threading.Thread(target=self._keep_updated, name="stillhash-updates", daemon=True)
        self._updater.start()

    def status(self) -> dict[str, Any]:
        """Return where the replica runs and what it holds."""
        failure = None if self._failure is None else str(self._failure)
        return {**self.endpoint._asdict(), **self.shard.status()._asdict(), "failure": failure}

    def update(self, number: int | None = None) -> dict[str, Any]:
        """Load a commit, or the latest, and return the status."""
        self.shard.update(number)
        return self.status()

    def stop(self) -> None:
        """Stop answering, and withdraw the endpoint."""
        self._stopped.set()
        self._load_event.set()
        self._server.stop()
        with suppress(StillhashError):
            self.storage.delete(self.endpoint.file)

    def _keep_updated(self) -> None:
        """Write the endpoint and load commits as they are requested, again and again while the storage fails.

        Where none was requested for a while, look for one: a replica that was not connected missed its notice.
        """
        announced, committed = False, -1
        while not self._stopped.is_set():
            try:
                if not announced:
                    self.storage.replace(self.endpoint.file, self.endpoint.to_json())
                    announced = True
                    self.shard.update()
                if (number := max(self._requested, committed)) > self.shard.number:
                    self.shard.update(number)
                self._failure = None
                self._server.wake()
                if not self._load_event.wait(FOLLOW_SECONDS):
                    committed = latest_number(self.storage)
                self._load_event.clear()
            except Exception as error:  # of any kind: without this thread the shard would stay as it is
                self._failure = error
                self._server.wake()
                self._stopped.wait(RETRY_SECONDS)

    def _answer(self, received: list[Received]) -> None:
        """Answer what came in: all searches of one commit together, and everything that takes long in threads."""
        searches = self._parked
        self._parked = []
        for message in received:
            if message.call == "search" and not has_filter(message):
                searches.append(message)
            else:
                self._server.work(message, self._call)
        ready: dict[int, list[Received]] = {}
        for message in searches:
            try:
                if message.expired:
                    self._server.refuse_expired(message)
                elif self.shard.has(message.number):
                    ready.setdefault(message.number, []).append(message)
                elif self._failure is not None:
                    problem = f"{self.name} cannot load commit {message.number}: {self._failure}"
                    self._server.refuse(message, Unreachable(problem))
                else:
                    self._parked.append(message)
                    self._load(message.number)
            except StaleNumber:
                self._server.reply(message, STALE_HEADER)
        for number, messages in ready.items():
            self._search(number, messages)

    def _load(self, number: int) -> None:
        if number > self._requested:
            self._requested = number
        self._load_event.set()

    def _search(self, number: int, messages: list[Received]) -> None:
        """Search for all messages at once, and reply to each."""
        began = time.perf_counter()
        requests, owners = list[SearchRequest](), []
        try:
            bits = self.shard.bits(number)
            for message in messages:
                some = search_from_message(message.header["requests"], message.arrays, bits)
                owners.append((message, len(requests), len(requests) + len(some)))
                requests += some
            hits = self.shard.search(number, requests)
        except StaleNumber:
            for message in messages:
                self._server.reply(message, STALE_HEADER)
            return
        except Exception as error:
            if len(messages) == 1:
                self._server.refuse(messages[0], error)
            else:  # one of them is invalid; the others get their hits
                for message in messages:
                    self._search(number, [message])
            return
        seconds = time.perf_counter() - began
        for message, start, end in owners:
            counts, arrays = hits_to_message(hits[start:end])
            self._server.reply(message, {"counts": counts, "seconds": seconds, "latest": self.shard.number}, arrays)

    def _call(self, message: Received) -> None:
        """Answer one message that may take long."""
        number = message.number
        if message.call == "update":
            self._load(number)
            self._server.reply(message, {"latest": self.shard.number})
            return
        if message.call == "status":
            self._server.reply(message, {"status": self.status()})
            return
        while not message.expired and number > self.shard.number:
            self.shard.update(number)
        try:
            self._reply(message, number)
        except StaleNumber:
            self._server.reply(message, STALE_HEADER)

    def _reply(self, message: Received, number: int) -> None:
        latest = {"latest": self.shard.number}
        if message.call == "search":
            self._search(number, [message])
        elif message.call == "codes":
            ids, codes = self.shard.codes(number, message.arrays[0])
            self._server.reply(message, latest, [ids, codes])
        elif message.call == "page":
            columns = check_integer(message.header.get("columns"), "columns", 1, MAX_COLUMNS)
            rows = self.shard.page_rows(number, message.arrays[0], columns)
            places = dict[str, int]()
            sets = [places.setdefault(text, len(places)) for text in rows.labels]
            self._server.reply(message, {**latest, "labels": list(places)}, [*rows[:3], np.array(sets, np.int64)])
        elif message.call in ITEM_CALLS:
            header, arrays = answer_item_call(self.shard.items(number), message.call, message.header, message.arrays)
            self._server.reply(message, {**latest, **header}, arrays)
        else:
            raise InvalidInput(f"call: expected search, codes, page, status or update, got {message.call!r:.40}")


def has_filter(message: Received) -> bool:
    """Whether a search has to evaluate a filter, or is not valid: both are left to the threads for long work."""
    requests = message.header.get("requests")
    return not isinstance(requests, list) or not all(isinstance(r, dict) and r.get("where") is None for r in requests)


def node_id() -> str:
    """Return the node of Ray that this process is on; empty if it is on none."""
    ray = sys.modules.get("ray")  # imported by Ray itself in every process that it starts
    return str(ray.get_runtime_context().get_node_id()) if ray is not None and ray.is_initialized() else ""


def node_address() -> str:
    """Return the address at which other nodes reach this one."""
    ray = sys.modules.get("ray")
    return str(ray.util.get_node_ip_address()) if ray is not None and ray.is_initialized() else "127.0.0.1"
