"""Waiting for what happens in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

TIMEOUT = 60.0  # seconds until something that should have happened is a failure


def until(condition: Callable[[], Any], what: str = "change") -> None:
    """Wait until this holds."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end, f"no {what} in {TIMEOUT:g} seconds"
        time.sleep(0.005)
