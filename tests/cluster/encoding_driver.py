"""A driver of its own process, to be killed: python -m tests.cluster.encoding_driver ADDRESS SOURCE OUT STATE."""

from __future__ import annotations

import sys
from pathlib import Path

import ray

from stillhash.cluster.encoding import encode_dataset
from stillhash.cluster.local import LOOPBACK
from stillhash.hashers import load
from tests.cluster.fixtures import PART


def main(address: str, source: str, out: str, state: str) -> None:
    ray.init(address=address, _node_ip_address=LOOPBACK, log_to_driver=False, logging_level="error")
    encode_dataset(source, load(Path(state).read_bytes()), out, rows_per_part=PART // 8, at_once=3)


if __name__ == "__main__":
    main(*sys.argv[1:])
