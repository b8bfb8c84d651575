"""Serve shards from child processes that tests can kill, stop and start again, without Ray."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stillhash.cluster.storage import Storage
from tests.cluster.shard_threads import WithoutNodes


class ShardChildren(WithoutNodes):
    """Starts and stops processes as `ShardProcesses` asks."""

    def __init__(self, storage: str | Path) -> None:
        self.storage = Storage(storage).url
        self.children: dict[tuple[int, int], subprocess.Popen[bytes]] = {}

    def start(self, shard: int, replica: int = 0) -> None:
        command = [sys.executable, "-m", "tests.cluster.shard_process", self.storage, str(shard), f"{shard}-{replica}"]
        self.children[shard, replica] = subprocess.Popen(command, cwd=Path(__file__).parents[2])

    def signal(self, number: int, shard: int, replica: int = 0) -> None:
        """Send a signal to a replica; one that kills it is waited for."""
        child = self.children[shard, replica]
        child.send_signal(number)
        if number == signal.SIGKILL:
            child.wait()

    def ensure(self, shards: Sequence[int], replicas: int) -> None:
        for key in ((shard, replica) for shard in shards for replica in range(replicas)):
            if key not in self.children:
                self.start(*key)

    def status(self) -> dict[str, Any]:
        return {"actors": [{"pid": child.pid} for child in self.children.values()]}

    def close(self) -> None:
        for child in self.children.values():
            child.kill()
            child.wait()
        self.children = {}
