"""A writer in a process of its own, which adds a shard, and prints the rows that have moved after each step.

Arguments: the storage and the length of codes. The shards are processes of the test.
"""

from __future__ import annotations

import sys

from stillhash.cluster import segment_moves
from stillhash.cluster.index import ClusterIndex
from tests.cluster.publisher_process import NoProcesses

STEP_ROWS = 1000

if __name__ == "__main__":
    segment_moves.MOVE_STEP_ROWS = STEP_ROWS
    index = ClusterIndex(int(sys.argv[2]), storage=sys.argv[1], processes=NoProcesses(), lease_seconds=0.5)
    index.add_shard(lambda done, rows: print(done, flush=True))
    print("end", flush=True)
