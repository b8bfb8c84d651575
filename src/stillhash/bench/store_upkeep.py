"""Time opening a collection and its first search, and compacting after deletions and replacements."""

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

import stillhash
from stillhash.bench.fixtures import random_features
from stillhash.bench.timing import CODE_BITS
from stillhash.experiments.tables import ReportProgress, TableData, format_table
from stillhash.numeric.validation import Floats

UPKEEP_DIM = 32
UPKEEP_FIT_ROWS = 500  # rows that fix the hash functions
ROWS_PER_ADD = 100_000
MAX_SEARCHED_ITEMS = 20_000  # of a collection that one search returns all items of

# Opens a collection as a process that was just started does, and searches it twice.
OPEN_SCRIPT = """
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
MEMORY_KINDS = "RssAnon", "RssFile"  # its own, and mapped from files


def measure_upkeep(folder: Path, items: int, churned: int, opens: int, progress: ReportProgress) -> dict[str, Any]:
    """Open a collection of so many items, and compact one that lost half and had a third replaced."""
    with stillhash.open(folder / "large", UPKEEP_DIM, CODE_BITS) as collection:
        collection.fit(features(UPKEEP_FIT_ROWS, 0))
        for start in range(0, items, ROWS_PER_ADD):
            progress(f"{start:,} of {items:,} items")
            ids = range(start, min(start + ROWS_PER_ADD, items))
            collection.add(ids, features(len(ids), start))
    progress(f"opening {items:,} items")
    path = folder / "large"
    opened = {"items": items, "same": open_here(path, opens), "fresh": open_in_new_processes(path, opens)}
    churns = []
    for count in sorted({min(MAX_SEARCHED_ITEMS, churned), churned}):
        progress(f"deleting, replacing and compacting {count:,} items")
        churns.append(churn(folder / f"churn {count}", count, search_all=count <= MAX_SEARCHED_ITEMS))
    return {"open": opened, "churn": churns, "wrong": sum(c["wrong"] for c in churns)}


def features(rows: int, seed: int) -> Floats:
    return random_features(rows, UPKEEP_DIM, seed)


# ---- opening ----


def open_here(path: Path, opens: int) -> dict[str, float]:
    """Time opening by a process that has opened it before, to write and to read."""
    spent: dict[str, list[float]] = {"write_ms": [], "read_ms": []}
    for _ in range(opens):
        for name, times in spent.items():
            start = time.perf_counter()
            collection = stillhash.open(path, read_only=name == "read_ms")
            times.append(1e3 * (time.perf_counter() - start))
            collection.close()
    return {name: statistics.median(times) for name, times in spent.items()}


def open_in_new_processes(path: Path, opens: int) -> dict[str, Any]:
    """Time opening by processes that were just started, imports apart."""
    command = [sys.executable, "-c", OPEN_SCRIPT, str(path), str(UPKEEP_DIM), *MEMORY_KINDS]
    outputs = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(max(2, opens // 3))
    ]
    names = "open_ms", "first_search_ms", "second_search_ms"
    _, _, _, index_bytes, before, after = outputs[-1]
    grown = {name: None if a is None else a - b for name, b, a in zip(MEMORY_KINDS, before, after, strict=True)}
    medians = {name: statistics.median(line[i] for line in outputs) for i, name in enumerate(names)}
    return {**medians, "processes": len(outputs), "index_bytes": index_bytes, "memory_grown": grown}


# ---- deleting and replacing ----


def churn(path: Path, count: int, *, search_all: bool) -> dict[str, Any]:
    """Delete half, replace 30 % of the rest, and compact; with `search_all`, one search must return all items."""
    with stillhash.open(path, UPKEEP_DIM, CODE_BITS) as collection:
        collection.fit(features(UPKEEP_FIT_ROWS, 0))
        order = np.random.default_rng(count).permutation(count).tolist()
        deleted, live = order[: count // 2], order[count // 2 :]
        replaced = live[: 3 * len(live) // 10]
        for turn, ids in enumerate((list(range(count)), replaced)):
            for some in batches(ids):
                collection.upsert(some, features(len(some), turn), None, [{"turn": turn}] * len(some), learn=False)
            if turn == 0:
                for some in batches(deleted):
                    collection.delete(some)
        turns = dict.fromkeys(live, 0) | dict.fromkeys(replaced, 1)
        wrong, before = count_wrong(collection, turns, deleted, search_all=search_all), collection.stats()
        start = time.perf_counter()
        collection.compact()
        seconds = time.perf_counter() - start
        wrong += count_wrong(collection, turns, deleted, search_all=search_all) + len(collection.verify())
        after = collection.stats()
    sizes = {name: {"before": before[name], "after": after[name]} for name in ("disk_bytes", "index_bytes")}
    return {"items": count, "live": len(live), "searched": search_all, "wrong": wrong, "seconds": seconds, **sizes}


def batches(ids: list[int]) -> Iterator[list[int]]:
    return (ids[s : s + ROWS_PER_ADD] for s in range(0, len(ids), ROWS_PER_ADD))


def count_wrong(
    collection: stillhash.Collection, turns: dict[int, int], deleted: list[int], *, search_all: bool
) -> int:
    """Count items that are lost, altered, not deleted, or not returned by a search for all of them.

    `turns` maps each id to the turn that its metadata must name.
    """
    wrong = abs(collection.count() - len(turns))
    for ids in batches(list(turns)):
        items = zip(ids, collection.get(ids), strict=True)
        wrong += sum(item is None or item.metadata != {"turn": turns[id_]} for id_, item in items)
    wrong += sum(item is not None for ids in batches(deleted) for item in collection.get(ids))
    if search_all:
        hits = [hit.id for hit in collection.search(features(1, 9)[0], 2 * len(turns)).hits]
        wrong += len(set(hits) ^ set(turns)) + len(hits) - len(set(hits))
    return wrong


def tables(result: dict[str, Any]) -> list[TableData | str]:
    opened = result["open"]
    memory = {
        name: "-" if size is None else f"{size / 1e6:.0f}" for name, size in opened["fresh"]["memory_grown"].items()
    }
    opening = """to write: {same[write_ms]:.1f} | to read: {same[read_ms]:.1f} | new process: {fresh[open_ms]:.1f} |
        first search: {fresh[first_search_ms]:.0f} | second: {fresh[second_search_ms]:.1f} | index: {index:.0f} |
        own memory: {RssAnon} | mapped: {RssFile}"""
    compacting = """items: {items:,} | live: {live:,} | wrong: {wrong} | disk: {disk_before:.2f} |
        after: {disk_after:.2f} | index: {index_before:.2f} | after: {index_after:.2f} | seconds: {seconds:.2f}"""
    whens = [(name, when) for name in ("disk", "index") for when in ("before", "after")]
    churns = [c | {f"{name}_{when}": c[f"{name}_bytes"][when] / 1e6 for name, when in whens} for c in result["churn"]]
    title = f"Opening {opened['items']:,} items, b = {CODE_BITS}: median ms, and MB that the first searches take"
    return [
        format_table(title, opening, [opened | memory | {"index": opened["fresh"]["index_bytes"] / 1e6}]),
        format_table(
            "Half deleted, 30 % of the rest replaced, then compacted: MB before and after", compacting, churns
        ),
    ]
