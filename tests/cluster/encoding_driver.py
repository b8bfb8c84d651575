"""A driver in a process of its own, to be killed. Arguments: ADDRESS SOURCE OUT STATE PAUSE_AT.

It pauses after PAUSE_AT parts, so that it cannot end before it is killed.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import ray

from stillhash.cluster.datasets import encode_dataset
from stillhash.cluster.local import LOOPBACK
from stillhash.hashers import load
from tests.cluster.fixtures import PART_ROWS


def main(address: str, source: str, out: str, state: str, pause_at: str) -> None:
    def pause(parts_done: int, *_: object) -> None:
        if parts_done >= int(pause_at):
            signal.pause()

    ray.init(address=address, _node_ip_address=LOOPBACK, log_to_driver=False, logging_level="error")
    hasher = load(Path(state).read_bytes())
    encode_dataset(source, hasher, out, rows_per_part=PART_ROWS // 8, max_tasks=3, progress=pause)


if __name__ == "__main__":
    main(*sys.argv[1:])
