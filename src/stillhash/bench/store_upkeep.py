"""What a collection on disk costs its owner: opening it, the first search, and room that deleted items leave."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import stillhash
from stillhash.bench.timing import Progress
from stillhash.experiments.tables import print_table
from stillhash.numeric.validation import Floats

DIM, BITS = 32, 64
SAMPLE = 500  # rows that fix the hash functions
STEP = 100_000  # rows of an `add`
SEARCHED = 20_000  # items of the collection that is searched for all it has

# Opens a collection as a process that was just started does, and searches it twice.
FRESH = """
import json, sys, time
from pathlib import Path
import numpy as np
import stillhash

path, dim, *kinds = sys.argv[1:]

def memory():
    status = Path("/proc/self/status")
    lines = [line.split() for line in status.read_text().splitlines()] if status.is_file() else []
    sizes = {key.rstrip(":"): rest for key, *rest in lines}
    return [int(sizes[kind][0]) * 1024 if kind in sizes else None for kind in kinds]

query = np.random.default_rng(1).standard_normal(int(dim), dtype=np.float32)
times = [time.perf_counter()]
collection = stillhash.open(path, read_only=True)
times.append(time.perf_counter())
before = memory()
for _ in range(2):
    collection.search(query, 10)
    times.append(time.perf_counter())
ms = [1e3 * (b - a) for a, b in zip(times, times[1:])]
after = memory()
print(json.dumps([*ms, collection.stats()["index_bytes"], before, after]))
"""
MEMORY = "RssAnon", "RssFile"  # its own, and mapped from files


def upkeep(room: Path, items: int, churned: int, opens: int, progress: Progress) -> dict[str, Any]:
    """Opens a collection of so many items, and compacts one that lost half and had a third replaced."""
    filled(room / "large", items, progress).close()
    progress(f"opening {items:,} items")
    found = {"items": items, "same": opened_here(room / "large", opens), "fresh": opened_afresh(room / "large", opens)}
    churns = []
    for count in sorted({min(SEARCHED, churned), churned}):
        progress(f"deleting, replacing and compacting {count:,} items")
        churns.append(churn(room / f"churn {count}", count, every=count <= SEARCHED))
    return {"open": found, "churn": churns, "wrong": sum(c["wrong"] for c in churns)}


def features(rows: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, DIM), dtype=np.float32)


def filled(path: Path, items: int, progress: Progress) -> stillhash.Collection:
    collection = stillhash.open(path, DIM, BITS)
    collection.fit(features(SAMPLE, 0))
    for start in range(0, items, STEP):
        progress(f"{start:,} of {items:,} items")
        ids = range(start, min(start + STEP, items))
        collection.add(ids, features(len(ids), start))
    return collection


# ---- opening ----


def opened_here(path: Path, opens: int) -> dict[str, float]:
    """By a process that has opened it before, to write and to read."""
    spent: dict[str, list[float]] = {"write_ms": [], "read_ms": []}
    for _ in range(opens):
        for name, times in spent.items():
            start = time.perf_counter()
            collection = stillhash.open(path, read_only=name == "read_ms")
            times.append(1e3 * (time.perf_counter() - start))
            collection.close()
    return {name: statistics.median(times) for name, times in spent.items()}


def opened_afresh(path: Path, opens: int) -> dict[str, Any]:
    """By processes that were just started; the time of imports is not part of it."""
    command = [sys.executable, "-c", FRESH, str(path), str(DIM), *MEMORY]
    told = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(max(2, opens // 3))
    ]
    names = "open_ms", "first_search_ms", "second_search_ms"
    _, _, _, index_bytes, before, after = told[-1]
    grown = {name: None if a is None else a - b for name, b, a in zip(MEMORY, before, after, strict=True)}
    medians = {name: statistics.median(line[i] for line in told) for i, name in enumerate(names)}
    return {**medians, "processes": len(told), "index_bytes": index_bytes, "memory_grown": grown}


# ---- deleting and replacing ----


def churn(path: Path, count: int, *, every: bool) -> dict[str, Any]:
    """Deletes half, replaces 30 % of the rest, and compacts; with `every`, one search asks for all items."""
    with stillhash.open(path, DIM, BITS) as collection:
        collection.fit(features(SAMPLE, 0))
        order = np.random.default_rng(count).permutation(count).tolist()
        gone, live = order[: count // 2], order[count // 2 :]
        again = live[: 3 * len(live) // 10]
        for turn, ids in enumerate((list(range(count)), again)):
            for some in parts(ids):
                collection.upsert(some, features(len(some), turn), None, [{"turn": turn}] * len(some), learn=False)
            if turn == 0:
                for some in parts(gone):
                    collection.delete(some)
        wanted = dict.fromkeys(live, 0) | dict.fromkeys(again, 1)
        wrong, before = amiss(collection, wanted, gone, every), collection.stats()
        start = time.perf_counter()
        collection.compact()
        seconds = time.perf_counter() - start
        wrong += amiss(collection, wanted, gone, every) + len(collection.verify())
        after = collection.stats()
    sizes = {name: {"before": before[name], "after": after[name]} for name in ("disk_bytes", "index_bytes")}
    return {"items": count, "live": len(live), "searched": every, "wrong": wrong, "seconds": seconds, **sizes}


def parts(ids: list[int]) -> Iterator[list[int]]:
    return (ids[s : s + STEP] for s in range(0, len(ids), STEP))


def amiss(collection: stillhash.Collection, wanted: dict[int, int], gone: list[int], every: bool) -> int:
    """How many items are lost, altered, not gone, or out of a search's reach."""
    wrong = abs(collection.count() - len(wanted))
    for some in parts(list(wanted)):
        found = collection.get(some)
        wrong += sum(
            item is None or item.metadata != {"turn": wanted[id_]} for id_, item in zip(some, found, strict=True)
        )
    wrong += sum(item is not None for some in parts(gone) for item in collection.get(some))
    if every:
        hits = [hit.id for hit in collection.search(features(1, 9)[0], 2 * len(wanted)).hits]
        wrong += len(set(hits) ^ set(wanted)) + len(hits) - len(set(hits))
    return wrong


# ---- showing ----


def show_kept(result: dict[str, Any], console: Console) -> None:
    found = result["open"]
    same, fresh = found["same"], found["fresh"]
    grown = ("-" if size is None else f"{size / 1e6:.0f}" for size in fresh["memory_grown"].values())
    print_table(
        console,
        f"Opening {found['items']:,} items, b = {BITS}: median ms, and MB that the first searches take",
        ("to write", "to read", "fresh process", "first search", "second", "index", "own memory", "mapped"),
        [
            (
                *(f"{ms:.1f}" for ms in (same["write_ms"], same["read_ms"], fresh["open_ms"])),
                f"{fresh['first_search_ms']:.0f}",
                f"{fresh['second_search_ms']:.1f}",
                f"{fresh['index_bytes'] / 1e6:.0f}",
                *grown,
            )
        ],
    )
    print_table(
        console,
        "Half deleted, 30 % of the rest replaced, then compacted: MB before and after",
        ("items", "live", "amiss", "disk", "after", "index", "after", "seconds"),
        [
            (
                f"{c['items']:,}",
                f"{c['live']:,}",
                f"{c['wrong']}",
                *(
                    f"{c[name][when] / 1e6:.2f}"
                    for name in ("disk_bytes", "index_bytes")
                    for when in ("before", "after")
                ),
                f"{c['seconds']:.2f}",
            )
            for c in result["churn"]
        ],
    )
