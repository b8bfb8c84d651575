"""What durability costs: writes against bare SQLite on the same disk, opening large collections, and upkeep.

All of it is timed by the clock on the wall, since waiting for the disk is what is measured. Contenders take turns, each
with files of its own in one temporary folder. "Bare" is SQLite with the same promise (WAL, synchronous=FULL), which
commits ready-made rows to a table like ours; what `add` takes beyond it is checks, JSON, encoding and bookkeeping.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import stillhash
from stillhash.bench.store_upkeep import show_kept, upkeep
from stillhash.bench.timing import (
    Contender,
    Progress,
    Times,
    goal,
    interleaved,
    print_frame,
    ratio,
    silent,
    spread,
)
from stillhash.errors import InvalidInput
from stillhash.experiments.machine import machine
from stillhash.experiments.tables import print_table
from stillhash.numeric.validation import Floats, check_integer

BITS = 64
ONE_ROW_DIM = 1280
DIMS = (128, 1280)
CHUNK = 1000  # rows of an `add`
CHUNKS = 140  # more rows than a tail holds, so that sealing is part of it
DISTINCT = 8  # chunks of features that take turns
SAMPLE = 500  # rows that fix the hash functions
OPENS = 15  # in this process, and a third of it in fresh ones
CHURNED = 200_000  # items that are deleted and replaced
LEAST = 1000  # items


def run(
    repeats: int = 200,
    quick: bool = False,
    progress: Progress = silent,
    *,
    folder: Path | None = None,
    items: int = 1_000_000,
) -> dict[str, Any]:
    """Times so many one-row commits, chunks, opening a collection of `items`, and what deleting leaves behind.

    `folder` is on the disk that is measured; a temporary folder within it is made, and removed.
    """
    check_integer(repeats, "repeats", 1)
    check_integer(items, "items", LEAST)
    if folder is not None and not folder.is_dir():
        raise InvalidInput(f"folder is {str(folder)!r}; a folder that is there is wanted")
    churned, chunks, opens = min(items, CHURNED), CHUNKS, OPENS
    if quick:
        repeats, items, churned, chunks, opens = min(repeats, 5), LEAST, LEAST, 2, 2
    here = machine()
    with tempfile.TemporaryDirectory(prefix=".stillhash-bench-", dir=folder or Path.cwd()) as made:
        room = Path(made)
        progress(f"{repeats:,} one-row commits of each contender")
        one = one_row(room, 64 if quick else ONE_ROW_DIM, repeats)
        rows = []
        for dim in (16, 64) if quick else DIMS:
            progress(f"{chunks * CHUNK:,} rows of {dim} dimensions in chunks of {CHUNK:,}")
            rows.append(ingest(room, dim, chunks))
        kept = upkeep(room, items, churned, opens, progress)
    goals = [
        goal("one-row add over a bare commit, p50, ms", "<= 1", one["p50_over_bare_ms"]["add"]),
        *(goal(f"rows/s in chunks of {CHUNK:,}, D = {r['columns']}", ">= 60000", r["rows_per_second"]) for r in rows),
        goal("opening in a fresh process, p50, ms", "<= 100", kept["open"]["fresh"]["open_ms"]),
        goal("items lost, altered or out of reach", "<= 0", kept["wrong"] + sum(r["wrong"] for r in rows)),
    ]
    return {"machine": here, "quick": quick, "one_row": one, "rows": rows, **kept, "goals": goals}


# ---- contenders ----


def fitted(path: Path, dim: int) -> stillhash.Collection:
    """An empty collection whose hash functions are fixed."""
    collection = stillhash.open(path, dim, BITS)
    collection.fit(features(SAMPLE, dim))
    return collection


def features(rows: int, dim: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, dim), dtype=np.float32)


def described(rows: int) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """Labels, one to three of eighty a row, and metadata."""
    labels = [[f"label {(r * step) % 80}" for step in (1, 7, 31)[: 1 + r % 3]] for r in range(rows)]
    return labels, [{"year": 1990 + r % 30, "title": f"photo {r}"} for r in range(rows)]


def bare(path: Path) -> sqlite3.Connection:
    """SQLite alone, with the promise and the columns that a collection has."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE items (row INTEGER PRIMARY KEY, id UNIQUE, labels TEXT, metadata TEXT, code BLOB)")
    return connection


def committing(connection: sqlite3.Connection, rows: int) -> Contender:
    """Commits so many new rows, which are made ready beforehand but for their ids."""
    told = [tuple(map(json.dumps, pair)) for pair in zip(*described(rows), strict=True)]
    numbers = count()

    def commit(_: int) -> None:
        new = [(number, f"item {number}", *text, b"8 bytes.") for text in told for number in [next(numbers)]]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", new)
        connection.execute("COMMIT")

    return commit


def adding(collection: stillhash.Collection, chunks: list[Floats], *, learn: bool) -> Contender:
    """Adds one chunk after another under new ids."""
    labels, metadata = described(len(chunks[0]))
    turns = count()

    def add(_: int) -> None:
        turn = next(turns)
        ids = [f"item {number}" for number in range(turn * len(labels), (turn + 1) * len(labels))]
        collection.add(ids, chunks[turn % len(chunks)], labels, metadata, learn=learn)

    return add


# ---- measuring ----


def one_row(room: Path, dim: int, repeats: int) -> dict[str, Any]:
    """Single rows, each a commit: without and with a lesson that waits, beside a bare commit."""
    row = [features(1, dim, seed=1)]
    plain, taught = fitted(room / "one", dim), fitted(room / "one taught", dim)
    connection = bare(room / "bare.db")
    contenders = {
        "bare": committing(connection, 1),
        "add": adding(plain, row, learn=False),
        "add, to learn": adding(taught, row, learn=True),
    }
    times = interleaved(contenders, repeats, wall=True)
    for opened in (plain, taught, connection):
        opened.close()
    quantiles = {name: [float(ms) for ms in np.quantile(times[name], [0.5, 0.99]) * 1e3] for name in times}
    return {
        "columns": dim,
        "bits": BITS,
        "commits": repeats,
        "p50_ms": {name: p50 for name, (p50, _) in quantiles.items()},
        "p99_ms": {name: p99 for name, (_, p99) in quantiles.items()},
        "p50_over_bare_ms": {name: quantiles[name][0] - quantiles["bare"][0] for name in times},
        **{f"{name}/bare": ratio(times, name, "bare") for name in times},
    }


def ingest(room: Path, dim: int, chunks: int) -> dict[str, Any]:
    """Rows with labels and metadata, without learning: beside the encoding in it, and SQLite in its stead."""
    some = [features(CHUNK, dim, seed) for seed in range(min(DISTINCT, chunks))]
    collection, connection = fitted(room / f"chunks {dim}", dim), bare(room / f"bare {dim}.db")
    hasher = stillhash.METHODS[collection.stats()["method"]](BITS).fit(features(SAMPLE, dim))
    contenders: dict[str, Contender] = {
        "add": adding(collection, some, learn=False),
        "encode": lambda turn: hasher.encode(some[turn % len(some)]),
        "bare": committing(connection, CHUNK),
    }
    times = interleaved(contenders, chunks, wall=True)
    labels, metadata = described(CHUNK)
    found = collection.get([f"item {chunks * CHUNK + r}" for r in range(CHUNK)])
    wrong = abs(collection.count() - (chunks + 1) * CHUNK)  # the warm-up was a chunk too
    wrong += sum(item is None or item.metadata != metadata[r] for r, item in enumerate(found))
    wrong += sum(item is None or item.labels != sorted(set(labels[r])) for r, item in enumerate(found))
    collection.close()
    connection.close()
    return {"columns": dim, "bits": BITS, "chunks": chunks, "wrong": wrong, **ingest_figures(times)}


def ingest_figures(times: Times) -> dict[str, Any]:
    """Sums, not medians: what is done once in many chunks counts too."""
    seconds = {name: sum(spent) for name, spent in times.items()}
    return {
        "ms": {name: spent / len(times[name]) * 1e3 for name, spent in seconds.items()},
        "rows_per_second": CHUNK * len(times["add"]) / seconds["add"],
        "encoding_share": seconds["encode"] / seconds["add"],
        "add/bare": ratio(times, "add", "bare"),
    }


# ---- showing ----


def show(result: dict[str, Any], console: Console) -> None:
    one = result["one_row"]
    print_table(
        console,
        f"{one['commits']:,} durable commits of one row, D = {one['columns']}, b = {one['bits']}: ms, and ratios",
        ("", "p50", "p99", "p50 over bare", "/ bare"),
        [
            (
                name,
                *(f"{one[key][name]:.2f}" for key in ("p50_ms", "p99_ms", "p50_over_bare_ms")),
                spread(one[f"{name}/bare"]),
            )
            for name in one["p50_ms"]
        ],
    )
    print_table(
        console,
        f"Chunks of {CHUNK:,} rows with labels and metadata: mean ms a chunk",
        ("D", "chunks", "add", "encode", "bare SQLite", "rows/s", "encoding", "add / bare"),
        [
            (
                f"{r['columns']}",
                f"{r['chunks']}",
                *(f"{r['ms'][name]:.1f}" for name in ("add", "encode", "bare")),
                f"{r['rows_per_second']:,.0f}",
                f"{r['encoding_share']:.0%}",
                spread(r["add/bare"]),
            )
            for r in result["rows"]
        ],
    )
    show_kept(result, console)
    print_frame(result, console)
