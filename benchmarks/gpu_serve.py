"""Search a server over HTTP by many clients: with its index on a GPU, beside the CPU's scan and the CPU's tables.

A store of 10^8 items would take hours to write. So the collection is small, and its index holds so many random codes
besides, which no query is near enough to: each search has the work of a large collection, and answers with items.
"""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import stillhash
from benchmarks import timing
from benchmarks.fixtures import random_features
from benchmarks.gpu import random_tiles
from benchmarks.serve import CLIENT_THREADS, LoadOutcome, search_all
from benchmarks.timing import CODE_BITS, TOP_K, Figures, Goal, Sections, quantiles_ms
from stillhash.errors import StillhashError
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.numeric.codes import TILE
from stillhash.numeric.validation import Floats, check_integer
from stillhash.search import GpuScan, Index, Scan
from stillhash.server import Settings, serve

GPU_SERVED_DIM = 128
GPU_QUERIES = 256
NEAR_ROWS, NEAR_NOISE = 32, 0.02  # items around each query, and how far from it
FIRST_RANDOM_ID = 1 << 40
LOAD_PROCESSES = 4  # of sixteen clients each
START_SECONDS = 300.0  # for an index to be built


class PlainScan(Scan):
    """The CPU's scan, as an index that a collection accepts."""

    plan = "scan"


INDEXES: dict[str, Callable[[int], Any]] = {"GPU": GpuScan, "CPU scan": PlainScan, "CPU tables": Index}


def run(repeats: int, quick: bool, progress: ReportProgress, codes: int, folder: Path | None = None) -> Figures:
    """Load a server for `repeats` seconds with each index, by one client and by many."""
    count = 1 << 16 if quick else check_integer(codes, "codes", 1 << 12)
    rows = []
    with timing.temporary_folder(folder) as temporary:
        fill(temporary / "served")
        for name in INDEXES:
            rows += measure(temporary / "served", name, count, repeats, progress)
    return {"rows": rows, "goals": [goal for row in rows for goal in goals_of(row)]}


def measure(path: Path, name: str, count: int, seconds: float, progress: ReportProgress) -> list[Figures]:
    """Measure one index, by one process of clients and by several."""
    rows = []
    progress(f"{name}: building an index of {count:,} codes")
    with serving(path, name, count) as url:
        for processes in (1, LOAD_PROCESSES):
            progress(f"{name}: {processes * CLIENT_THREADS} clients for {seconds:g} seconds")
            times, errors = load(url, processes, seconds)
            row: Figures = {"index": name, "codes": count, "clients": processes * CLIENT_THREADS}
            row |= {"per_second": len(times) / seconds, **quantiles_ms(times or [0.0])}
            rows.append(row | {"errors": len(errors), "first_error": next(iter(errors), None)})
    return rows


def served_queries() -> Floats:
    return random_features(GPU_QUERIES, GPU_SERVED_DIM, seed=7)


def fill(path: Path) -> None:
    """Make a small collection with some items around each query."""
    rng = np.random.default_rng(0)
    near = np.repeat(served_queries(), NEAR_ROWS, axis=0)
    near += NEAR_NOISE * rng.standard_normal(near.shape, dtype=np.float32)
    sample = random_features(2000, GPU_SERVED_DIM, seed=8)
    with stillhash.open(path, GPU_SERVED_DIM, CODE_BITS, init=sample) as collection:
        collection.add(range(len(near)), near)


@contextmanager
def serving(path: Path, name: str, count: int) -> Any:
    """Run a server whose index has so many more codes, in a process of its own; yield its address."""
    spawn = get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve_with_codes, args=(path, name, count, there), daemon=True)
    process.start()
    try:
        if not here.poll(START_SECONDS):
            raise StillhashError(f"the server did not start within {START_SECONDS:g} seconds")
        yield here.recv()
    finally:
        process.terminate()
        process.join()


def serve_with_codes(path: Path, name: str, count: int, started: Connection) -> None:
    tiles = random_tiles(count, CODE_BITS)
    rows = len(tiles) * TILE

    def make(bits: int) -> Any:
        index = INDEXES[name](bits)
        index.add_tiles(tiles, rows, np.arange(FIRST_RANDOM_ID, FIRST_RANDOM_ID + rows))
        if isinstance(index, Index):
            index.merge()
        return index

    collection = stillhash.open(path, searcher=make)
    collection.search(served_queries()[0], TOP_K)  # waits for the index
    serve({"served": collection}, Settings(port=0), started.send)
    os._exit(0)


def load(url: str, processes: int, seconds: float) -> LoadOutcome:
    """Search with sixteen clients in each process."""
    times, errors = list[float](), list[str]()
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        runs = [pool.submit(search_all, url, seconds, None, served_queries()) for _ in range(processes)]
        for each in runs:
            more_times, more_errors = each.result()
            times, errors = times + more_times, errors + more_errors
    return times, errors


def goals_of(row: Figures) -> list[Goal]:
    return [(f"errors, {row['index']}, {row['clients']} clients", "<= 0", row["errors"])]


def tables(result: Figures) -> Sections:
    columns = """index: {index} | codes: {codes:,} | clients: {clients} | searches/s: {per_second:,.0f} |
        p50 ms: {p50_ms:.1f} | p99 ms: {p99_ms:.1f} | errors: {errors}"""
    return [format_table(f"Searches over HTTP, b = {CODE_BITS}, k = {TOP_K}", columns, result["rows"])]
