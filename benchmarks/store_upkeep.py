"""Time opening a collection and its first search, and compacting after deletions and replacements."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

import stillhash
from benchmarks.fixtures import open_fitted, random_features
from benchmarks.timing import CODE_BITS, Figures, Sections, proc_bytes
from stillhash import Collection
from stillhash.experiments.tables import ReportProgress, format_table

UPKEEP_DIM = 32
ROWS_PER_ADD = 100_000
MAX_CHURNED_ITEMS = 200_000  # items that are deleted and replaced
MAX_SEARCHED_ITEMS = 20_000  # of a collection that one search returns all items of
MEMORY_KINDS = "RssAnon", "RssFile"  # its own, and mapped from files

# A program, since a function would load this module before the collection is opened.
OPEN_SCRIPT = """
import json, sys, time
from pathlib import Path
import numpy as np
import stillhash

status = Path("/proc/self/status")
query = np.random.default_rng(1).standard_normal(int(sys.argv[2]), dtype=np.float32)
times = [time.perf_counter()]
collection = stillhash.open(sys.argv[1], read_only=True)
times.append(time.perf_counter())
before = status.read_text() if status.is_file() else ""
for _ in range(2):
    collection.search(query, 10)
    times.append(time.perf_counter())
after = status.read_text() if status.is_file() else ""
print(json.dumps([times, before, after, collection.stats()["index_bytes"]]))
"""

features = partial(random_features, dim=UPKEEP_DIM)


def measure_upkeep(folder: Path, items: int, opens: int, progress: ReportProgress) -> Figures:
    """Open a collection of so many items, and compact one that lost half and had a third replaced."""
    path = folder / "large"
    with open_fitted(path, UPKEEP_DIM) as collection:
        for start in range(0, items, ROWS_PER_ADD):
            progress(f"{start:,} of {items:,} items")
            ids = range(start, min(start + ROWS_PER_ADD, items))
            collection.add(ids, features(len(ids), seed=start))
    progress(f"opening {items:,} items")
    opened = {"items": items, "same": open_here(path, opens), "fresh": open_in_new_processes(path, opens)}
    churns = []
    for count in sorted({min(most, items) for most in (MAX_SEARCHED_ITEMS, MAX_CHURNED_ITEMS)}):
        progress(f"deleting, replacing and compacting {count:,} items")
        churns.append(churn(folder / f"churn {count}", count, search_all=count <= MAX_SEARCHED_ITEMS))
    return {"open": opened, "churn": churns, "wrong": sum(c["wrong"] for c in churns)}


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


def open_in_new_processes(path: Path, opens: int) -> Figures:
    """Time opening by processes that were just started, imports apart."""
    command = [sys.executable, "-c", OPEN_SCRIPT, str(path), str(UPKEEP_DIM)]
    outputs = [json.loads(subprocess.check_output(command)) for _ in range(max(2, opens // 3))]
    medians = 1e3 * np.median([np.diff(times) for times, *_ in outputs], axis=0)
    ms = dict(zip(("open_ms", "first_search_ms", "second_search_ms"), medians.tolist(), strict=True))
    before, after = map(proc_bytes, outputs[-1][1:3])
    grown = {kind: after[kind] - before[kind] if kind in after else None for kind in MEMORY_KINDS}
    return {**ms, "processes": len(outputs), "index_bytes": outputs[-1][3], "memory_grown": grown}


def churn(path: Path, count: int, *, search_all: bool) -> Figures:
    """Delete half, replace 30 % of the rest, and compact; with `search_all`, one search must return all items."""
    with open_fitted(path, UPKEEP_DIM) as collection:
        order = np.random.default_rng(count).permutation(count).tolist()
        deleted, live = order[: count // 2], order[count // 2 :]
        replaced = live[: 3 * len(live) // 10]
        for turn, ids in enumerate((list(range(count)), replaced)):
            for some in batches(ids):
                collection.upsert(some, features(len(some), seed=turn), None, [{"turn": turn}] * len(some), learn=False)
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


def count_wrong(collection: Collection, turns: dict[int, int], deleted: list[int], *, search_all: bool) -> int:
    """Count items lost, altered (`turns` are in their metadata), not deleted, or not returned by a search for all."""
    wrong = abs(collection.count() - len(turns))
    for ids in batches(list(turns)):
        items = zip(ids, collection.get(ids), strict=True)
        wrong += sum(item is None or item.metadata != {"turn": turns[id_]} for id_, item in items)
    wrong += sum(item is not None for ids in batches(deleted) for item in collection.get(ids))
    if search_all:
        hits = [hit.id for hit in collection.search(features(1, seed=9)[0], 2 * len(turns)).hits]
        wrong += len(set(hits) ^ set(turns)) + len(hits) - len(set(hits))
    return wrong


def tables(result: Figures) -> Sections:
    opened = result["open"]
    grown = opened["fresh"]["memory_grown"]
    memory = {name: "-" if size is None else f"{size / 1e6:.0f}" for name, size in grown.items()}
    opening = """to write: {same[write_ms]:.1f} | to read: {same[read_ms]:.1f} | new process: {fresh[open_ms]:.1f} |
        first search: {fresh[first_search_ms]:.0f} | second: {fresh[second_search_ms]:.1f} | index: {index:.0f} |
        own memory: {RssAnon} | mapped: {RssFile}"""
    compacting = """items: {items:,} | live: {live:,} | wrong: {wrong} | disk: {disk_before:.2f} |
        after: {disk_after:.2f} | index: {index_before:.2f} | after: {index_after:.2f} | seconds: {seconds:.2f}"""
    whens = [(name, when) for name in ("disk", "index") for when in ("before", "after")]
    churns = [c | {f"{name}_{when}": c[f"{name}_bytes"][when] / 1e6 for name, when in whens} for c in result["churn"]]
    title = f"Opening {opened['items']:,} items, b = {CODE_BITS}: median ms, and MB that the first searches take"
    churn_title = "Half deleted, 30 % of the rest replaced, then compacted: MB before and after"
    return [
        format_table(title, opening, [opened | memory | {"index": opened["fresh"]["index_bytes"] / 1e6}]),
        format_table(churn_title, compacting, churns),
    ]
