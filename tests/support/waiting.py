"""Waiting for what happens in another thread, task or process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

TIMEOUT = 60.0  # seconds until something that should have happened is a failure
POLL_SECONDS = 0.005


def until(condition: Callable[[], Any], what: str = "change", timeout: float = TIMEOUT) -> None:
    """Wait until this holds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"no {what} in {timeout:g} seconds"
        time.sleep(POLL_SECONDS)


async def until_async(condition: Callable[[], Any], what: str = "change") -> None:
    """Wait until this holds, while other tasks run."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end, f"no {what} in {TIMEOUT:g} seconds"
        await asyncio.sleep(POLL_SECONDS)
