"""A process whose clock jumps back a year between its changes: versions keep their order, and nothing is lost."""

from __future__ import annotations

import sys
import time

import stillhash
from stillhash.errors import TooMany
from stillhash.server.limits import RateLimiter
from tests.collection.fixtures import some_rows
from tests.faults.injection import Injection

YEAR = 365 * 86_400.0


def main(path: str) -> None:
    injection, began, limiter = Injection.of_this_process(), time.time(), RateLimiter(1000.0)
    with stillhash.open(path) as collection:
        before = [version["version"] for version in collection.versions()]
        for jump in range(1, 4):
            collection.learn(*some_rows(60, seed=jump)[:2])
            injection.set_clock(-YEAR * jump)
            assert time.time() < began - YEAR * (jump - 0.5), "the clock did not jump"
            limiter.take("client")  # which refills by another clock
            collection.feedback(some_rows(1).X[0], [5], ["up"], source=str(jump))
        versions = collection.versions()
        assert [version["version"] for version in versions] == [*before, *range(before[-1] + 1, before[-1] + 7)]
        assert versions[-1]["created"] < versions[-2]["created"] < versions[0]["created"]
        answer = collection.search(some_rows(1).X[0], 10)
        assert collection.rollback(versions[-1]["version"]) == versions[-1]["version"] + 1
        assert [hit.id for hit in collection.search(some_rows(1).X[0], 10).hits] == [hit.id for hit in answer.hits]
        assert collection.verify() == []
    try:
        for _ in range(10_000):
            limiter.take("client")
    except TooMany:
        time.sleep(0.1)
        limiter.take("client")


if __name__ == "__main__":
    main(sys.argv[1])
