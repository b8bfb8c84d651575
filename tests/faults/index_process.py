"""Indexes and hashers that lack memory or threads: each call succeeds or reports it, and changes nothing then.

`python -m tests.faults.index_process MOST SEED KIND...` runs preloaded (injection.py) and prints JSON.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from stillhash import METHODS, MIWQ, Index, Scan
from stillhash.errors import OutOfMemory
from tests.collection.fault_process import run_in_fork
from tests.faults.injection import LARGE, MEMORY, THREAD, Injection
from tests.support.toys import toy

BITS, ROWS, ANOTHER_USER = 64, 5000, 54321
RNG = np.random.default_rng(0)
CODES = RNG.integers(0, 256, (ROWS, BITS // 8), dtype=np.uint8)
IDS = RNG.permutation(10 * ROWS)[:ROWS].astype(np.int64)
OTHER_IDS, THIRD, PRESENT = IDS + 100 * ROWS, np.arange(0, ROWS, 3), np.arange(4, ROWS)
WEIGHTS = RNG.standard_normal((40, BITS)).astype(np.float32)
X, Y = toy(600, 40, 4, 0)
KERNELS = "memory of kernels"
INDEXES = Scan, MIWQ, Index
VERBS: dict[str, Callable[[Any], Any]] = {
    "add": lambda index: index.add(CODES),
    "add with ids": lambda index: index.add(CODES, OTHER_IDS),
    "remove": lambda index: index.remove(THIRD),
    "search": lambda index: index.search(WEIGHTS, 200),
    "range_search": lambda index: index.range_search(WEIGHTS, 10.0),
    "codes": lambda index: index.codes(PRESENT),
}


def new_index(kind: type[Any]) -> Any:
    index = kind(BITS, threads=4)
    index.add(CODES)
    index.remove([1, 2, 3])
    if kind is MIWQ:
        index.merge()
    index.search(WEIGHTS, 5)
    return index


def contents(index: Any) -> tuple[bytes, ...]:
    """Return all that an index answers."""
    ids, hits = index.ids(), index.search(WEIGHTS, 20)
    return ids.tobytes(), index.codes(ids).tobytes(), hits.ids.tobytes(), hits.scores.tobytes()


def try_index(kind: type[Any], verb: str, fail: Callable[[], None], injection: Injection) -> Counter[str]:
    """Let one call of a verb fail; return how it was reported."""
    expected, index = new_index(kind), new_index(kind)
    VERBS[verb](expected)
    before, outcome = contents(index), "succeeded"
    fail()
    try:
        VERBS[verb](index)
    except OutOfMemory:
        outcome = "OutOfMemory"
    finally:
        injection.stop()
    if outcome != "succeeded":
        assert contents(index) == before, f"{kind.__name__}.{verb} failed, but changed something"
        VERBS[verb](index)
    assert contents(index) == contents(expected), f"{kind.__name__}.{verb} differs"
    if isinstance(index, MIWQ):
        index.merge()
        assert contents(index) == contents(expected), f"{kind.__name__}.{verb} differs once it is merged"
    return Counter([outcome])


def try_hasher(verb: str, fail: Callable[[], None], injection: Injection) -> Counter[str]:
    """Let `fit` or `encode` of the default method fail."""
    hasher, outcome = METHODS["tally"](BITS), "succeeded"
    hasher.fit(X, Y)
    before = hasher.state(), hasher.encode(X).tobytes()
    fail()
    try:
        if verb == "fit":
            hasher.fit(X[:500], Y[:500])
        else:
            hasher.encode(X, threads=4)
    except OutOfMemory:
        outcome = "OutOfMemory"
    finally:
        injection.stop()
    if outcome != "succeeded" or verb == "encode":
        assert (hasher.state(), hasher.encode(X).tobytes()) == before, f"{verb} failed, but changed something"
    return Counter([outcome])


def try_memory(injection: Injection, kernels: bool, most: int, seed: str) -> dict[str, Any]:
    """Let allocations fail one after another, in each verb of each index, and of a hasher."""
    least, rng = 1 if kernels else LARGE, random.Random(seed)
    works = {f"{kind.__name__}.{verb}": partial(try_index, kind, verb) for kind in INDEXES for verb in VERBS}
    works |= {f"Tally.{verb}": partial(try_hasher, verb) for verb in ("fit", "encode")}
    errors, calls, tried, wrong = Counter[str](), 0, 0, {}
    for name, work in works.items():
        seen: list[int] = []
        count = partial(injection.count, MEMORY, least, kernels=kernels)
        work(count, CountingStop(injection, seen))
        calls += seen[0]
        for at in sorted(rng.sample(range(1, seen[0] + 1), min(most, seen[0]))):
            fail = partial(injection.fail, MEMORY, "once", at, least, kernels=kernels)
            result = run_in_fork(partial(work, fail, injection))
            injection.stop()
            tried += 1
            if "wrong" in result:
                wrong[f"{name} {at}"] = result.pop("wrong")
            errors.update(result)
    return {"calls": calls, "tried": tried, "errors": errors, "wrong": wrong}


class CountingStop(Injection):
    """Remember how many calls there were at the first stop."""

    def __init__(self, injection: Injection, seen: list[int]) -> None:
        self._injection, self._seen = injection, seen

    def stop(self) -> tuple[int, int]:
        counts = self._injection.stop()
        self._seen.append(counts[0])
        return counts


def work_without_threads() -> dict[str, Any]:
    """Search, encode and merge where no thread starts."""
    try:
        threading.Thread(target=print).start()
        return {"not enforced": 1}
    except RuntimeError:
        pass
    indexes, expected = [new_index(kind) for kind in (Scan, MIWQ)], CODES_TWICE
    for index in indexes:
        index.add(CODES)
        index.threads = 8
        assert len(index) == 2 * ROWS - 3 and not getattr(index, "merging", False)
    assert contents(indexes[0]) == contents(indexes[1]) == expected
    assert METHODS["tally"](BITS).fit(X, Y).encode(X, threads=8).shape == (len(X), BITS // 8)
    return {"succeeded": len(indexes)}


def try_threads(injection: Injection, by_limit: bool) -> dict[str, Any]:
    """Refuse all threads: in place of the system, or by its limit of processes."""

    def limited() -> dict[str, Any]:
        if not by_limit:
            injection.fail(THREAD, "from then", 1)
        else:
            if os.getuid() == 0:  # whom no limit holds
                os.setuid(ANOTHER_USER)
            resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        return work_without_threads()

    result = run_in_fork(limited)
    injection.stop()
    wrong = {"threads": result.pop("wrong")} if "wrong" in result else {}
    return {"calls": 1, "tried": 1, "errors": result, "wrong": wrong}


def twice() -> tuple[bytes, ...]:
    index = new_index(Scan)
    index.add(CODES)
    return contents(index)


CODES_TWICE = twice()


def run(most: str, seed: str, *kinds: str) -> dict[str, Any]:
    injection = Injection.of_this_process()
    METHODS["tally"](BITS).fit(X, Y).encode(X)
    works: dict[str, Callable[[], dict[str, Any]]] = {
        "memory": lambda: try_memory(injection, False, int(most), seed),
        KERNELS: lambda: try_memory(injection, True, int(most), seed),
        "threads": lambda: try_threads(injection, False),
        "process limit": lambda: try_threads(injection, True),
    }
    return {kind: works[kind]() for kind in kinds}


if __name__ == "__main__":
    print(json.dumps(run(*sys.argv[1:])))
