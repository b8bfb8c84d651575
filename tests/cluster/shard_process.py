"""Serve one shard, or `-` to aggregate: python -m tests.cluster.shard_process STORAGE SHARD NAME."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from stillhash.cluster.aggregator import AggregatorServer
from stillhash.cluster.shard_server import ShardServer


def stop(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    storage, shard, name = sys.argv[1:]
    server = AggregatorServer(storage, name) if shard == "-" else ShardServer(storage, int(shard), name, {"threads": 1})
    signal.pause()
