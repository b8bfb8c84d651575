"""Processes that lack memory or file handles while they change a collection, as `fault_process` on a failing disk.

`python -m tests.faults.collection_process FOLDER MOST SEED KIND...` runs preloaded (injection.py) and prints JSON.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

from stillhash.errors import BadState, Busy, StoreFailed
from tests.collection.fault_process import try_faults
from tests.faults.injection import LARGE, MEMORY, Course, Injection

KINDS: dict[str, tuple[Course, int]] = {  # when allocations fail, and of at least how many bytes
    "memory": ("once", LARGE),
    "scarce memory": ("from then", LARGE),  # until the step has failed
}

HANDLES = "file handles"


class MemoryFaults:
    """Allocations that fail in this process."""

    reported = Busy, StoreFailed, BadState

    def __init__(self) -> None:
        self._injection = Injection.of_this_process()
        self._calls = self._failed = 0  # before a check

    def start(self, kind: str, at: int) -> None:
        self._calls = self._failed = 0
        course, least = KINDS[kind]
        self._injection.fail(MEMORY, course, at, least)

    def call_count(self) -> int:
        return self._calls + self._injection.seen

    def failed_calls(self) -> int:
        return self._failed + self._injection.failed

    def before_check(self) -> None:
        self._calls, self._failed = self.call_count(), self.failed_calls()
        self.recover()

    def recover(self) -> None:
        self._injection.stop()


class HandleFaults:
    """File handles that lack from the n-th file on that Python opens, until the step has failed."""

    reported = Busy, StoreFailed, BadState
    events = "open", "sqlite3.connect", "os.listdir", "os.scandir"

    def __init__(self) -> None:
        self._at = self._opened = self._failed = 0
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:
        if event in self.events:
            self._opened += 1
            if self._opened == self._at:
                self._failed += 1
                resource.setrlimit(resource.RLIMIT_NOFILE, (3, self._limits[1]))  # these three are in use

    def start(self, kind: str, at: int) -> None:
        self._at, self._opened, self._failed = at, 0, 0

    def call_count(self) -> int:
        return self._opened

    def failed_calls(self) -> int:
        return self._failed

    def before_check(self) -> None:
        self.recover()

    def recover(self) -> None:
        self._at = 0
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)


def run(folder: str, most: str, seed: str, *kinds: str) -> dict[str, Any]:
    """Try faults of these kinds."""
    results = {}
    for kind in kinds:
        faults = HandleFaults() if kind == HANDLES else MemoryFaults()
        results[kind] = try_faults(f"{folder}/store", faults, kind, int(most), seed)
    return results


if __name__ == "__main__":
    print(json.dumps(run(*sys.argv[1:])))
