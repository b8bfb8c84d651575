"""Time durable writes against bare SQLite on the same disk, opening large collections, and compacting.

All of it is timed by the wall clock, since waiting for the disk is what is measured. Contenders take turns, each with
files of its own in one temporary folder. "Bare" is SQLite with the same durability (WAL, synchronous=FULL), which
commits prepared rows to a table like ours; what `add` takes beyond it is validation, JSON, encoding and bookkeeping.
"""

from __future__ import annotations

import json
import sqlite3
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import stillhash
from stillhash.bench import store_upkeep
from stillhash.bench.fixtures import random_features
from stillhash.bench.timing import CODE_BITS, Contender, Times, goal, interleaved, ratio, temporary_folder
from stillhash.experiments.tables import ReportProgress, TableData, format_table, silent
from stillhash.numeric.validation import Floats, check_integer

ONE_ROW_DIM = 1280
CHUNK_DIMS = (128, 1280)
STORE_CHUNK = 1000  # rows of an `add`
STORE_CHUNKS = 140  # more rows than stay unsealed, so that sealing is part of it
FEATURE_CHUNKS = 8  # chunks of features that take turns
STORE_FIT_ROWS = 500  # rows that fix the hash functions
OPEN_REPEATS = 15  # in this process, and a third of it in new ones
MAX_CHURNED_ITEMS = 200_000  # items that are deleted and replaced
MIN_STORE_ITEMS = 1000


def run(
    repeats: int = 200,
    quick: bool = False,
    progress: ReportProgress = silent,
    *,
    folder: Path | None = None,
    items: int = 1_000_000,
) -> dict[str, Any]:
    """Time so many one-row commits, chunks, opening a collection of `items`, and compacting.

    `folder` is on the disk to measure.
    """
    check_integer(repeats, "repeats", 1)
    check_integer(items, "items", MIN_STORE_ITEMS)
    churned, chunks, opens = min(items, MAX_CHURNED_ITEMS), STORE_CHUNKS, OPEN_REPEATS
    if quick:
        repeats, items, churned, chunks, opens = min(repeats, 5), MIN_STORE_ITEMS, MIN_STORE_ITEMS, 2, 2
    with temporary_folder(folder) as temporary:
        progress(f"{repeats:,} one-row commits of each contender")
        one = time_single_rows(temporary, 64 if quick else ONE_ROW_DIM, repeats)
        rows = []
        for dim in (16, 64) if quick else CHUNK_DIMS:
            progress(f"{chunks * STORE_CHUNK:,} rows of {dim} dimensions in chunks of {STORE_CHUNK:,}")
            rows.append(time_chunks(temporary, dim, chunks))
        upkeep = store_upkeep.measure_upkeep(temporary, items, churned, opens, progress)
    goals = [
        goal("one-row add over a bare commit, p50, ms", "<= 1", one["p50_over_bare_ms"]["add"]),
        *(
            goal(f"rows/s in chunks of {STORE_CHUNK:,}, D = {r['columns']}", ">= 60000", r["rows_per_second"])
            for r in rows
        ),
        goal("opening in a new process, p50, ms", "<= 100", upkeep["open"]["fresh"]["open_ms"]),
        goal("items lost, altered or out of reach", "<= 0", upkeep["wrong"] + sum(r["wrong"] for r in rows)),
    ]
    return {"one_row": one, "rows": rows, **upkeep, "goals": goals}


# ---- contenders ----


def open_fitted(path: Path, dim: int) -> stillhash.Collection:
    """Create an empty collection whose hash functions are fixed."""
    collection = stillhash.open(path, dim, CODE_BITS)
    collection.fit(random_features(STORE_FIT_ROWS, dim, seed=0))
    return collection


def labels_and_metadata(rows: int) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """Make labels, one to three of eighty a row, and metadata."""
    labels = [[f"label {(r * step) % 80}" for step in (1, 7, 31)[: 1 + r % 3]] for r in range(rows)]
    return labels, [{"year": 1990 + r % 30, "title": f"photo {r}"} for r in range(rows)]


def open_sqlite(path: Path) -> sqlite3.Connection:
    """Open SQLite alone, with the durability and the columns of a collection."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE items (row INTEGER PRIMARY KEY, id UNIQUE, labels TEXT, metadata TEXT, code BLOB)")
    return connection


def sqlite_contender(connection: sqlite3.Connection, rows: int) -> Contender:
    """Return a contender that commits so many new rows, prepared but for their ids."""
    texts = [tuple(map(json.dumps, pair)) for pair in zip(*labels_and_metadata(rows), strict=True)]
    numbers = count()

    def commit(_: int) -> None:
        new = [(number, f"item {number}", *text, b"8 bytes.") for text in texts for number in [next(numbers)]]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", new)
        connection.execute("COMMIT")

    return commit


def add_contender(collection: stillhash.Collection, chunks: list[Floats], *, learn: bool) -> Contender:
    """Return a contender that adds one chunk after another under new ids."""
    labels, metadata = labels_and_metadata(len(chunks[0]))
    turns = count()

    def add(_: int) -> None:
        turn = next(turns)
        ids = [f"item {number}" for number in range(turn * len(labels), (turn + 1) * len(labels))]
        collection.add(ids, chunks[turn % len(chunks)], labels, metadata, learn=learn)

    return add


# ---- measuring ----


def time_single_rows(folder: Path, dim: int, repeats: int) -> dict[str, Any]:
    """Time single rows, each a commit: with and without a pending row to learn, beside a bare commit."""
    row = [random_features(1, dim, seed=1)]
    plain, learning = open_fitted(folder / "one", dim), open_fitted(folder / "one learning", dim)
    connection = open_sqlite(folder / "bare.db")
    contenders = {
        "bare": sqlite_contender(connection, 1),
        "add": add_contender(plain, row, learn=False),
        "add, to learn": add_contender(learning, row, learn=True),
    }
    times = interleaved(contenders, repeats, wall=True)
    for opened in (plain, learning, connection):
        opened.close()
    quantiles = {name: [float(ms) for ms in np.quantile(times[name], [0.5, 0.99]) * 1e3] for name in times}
    return {
        "columns": dim,
        "bits": CODE_BITS,
        "commits": repeats,
        "p50_ms": {name: p50 for name, (p50, _) in quantiles.items()},
        "p99_ms": {name: p99 for name, (_, p99) in quantiles.items()},
        "p50_over_bare_ms": {name: quantiles[name][0] - quantiles["bare"][0] for name in times},
        **{f"{name}/bare": ratio(times, name, "bare") for name in times},
    }


def time_chunks(folder: Path, dim: int, chunks: int) -> dict[str, Any]:
    """Time rows with labels and metadata, without learning: beside their encoding alone, and SQLite alone."""
    features = [random_features(STORE_CHUNK, dim, seed) for seed in range(min(FEATURE_CHUNKS, chunks))]
    collection, connection = open_fitted(folder / f"chunks {dim}", dim), open_sqlite(folder / f"bare {dim}.db")
    hasher = stillhash.METHODS[collection.stats()["method"]](CODE_BITS).fit(random_features(STORE_FIT_ROWS, dim, 0))
    contenders: dict[str, Contender] = {
        "add": add_contender(collection, features, learn=False),
        "encode": lambda turn: hasher.encode(features[turn % len(features)]),
        "bare": sqlite_contender(connection, STORE_CHUNK),
    }
    times = interleaved(contenders, chunks, wall=True)
    labels, metadata = labels_and_metadata(STORE_CHUNK)
    items = collection.get([f"item {chunks * STORE_CHUNK + r}" for r in range(STORE_CHUNK)])
    wrong = abs(collection.count() - (chunks + 1) * STORE_CHUNK)  # the warm-up was a chunk too
    wrong += sum(item is None or item.metadata != metadata[r] for r, item in enumerate(items))
    wrong += sum(item is None or item.labels != sorted(set(labels[r])) for r, item in enumerate(items))
    collection.close()
    connection.close()
    return {"columns": dim, "bits": CODE_BITS, "chunks": chunks, "wrong": wrong, **chunk_figures(times)}


def chunk_figures(times: Times) -> dict[str, Any]:
    """Return totals, not medians: what is done once in many chunks counts too."""
    seconds = {name: sum(spent) for name, spent in times.items()}
    return {
        "ms": {name: spent / len(times[name]) * 1e3 for name, spent in seconds.items()},
        "rows_per_second": STORE_CHUNK * len(times["add"]) / seconds["add"],
        "encoding_share": seconds["encode"] / seconds["add"],
        "add/bare": ratio(times, "add", "bare"),
    }


def tables(result: dict[str, Any]) -> list[TableData | str]:
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
    return [
        format_table(title, single, rows),
        format_table(
            f"Chunks of {STORE_CHUNK:,} rows with labels and metadata: mean ms a chunk", chunks, result["rows"]
        ),
        *store_upkeep.tables(result),
    ]
