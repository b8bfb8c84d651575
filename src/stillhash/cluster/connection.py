"""Being part of a Ray cluster: this process joins one, or starts one on this machine, and leaves it again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from stillhash.cluster.local import quietly


def connect(address: str | None) -> bool:
    """Connects this process, unless it is; whether it was not."""
    if ray.is_initialized():
        return False
    with quietly():
        here: dict[str, Any] = {"include_dashboard": False} if address is None else {}
        ray.init(
            address=address or "local", log_to_driver=False, logging_level=logging.ERROR, namespace="stillhash", **here
        )
    return True


@contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """Part of the cluster at this address, or of one on this machine, for as long as this lasts."""
    joined = connect(address)
    try:
        yield
    finally:
        if joined:
            ray.shutdown()
