"""Connect this process to a Ray cluster, or to a new one on this machine, and disconnect it again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from stillhash.cluster.local import quiet_ray


def connect(address: str | None) -> bool:
    """Connect this process, unless it is connected; whether it was not."""
    if ray.is_initialized():
        return False
    with quiet_ray():
        local: dict[str, Any] = {"include_dashboard": False} if address is None else {}
        ray.init(
            address=address or "local", log_to_driver=False, logging_level=logging.ERROR, namespace="stillhash", **local
        )
    return True


@contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """Stay connected to the cluster at this address, or to one on this machine, inside the `with` block."""
    opened = connect(address)
    try:
        yield
    finally:
        if opened:
            ray.shutdown()
