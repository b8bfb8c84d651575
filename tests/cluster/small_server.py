"""A server of a shard that serves nothing: what the controller needs of one, without data."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import ray

from stillhash.cluster.storage import Storage


class SmallServer:
    """Announce an endpoint, and report commit 1 and 100 rows once `load_seconds` are over."""

    def __init__(self, url: str, shard: int, name: str, options: dict[str, Any]) -> None:
        if "failure" in options:
            raise ValueError(options["failure"])
        self.storage, self.file, self.shard = Storage(url, create=False), f"endpoints/{name}.json", shard
        self.loaded_at = time.monotonic() + options.get("load_seconds", 0.0)
        self.node = ray.get_runtime_context().get_node_id()
        self.storage.replace(self.file, json.dumps({"name": name, "pid": os.getpid()}).encode())

    def status(self) -> dict[str, Any]:
        loaded = time.monotonic() >= self.loaded_at
        known = {"shard": self.shard, "node": self.node, "pid": os.getpid()}
        return {**known, "number": int(loaded), "rows": 100 * loaded, "segments": 1, "nbytes": 0, "plan": "scan"}

    def stop(self) -> None:
        self.storage.delete(self.file)


class SmallAggregator(SmallServer):
    """The same without a shard."""

    def __init__(self, url: str, name: str, options: dict[str, Any]) -> None:
        super().__init__(url, -1, name, options)


CLASSES = {"shard": SmallServer, "aggregator": SmallAggregator}
