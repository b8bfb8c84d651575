"""Time durable writes against bare SQLite on the same disk, opening large collections, and compacting after churn.

Beside it: bytes on disk for an item, and memory of searches, by the bits of its rescoring code.

All of it is timed by the wall clock, since waiting for the disk is what is measured. Contenders take turns, each with
files of its own in one temporary folder. "Bare" is SQLite with the same durability (WAL, synchronous=FULL), which
commits prepared rows to a table like ours; what `add` takes beyond it is validation, JSON, encoding and bookkeeping.
"""

import itertools
import json
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import stillhash
from benchmarks.fixtures import COLLECTION_FIT_ROWS, open_fitted, random_features
from benchmarks.ingest import labelled
from benchmarks.timing import (
    CODE_BITS,
    Contender,
    Contenders,
    Figures,
    Sections,
    interleaved,
    mean_ms,
    proc_bytes,
    quantiles_ms,
    ratio,
    temporary_folder,
)
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.numeric.rescoring import RESCORE_BITS
from stillhash.numeric.validation import Floats, check_integer

STORE_CHUNK = 1000  # rows of an `add`
FEATURE_CHUNKS = 8  # chunks of features that take turns
MIN_STORE_ITEMS = 1000
SIZED_CHUNKS = 10  # of each half of a collection whose size is measured


def run(
    quick: bool, progress: ReportProgress, repeats: int = 200, items: int = 1_000_000, folder: Path | None = None
) -> Figures:
    """Time so many one-row commits, chunks, opening a collection of `items` and compacting, on the disk of `folder`."""
    check_integer(items, "items", MIN_STORE_ITEMS)
    # So many chunks are more rows than stay unsealed: sealing is part of it. New processes open a third as often.
    one_row_dim, dims, chunks, opens = 1280, (128, 1280), 140, 15
    if quick:
        one_row_dim, dims, chunks, opens, items = 64, (16, 64), 2, 2, MIN_STORE_ITEMS
    with temporary_folder(folder) as temporary:
        progress(f"{repeats:,} one-row commits of each contender")
        one = time_single_rows(temporary, one_row_dim, repeats)
        rows = []
        for dim in dims:
            progress(f"{chunks * STORE_CHUNK:,} rows of {dim} dimensions in chunks of {STORE_CHUNK:,}")
            rows.append(time_chunks(temporary, dim, chunks))
        upkeep = measure_upkeep(temporary, items, opens, progress)
        progress("sizes by rescore_bits")
        sizes = [measure_size(temporary, one_row_dim, bits, quick=quick) for bits in (0, *RESCORE_BITS)]
    goals = [
        ("one-row add over a bare commit, p50, ms", "<= 1", one["p50_over_bare_ms"]["add"]),
        *((f"rows/s in chunks of {STORE_CHUNK:,}, D = {r['columns']}", ">= 60000", r["rows_per_second"]) for r in rows),
        ("opening in a new process, p50, ms", "<= 100", upkeep["open"]["fresh"]["open_ms"]),
        ("items lost, altered or out of reach", "<= 0", upkeep["wrong"] + sum(r["wrong"] for r in rows)),
    ]
    return {"one_row": one, "rows": rows, **upkeep, "sizes": sizes, "goals": goals}


def labels_and_metadata(rows: int) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """Make labels, one to three of eighty a row, and metadata."""
    labels = [[f"label {(r * step) % 80}" for step in (1, 7, 31)[: 1 + r % 3]] for r in range(rows)]
    return labels, [{"year": 1990 + r % 30, "title": f"photo {r}"} for r in range(rows)]


def open_sqlite(path: Path) -> sqlite3.Connection:
    """Open SQLite alone, with the durability and the columns of a collection."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE items (row INTEGER PRIMARY KEY, id UNIQUE, labels TEXT, metadata TEXT, code BLOB)")
    return connection


def sqlite_contender(connection: sqlite3.Connection, rows: int) -> Contender:
    """Return a contender that commits so many new rows, prepared but for their ids."""
    texts = [tuple(map(json.dumps, pair)) for pair in zip(*labels_and_metadata(rows), strict=True)]
    numbers = itertools.count()

    def commit(_: int) -> None:
        new = [(number, f"item {number}", *text, b"8 bytes.") for text in texts for number in [next(numbers)]]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", new)
        connection.execute("COMMIT")

    return commit


def add_contender(collection: stillhash.Collection, chunks: list[Floats], *, learn: bool) -> Contender:
    """Return a contender that adds one chunk after another under new ids."""
    labels, metadata = labels_and_metadata(len(chunks[0]))
    turns = itertools.count()

    def add(_: int) -> None:
        turn = next(turns)
        ids = [f"item {number}" for number in range(turn * len(labels), (turn + 1) * len(labels))]
        collection.add(ids, chunks[turn % len(chunks)], labels, metadata, learn=learn)

    return add


def time_single_rows(folder: Path, dim: int, repeats: int) -> Figures:
    """Time single rows, each a commit: with and without a pending row to learn, beside a bare commit."""
    row = [random_features(1, dim, seed=1)]
    with (
        open_fitted(folder / "one", dim) as plain,
        open_fitted(folder / "one learning", dim) as learning,
        closing(open_sqlite(folder / "bare.db")) as connection,
    ):
        contenders = {
            "bare": sqlite_contender(connection, 1),
            "add": add_contender(plain, row, learn=False),
            "add, to learn": add_contender(learning, row, learn=True),
        }
        times = interleaved(contenders, repeats, wall=True)
    quantiles = {name: quantiles_ms(seconds) for name, seconds in times.items()}
    p50, p99 = ({name: each[key] for name, each in quantiles.items()} for key in ("p50_ms", "p99_ms"))
    over_bare = {name: ms - p50["bare"] for name, ms in p50.items()}
    ratios = {f"{name}/bare": ratio(times, f"{name}/bare") for name in times}
    about = {"columns": dim, "bits": CODE_BITS, "commits": repeats}
    return {**about, "p50_ms": p50, "p99_ms": p99, "p50_over_bare_ms": over_bare, **ratios}


def time_chunks(folder: Path, dim: int, chunks: int) -> Figures:
    """Time rows with labels and metadata, without learning: beside their encoding alone, and SQLite alone."""
    features = [random_features(STORE_CHUNK, dim, seed) for seed in range(min(FEATURE_CHUNKS, chunks))]
    with (
        open_fitted(folder / f"chunks {dim}", dim) as collection,
        closing(open_sqlite(folder / f"bare {dim}.db")) as connection,
    ):
        method = stillhash.METHODS[collection.stats()["method"]]
        hasher = method(CODE_BITS).fit(random_features(COLLECTION_FIT_ROWS, dim, 0))
        contenders: Contenders = {
            "add": add_contender(collection, features, learn=False),
            "encode": lambda turn: hasher.encode(features[turn % len(features)]),
            "bare": sqlite_contender(connection, STORE_CHUNK),
        }
        times = interleaved(contenders, chunks, wall=True)
        items = collection.get([f"item {chunks * STORE_CHUNK + r}" for r in range(STORE_CHUNK)])
        wrong = abs(collection.count() - (chunks + 1) * STORE_CHUNK)  # the warm-up was a chunk too
    for item, labels, metadata in zip(items, *labels_and_metadata(STORE_CHUNK), strict=True):
        wrong += item is None or item.metadata != metadata or item.labels != sorted(set(labels))
    ms = mean_ms(times)
    speed = {"rows_per_second": STORE_CHUNK / ms["add"] * 1e3, "encoding_share": ms["encode"] / ms["add"]}
    about = {"columns": dim, "bits": CODE_BITS, "chunks": chunks, "wrong": wrong}
    return {**about, "ms": ms, **speed, "add/bare": ratio(times, "add/bare")}


def tables(result: Figures) -> Sections:
    one = result["one_row"]
    keys = {"p50": "p50_ms", "p99": "p99_ms", "over": "p50_over_bare_ms"}
    rows = [
        {"name": name, "ratio": one[f"{name}/bare"], **{key: one[at][name] for key, at in keys.items()}}
        for name in one["p50_ms"]
    ]
    single = ": {name} | p50: {p50:.2f} | p99: {p99:.2f} | p50 over bare: {over:.2f} | / bare: {ratio}"
    chunks = """D: {columns} | chunks: {chunks} | add: {ms[add]:.1f} | encode: {ms[encode]:.1f} |
        bare SQLite: {ms[bare]:.1f} | rows/s: {rows_per_second:,.0f} | encoding: {encoding_share:.0%} |
        add / bare: {add/bare}"""
    title = f"{one['commits']:,} durable commits of one row, D = {one['columns']}, b = {one['bits']}: ms, and ratios"
    chunks_title = f"Chunks of {STORE_CHUNK:,} rows with labels and metadata: mean ms a chunk"
    sections = format_table(title, single, rows), format_table(chunks_title, chunks, result["rows"])
    size = """rescore_bits: {rescore_bits} | disk, bytes an item: {disk_bytes:.0f} | own memory, MB: {RssAnon} |
        mapped, MB: {RssFile}"""
    sizes = [each | _in_megabytes(each["memory_grown"]) for each in result["sizes"]]
    about = result["sizes"][0]
    sizes_title = (
        f"{about['items']:,} items with labels, D = {about['columns']}, b = {CODE_BITS}: disk, and what "
        f"{about['searches']:,} searches add"
    )
    return [*sections, *upkeep_tables(result), format_table(sizes_title, size, sizes)]


def measure_size(folder: Path, dim: int, rescore_bits: int, *, quick: bool) -> Figures:
    """Measure the disk that more items with labels take, and the memory that searches add to a process that reads.

    The first chunk is learnt, so that labels count in the searches. What is on disk beside items does not count.
    """
    path, chunks, searches = folder / f"size {rescore_bits}", 1 if quick else SIZED_CHUNKS, 10 if quick else 1000
    sizes, turns = [], itertools.count()
    for _ in range(2):
        with stillhash.open(path, dim, CODE_BITS, rescore_bits=rescore_bits, init_rows=MIN_STORE_ITEMS) as collection:
            for turn in itertools.islice(turns, chunks):
                features, labels = labelled(STORE_CHUNK, dim, seed=turn)
                ids = range(turn * STORE_CHUNK, (turn + 1) * STORE_CHUNK)
                collection.add(ids, features, labels, learn=turn == 0)
            collection.seal()
        with stillhash.open(path, read_only=True) as collection:
            sizes.append(collection.stats()["disk_bytes"])
    _, *statuses, _ = run_open_script(path, dim, searches)
    about = {"items": 2 * chunks * STORE_CHUNK, "columns": dim, "searches": searches}
    disk = (sizes[1] - sizes[0]) / (chunks * STORE_CHUNK)
    return {"rescore_bits": rescore_bits, **about, "disk_bytes": disk, "memory_grown": memory_grown(*statuses)}


# ---- opening and compacting ----


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
queries = np.random.default_rng(1).standard_normal((int(sys.argv[3]), int(sys.argv[2])), dtype=np.float32)
stillhash.open  # imports what it needs
times = [time.perf_counter()]
collection = stillhash.open(sys.argv[1], read_only=True)
times.append(time.perf_counter())
before = status.read_text() if status.is_file() else ""
for query in queries:
    collection.search(query, 10)
    times.append(time.perf_counter())
after = status.read_text() if status.is_file() else ""
print(json.dumps([times, before, after, collection.stats()["index_bytes"]]))
"""

upkeep_features = partial(random_features, dim=UPKEEP_DIM)


def measure_upkeep(folder: Path, items: int, opens: int, progress: ReportProgress) -> Figures:
    """Open a collection of so many items, and compact one that lost half and had a third replaced."""
    path = folder / "large"
    with open_fitted(path, UPKEEP_DIM) as collection:
        for start in range(0, items, ROWS_PER_ADD):
            progress(f"{start:,} of {items:,} items")
            ids = range(start, min(start + ROWS_PER_ADD, items))
            collection.add(ids, upkeep_features(len(ids), seed=start))
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
    outputs = [run_open_script(path, UPKEEP_DIM, searches=2) for _ in range(max(2, opens // 3))]
    medians = 1e3 * np.median([np.diff(times) for times, *_ in outputs], axis=0)
    ms = dict(zip(("open_ms", "first_search_ms", "second_search_ms"), medians.tolist(), strict=True))
    _, *statuses, index_bytes = outputs[-1]
    grown = memory_grown(*statuses)
    return {**ms, "processes": len(outputs), "index_bytes": index_bytes, "memory_grown": grown}


def run_open_script(path: Path, dim: int, searches: int) -> list[Any]:
    """Return the times, the status before and after the searches, and the bytes of the index."""
    command = [sys.executable, "-c", OPEN_SCRIPT, str(path), str(dim), str(searches)]
    printed: list[Any] = json.loads(subprocess.check_output(command))
    return printed


def memory_grown(before: str, after: str) -> dict[str, int | None]:
    """Return by how many bytes each kind of memory grew, by the status of a process; None where it is not known."""
    first, last = proc_bytes(before), proc_bytes(after)
    return {kind: last[kind] - first[kind] if kind in last else None for kind in MEMORY_KINDS}


def _in_megabytes(grown: dict[str, int | None]) -> dict[str, str]:
    return {name: "-" if size is None else f"{size / 1e6:.0f}" for name, size in grown.items()}


def churn(path: Path, count: int, *, search_all: bool) -> Figures:
    """Delete half, replace 30 % of the rest, and compact; with `search_all`, one search must return all items."""
    with open_fitted(path, UPKEEP_DIM) as collection:
        order = np.random.default_rng(count).permutation(count).tolist()
        deleted, live = order[: count // 2], order[count // 2 :]
        replaced = live[: 3 * len(live) // 10]
        for turn, ids in enumerate((list(range(count)), replaced)):
            for some in batches(ids):
                collection.upsert(
                    some, upkeep_features(len(some), seed=turn), None, [{"turn": turn}] * len(some), learn=False
                )
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
    """Count items lost, altered (`turns` are in their metadata), not deleted, or not returned by a search for all."""
    wrong = abs(collection.count() - len(turns))
    for ids in batches(list(turns)):
        items = zip(ids, collection.get(ids), strict=True)
        wrong += sum(item is None or item.metadata != {"turn": turns[id_]} for id_, item in items)
    wrong += sum(item is not None for ids in batches(deleted) for item in collection.get(ids))
    if search_all:
        hits = [hit.id for hit in collection.search(upkeep_features(1, seed=9)[0], 2 * len(turns)).hits]
        wrong += len(set(hits) ^ set(turns)) + len(hits) - len(set(hits))
    return wrong


def upkeep_tables(result: Figures) -> Sections:
    opened = result["open"]
    memory = _in_megabytes(opened["fresh"]["memory_grown"])
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
