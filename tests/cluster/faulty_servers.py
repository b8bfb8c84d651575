"""Servers of shards and aggregators that fail in ways a test chooses: late, stuck, with errors, twice, or dead."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

from stillhash.cluster.aggregator import AggregatorServer
from stillhash.cluster.message_server import Received
from stillhash.cluster.shard_server import ShardServer
from stillhash.errors import Busy, StoreFailed, Unreachable

FAULTS = ("healthy", "late", "stuck", "errors", "twice", "killed", "stopped")


class FaultInjection:
    """Passes messages to the server below at once, later or never, as `fault` says."""

    fault = "healthy"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.held: list[Received] = []  # while it is stuck
        self.due: list[Received] = []  # that were late
        self.timers: list[threading.Timer] = []
        self.random = random.Random(0)
        super().__init__(*arguments, **options)

    def set_fault(self, fault: str) -> None:
        self.fault = fault
        self._server.wake()  # type: ignore[attr-defined]

    def _answer(self, received: list[Received]) -> None:
        fault, server = self.fault, self._server  # type: ignore[attr-defined]
        if fault == "stuck":
            self.held += received
            return
        passed, self.held = self.held, []
        while self.due:
            passed.append(self.due.pop())
        for message in received:
            if fault == "late":
                self.timers.append(threading.Timer(self.random.uniform(0.05, 0.7), self._release, [message]))
                self.timers[-1].start()
            elif fault == "errors" and self.random.random() < 0.7:
                server.refuse(message, self.random.choice([Busy, StoreFailed, Unreachable, MemoryError])("injected"))
            else:
                passed += [message, message] if fault == "twice" else [message]
        super()._answer(passed)  # type: ignore[misc]

    def _release(self, message: Received) -> None:
        self.due.append(message)
        self._server.wake()  # type: ignore[attr-defined]

    def end(self, *, withdraw: bool) -> None:
        """Stop; unless `withdraw`, the endpoint stays on the storage, as that of a killed process does."""
        for timer in self.timers:
            timer.cancel()
        file = Path(self.storage.url) / self.endpoint.file  # type: ignore[attr-defined]
        content = file.read_bytes() if file.exists() else None
        self.stop()  # type: ignore[attr-defined]
        if not withdraw and content is not None:
            file.write_bytes(content)


class FaultyShard(FaultInjection, ShardServer):
    pass


class FaultyAggregator(FaultInjection, AggregatorServer):
    pass


class FaultyServers:
    """Serves shards, and aggregators, from threads; starts those again that have ended."""

    def __init__(self, storage: str, shards: int, replicas: int, aggregators: int) -> None:
        self.storage = storage
        self.names = [f"shard-{shard}-{replica}" for shard in range(shards) for replica in range(replicas)]
        self.names += [f"aggregator-{number}" for number in range(aggregators)]
        self.servers: dict[str, FaultyShard | FaultyAggregator] = {name: self.start(name) for name in self.names}

    def start(self, name: str) -> FaultyShard | FaultyAggregator:
        kind, number, *_ = name.split("-")
        if kind == "aggregator":
            return FaultyAggregator(self.storage, name)
        return FaultyShard(self.storage, int(number), name, {"threads": 1})

    def set_fault(self, name: str, fault: str) -> None:
        """Let one of the servers fail, or work again."""
        server = self.servers.get(name)
        if fault in ("killed", "stopped"):
            if server is not None:
                del self.servers[name]
                server.end(withdraw=fault == "stopped")
            return
        if server is None:
            server = self.servers[name] = self.start(name)
        server.set_fault(fault)

    def heal(self) -> None:
        for name in self.names:
            self.set_fault(name, "healthy")

    def close(self) -> None:
        for server in self.servers.values():
            server.end(withdraw=True)
