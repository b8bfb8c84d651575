"""A process to be killed: it changes a collection step by step, and prints the number of each completed step.

A seed determines the step of each number, so the parent can take the acknowledged steps on a reference model.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import stillhash
from stillhash import Collection
from stillhash.collection.storage.segments import CodeTable
from stillhash.errors import Conflict
from tests.collection.compaction_process import SEGMENT_ROWS
from tests.collection.fixtures import BITS, DIM, INIT, LEARN, some_rows
from tests.collection.reference import Twin

KEEP = 5  # versions
SHARES = {
    "upsert": 0.18,
    "add": 0.13,
    "relabel": 0.08,
    "feedback": 0.05,
    "snapshot": 0.03,
    "delete": 0.13,
    "learn": 0.12,
    "flush": 0.04,
    "rollback": 0.06,
    "tag": 0.04,
    "seal": 0.08,
    "compact": 0.06,
}


def step_at(seed: int, number: int) -> tuple[str, Any]:
    """Return the verb of a step, and its arguments."""
    rng = np.random.default_rng([seed, number])
    kind = str(rng.choice(list(SHARES), p=list(SHARES.values())))
    if kind == "add":
        n = int(rng.integers(1, 6))
        return kind, ([f"n{number}/{r}" for r in range(n)], *some_rows(n, seed=number))
    if kind == "upsert":
        first, n = int(rng.integers(0, 400)), int(rng.choice([1, 10, 60]))
        return kind, (list(range(first, first + n)), *some_rows(n, seed=number))
    if kind == "delete":
        old = [f"n{number - back}/{r}" for back in range(10, 40) for r in range(5)]
        return kind, [*rng.choice(450, 10, replace=False).tolist(), *old]
    if kind == "relabel":
        ids = rng.choice(450, int(rng.choice([3, 60])), replace=False).tolist()
        return kind, (ids, [["e"], [], ["a", "c"]][int(rng.integers(3))])
    if kind == "learn":
        return kind, some_rows(int(rng.integers(1, 20)), seed=number)[:2]
    if kind == "feedback":
        ids = rng.choice(450, 3, replace=False).tolist()
        return kind, (some_rows(1, seed=number % 7).X[0], ids, (rng.random(3) < 0.5).tolist(), f"source {number % 2}")
    return kind, f"tag {number % 3}"


def take(path: str | Path, collection: Collection, kind: str, args: Any) -> None:
    """Take a step on the collection at this path."""
    versions = collection.versions()
    if kind in ("add", "upsert"):
        getattr(collection, kind)(*args)
    elif kind == "delete":
        collection.delete(args)
    elif kind == "relabel":
        ids, labels = args
        existing = [id_ for id_, item in zip(ids, collection.get(ids), strict=True) if item is not None]
        collection.relabel(existing, [labels] * len(existing))
    elif kind == "search":
        collection.search(args, 10, where={"odd": True})
    elif kind in ("flush", "seal", "compact"):
        getattr(collection, kind)()
    elif versions and kind == "learn":
        collection.learn(*args)
    elif versions and kind == "feedback":
        query, ids, likes, source = args
        existing = [item is not None for item in collection.get(ids)]
        votes = [(i, liked) for i, liked, exists in zip(ids, likes, existing, strict=True) if exists]
        if votes:
            collection.feedback(query, *map(list, zip(*votes, strict=True)), source=source)
    elif kind == "snapshot":
        with suppress(Conflict):  # it exists since an earlier step like this was interrupted
            collection.snapshot(Path(path).with_name(f"{Path(path).name}-copy"))
    elif versions and kind == "rollback":
        collection.rollback(versions[0]["version"])
    elif versions and kind == "tag":
        with suppress(Conflict):
            collection.tag(versions[-1]["version"], args)


def take_on_twin(twin: Twin, kind: str, args: Any) -> None:
    """Take the same step on the reference model, and count it if it changes anything."""
    twin.changes += changes_twin(twin, kind, args)


def changes_twin(twin: Twin, kind: str, args: Any) -> bool:
    """Take a step on the reference model; return whether it changes anything, and so has an entry in the audit log."""
    if kind in ("add", "upsert"):
        twin.put(*args)
    elif kind == "compact":
        pass
    elif kind == "delete":
        return twin.delete(args) > 0
    elif kind == "relabel":
        existing = [id_ for id_ in args[0] if id_ in twin.items]
        twin.relabel(existing, [args[1]] * len(existing))
        return bool(existing)
    elif kind == "flush":
        version = twin.version
        return twin.flush() > version
    elif twin.versions and kind == "learn":
        twin.learn(*args)
    elif twin.versions and kind == "feedback":
        query, ids, likes, source = args
        votes = [(i, liked) for i, liked in zip(ids, likes, strict=True) if i in twin.items]
        if votes:
            twin.feedback(query, *map(list, zip(*votes, strict=True)), source)
        return bool(votes)
    elif twin.versions and kind == "rollback":
        twin.rollback(min(twin.versions))
    elif twin.versions and kind == "tag" and args not in [v.tag for n, v in twin.versions.items() if n != twin.version]:
        twin.versions[twin.version].tag = args
    else:
        return False
    return True


def open_collection(path: str | Path) -> Collection:
    settings = {"init_rows": INIT, "learn_rows": LEARN, "keep_versions": KEEP}
    return stillhash.open(path, DIM, BITS, codes_see_labels=True, **settings)


if __name__ == "__main__":
    path, seed, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    CodeTable.segment_rows = SEGMENT_ROWS  # so that a compaction has several steps
    print("ready", flush=True)
    collection = open_collection(path)
    while True:
        take(path, collection, *step_at(seed, number))
        print(number, flush=True)
        number += 1
