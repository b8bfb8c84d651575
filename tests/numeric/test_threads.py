"""A machine that starts no more threads: kernels do their work on those there are."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stillhash.numeric import extension

SEARCH_WITHOUT_THREADS = """
import resource
import threading
import numpy as np
from stillhash import MIWQ, Scan

rng = np.random.default_rng(0)
codes = rng.integers(0, 256, (600_000, 8), dtype=np.uint8)
weights = rng.standard_normal((64, 64)).astype(np.float32)
indexes = [index(64, threads=8) for index in (Scan, MIWQ)]
for index, count in zip(indexes, (600_000, 4000)):  # so few that no thread merges them
    index.add(codes[:count])
indexes[1].merge()
expected = []
for index in indexes:
    index.threads = 1
    expected.append(index.search(weights, 5))
    index.threads = 8
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (5 << 20), resource.RLIM_INFINITY))  # no stack of 8 MiB fits
try:
    threading.Thread(target=print).start()
    print("a thread has started")
except RuntimeError:
    pass
for index, hits in zip(indexes, expected):
    again = index.search(weights, 5)
    assert again.ids.tobytes() == hits.ids.tobytes() and again.scores.tobytes() == hits.scores.tobytes()
print("the same hits")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space, as Linux does")
@pytest.mark.skipif(extension.native is None, reason="only the extension starts threads")
def test_a_search_needs_no_thread_but_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", SEARCH_WITHOUT_THREADS], capture_output=True, text=True)
    assert done.stdout == "the same hits\n", done.stderr
