"""Time durable writes against bare SQLite on the same disk, opening large collections, and compacting.

All of it is timed by the wall clock, since waiting for the disk is what is measured. Contenders take turns, each with
files of its own in one temporary folder. "Bare" is SQLite with the same durability (WAL, synchronous=FULL), which
commits prepared rows to a table like ours; what `add` takes beyond it is validation, JSON, encoding and bookkeeping.
"""

import json
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import stillhash
from benchmarks import store_upkeep, timing
from benchmarks.fixtures import COLLECTION_FIT_ROWS, open_fitted, random_features
from benchmarks.timing import CODE_BITS, Contender, Contenders, Figures, Sections
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.numeric.validation import Floats, check_integer

STORE_CHUNK = 1000  # rows of an `add`
FEATURE_CHUNKS = 8  # chunks of features that take turns
MIN_STORE_ITEMS = 1000


def run(repeats: int, quick: bool, progress: ReportProgress, items: int, folder: Path | None = None) -> Figures:
    """Time so many one-row commits, chunks, opening a collection of `items` and compacting, on the disk of `folder`."""
    check_integer(items, "items", MIN_STORE_ITEMS)
    # So many chunks are more rows than stay unsealed: sealing is part of it. New processes open a third as often.
    one_row_dim, dims, chunks, opens = 1280, (128, 1280), 140, 15
    if quick:
        one_row_dim, dims, chunks, opens, items = 64, (16, 64), 2, 2, MIN_STORE_ITEMS
    with timing.temporary_folder(folder) as temporary:
        progress(f"{repeats:,} one-row commits of each contender")
        one = time_single_rows(temporary, one_row_dim, repeats)
        rows = []
        for dim in dims:
            progress(f"{chunks * STORE_CHUNK:,} rows of {dim} dimensions in chunks of {STORE_CHUNK:,}")
            rows.append(time_chunks(temporary, dim, chunks))
        upkeep = store_upkeep.measure_upkeep(temporary, items, opens, progress)
    goals = [
        ("one-row add over a bare commit, p50, ms", "<= 1", one["p50_over_bare_ms"]["add"]),
        *((f"rows/s in chunks of {STORE_CHUNK:,}, D = {r['columns']}", ">= 60000", r["rows_per_second"]) for r in rows),
        ("opening in a new process, p50, ms", "<= 100", upkeep["open"]["fresh"]["open_ms"]),
        ("items lost, altered or out of reach", "<= 0", upkeep["wrong"] + sum(r["wrong"] for r in rows)),
    ]
    return {"one_row": one, "rows": rows, **upkeep, "goals": goals}


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
        times = timing.interleaved(contenders, repeats, wall=True)
    quantiles = {name: timing.quantiles_ms(seconds) for name, seconds in times.items()}
    p50, p99 = ({name: each[key] for name, each in quantiles.items()} for key in ("p50_ms", "p99_ms"))
    over_bare = {name: ms - p50["bare"] for name, ms in p50.items()}
    ratios = {f"{name}/bare": timing.ratio(times, f"{name}/bare") for name in times}
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
        times = timing.interleaved(contenders, chunks, wall=True)
        items = collection.get([f"item {chunks * STORE_CHUNK + r}" for r in range(STORE_CHUNK)])
        wrong = abs(collection.count() - (chunks + 1) * STORE_CHUNK)  # the warm-up was a chunk too
    for item, labels, metadata in zip(items, *labels_and_metadata(STORE_CHUNK), strict=True):
        wrong += item is None or item.metadata != metadata or item.labels != sorted(set(labels))
    ms = timing.mean_ms(times)
    speed = {"rows_per_second": STORE_CHUNK / ms["add"] * 1e3, "encoding_share": ms["encode"] / ms["add"]}
    about = {"columns": dim, "bits": CODE_BITS, "chunks": chunks, "wrong": wrong}
    return {**about, "ms": ms, **speed, "add/bare": timing.ratio(times, "add/bare")}


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
    return [*sections, *store_upkeep.tables(result)]
