"""Serve one shard until the input ends: python -m benchmarks.cluster_shard STORAGE SHARD."""

import sys

from benchmarks.child import commands
from stillhash.cluster.shard_server import ShardServer


def main(storage: str, shard: str) -> None:
    server = ShardServer(storage, int(shard), f"{shard}-0", {"threads": 1})
    try:
        for _ in commands():
            pass
    finally:
        server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
