"""Time MIWQ, and the index that chooses between tables and scan, against the scan of the same tiles.

One query at a time, one thread. First random histories of additions, removals and merges are compared with brute
force, ties included; then at each size the answers of all contenders with each other. Ratios of single queries are
judged, even the largest, so each is the median of many rounds, each round compared with itself. That withstands
spikes and slow spells alike; by the best of a few rounds, a scan seems up to 1.5 times as slow as itself. Smaller
sizes are parts of the same tiles, and tables build themselves as they do in use.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape

from stillhash.bench.fixtures import WEIGHT_KINDS, make_codes
from stillhash.bench.miwq_exactness import compare_histories
from stillhash.bench.miwq_plot import SEARCHED_K, check_plot, draw_crossover, short_count
from stillhash.bench.timing import CODE_LENGTHS, Quartiles, goal, quartiles
from stillhash.errors import InvalidInput
from stillhash.experiments.tables import ReportProgress, TableData, format_table, silent
from stillhash.numeric.codes import TILE, Tiles
from stillhash.numeric.validation import Floats, check_integer
from stillhash.search import MIWQ, Index, Scan
from stillhash.search.code_index import CodeIndex
from stillhash.search.index import measure_costs

TIMED_ROUNDS = 9  # of all queries
SHORT_QUERY_CODES, SHORT_QUERY_ROUNDS = 3_000_000, 25  # below so many codes queries are short, and noise larger
SWEEP_CODES = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
MIN_MIWQ_CODES = 5000  # from 4096 on, MIWQ builds its tables by itself
BYTES_PER_CODE = 150  # that a code of 96 bits takes while its tables are built
GOAL_CODES = 10_000_000
SPEED_GOALS = {32: ">= 8", 64: ">= 1.5"}  # scan / MIWQ, learnt, k = 10

Seconds = NDArray[np.float64]


def run(
    repeats: int = 15,
    quick: bool = False,
    progress: ReportProgress = silent,
    *,
    codes: tuple[int, ...] = (1_000_000, 10_000_000),
    plot: Path | None = None,
    cases: int = 20_000,
) -> dict[str, Any]:
    """Compare `cases` queries with brute force, and time two queries a repeat at each number of codes.

    `plot` is where a picture of the crossover goes; with it, the sweep over sizes that it shows is timed too.
    """
    sizes = sorted({check_integer(count, "codes", MIN_MIWQ_CODES) for count in codes})
    queries = 2 * check_integer(repeats, "repeats", 1)
    check_integer(cases, "cases", 1)
    if quick:
        sizes, queries, cases = [8000], min(queries, 4), min(cases, 300)
    if plot is not None:
        check_plot(plot)
    sizes, skipped = fit_in_memory(sizes)
    sweep = [MIN_MIWQ_CODES, *sizes] if quick else [count for count in SWEEP_CODES if count <= sizes[-1]]
    progress(f"comparing {cases:,} queries with brute force")
    exactness = compare_histories(cases)
    rows, tables, crossover = [], [], []
    for bits in CODE_LENGTHS:
        for kind in WEIGHT_KINDS:
            progress(f"b = {bits}, {kind}: making {sizes[-1]:,} codes")
            tiles, weights = make_codes(kind, bits, sizes[-1], queries, quick=quick)
            for count in sizes:
                progress(f"b = {bits}, {kind}, {count:,} codes: timing")
                costs, timed = contest(tiles, count, weights)
                tables.append({"weights": kind, **costs})
                rows += [{"weights": kind, **row} for row in timed]
            if plot is not None and kind == "learnt":
                for count in sweep:
                    progress(f"b = {bits}, sweep: {count:,} codes")
                    crossover += sweep_size(tiles, count, weights[: max(4, queries // 2)])
    result = {
        "sizes": sizes,
        "skipped": skipped,
        "exactness": exactness,
        "rows": rows,
        "tables": tables,
        "crossover": crossover,
        "plot": None if plot is None else str(plot),
    }
    if plot is not None:
        draw_crossover(crossover, plot)
    return {**result, "goals": goals_of(result, sizes[-1] if quick else GOAL_CODES)}


def goals_of(result: dict[str, Any], most: int) -> list[dict[str, Any]]:
    """Set goals: of speed-up and build at `most` codes, of the choice at each size."""
    rows, exactness = result["rows"], result["exactness"]
    goals = [
        goal(f"hits unlike brute force, {exactness['cases']:,} queries", "<= 0", exactness["wrong_hits"]),
        goal("timed queries with unlike answers", "<= 0", sum(row["unlike"] for row in rows)),
    ]
    for row in rows:
        if row["codes"] == most and row["weights"] == "learnt" and row["k"] == 10 and row["bits"] in SPEED_GOALS:
            name = f"scan / MIWQ, {short_count(most)} x {row['bits']}, learnt, k = 10"
            goals.append(goal(name, SPEED_GOALS[row["bits"]], row["scan/miwq"]["median"]))
    for count in result["sizes"]:
        for bits in CODE_LENGTHS:
            here = [row for row in rows if row["codes"] == count and row["bits"] == bits]
            p90 = float(np.quantile([each for row in here for each in row["each index/best"]], 0.9))
            goals.append(goal(f"Index / best, p90, {short_count(count)} x {bits}", "<= 1.3", p90))
            most_of_scan = max(row["index/scan"] for row in here)
            goals.append(goal(f"Index / scan, max, {short_count(count)} x {bits}", "<= 1.4", most_of_scan))
    build = [table["build_seconds"] for table in result["tables"] if (table["codes"], table["bits"]) == (most, 64)]
    return goals + ([goal(f"build {short_count(most)} x 64, seconds", "<= 15", max(build))] if build else [])


def fit_in_memory(sizes: list[int]) -> tuple[list[int], list[int]]:
    """Split the sizes into those that fit in memory and the others."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return sizes, []
    fit = [count for count in sizes if count * BYTES_PER_CODE <= available]
    if not fit:
        raise InvalidInput(
            f"codes: expected at most {available // BYTES_PER_CODE} by the memory available, got {sizes[0]}"
        )
    return fit, sizes[len(fit) :]


# ---- speed ----


def contest(tiles: Tiles, count: int, weights: Floats) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure what tables over the first `count` codes cost, and time the contenders for each k."""
    bits = weights.shape[1]
    scan, miwq, index = Scan(bits, threads=1), MIWQ(bits, threads=1), Index(bits, threads=1)
    _, build, _ = (fill_index(each, tiles, count) for each in (scan, miwq, index))
    state = miwq.state
    assert state.tables is not None, "MIWQ builds tables from MIN_MIWQ_CODES codes on"
    start = time.process_time()
    measure_costs(state.blocks, state.tables, bits)
    costs = {
        "codes": count,
        "bits": bits,
        "tables": len(state.tables.parts),
        "build_seconds": build,
        "bytes_per_code": state.tables.nbytes / count,
        "calibration_seconds": time.process_time() - start,
        "index_has_tables": index.planner.costs is not None,
    }
    contenders = {"scan": scan, "miwq": miwq, "index": index}
    rows = []
    for k in SEARCHED_K:
        unlike = sum(len({hit_bytes(each, w, k) for each in contenders.values()}) > 1 for w in weights)
        times = time_rounds(contenders, weights, k, TIMED_ROUNDS if count >= SHORT_QUERY_CODES else SHORT_QUERY_ROUNDS)
        over = np.median(times["index"] / np.minimum(times["scan"], times["miwq"]), axis=0)
        plans = [index.explain_plan(w, k)[0] for w in weights]
        rows.append(
            {
                "codes": count,
                "bits": bits,
                "k": k,
                "ms": {name: 1e3 * float(np.median(seconds)) for name, seconds in times.items()},
                "scan/miwq": paired(times["scan"], times["miwq"]),
                "index/best": dict(zip(("p50", "p90", "max"), np.quantile(over, [0.5, 0.9, 1]).tolist(), strict=True)),
                "index/scan": float(np.median(times["index"] / times["scan"], axis=0).max()),
                "queries": len(weights),
                "on_tables": sum(plan["path"] == "tables" for plan in plans),
                "why": sorted({plan["why"] for plan in plans}),
                "unlike": unlike,
                "exact": unlike == 0,
                "each index/best": over.tolist(),
            }
        )
    return costs, rows


def sweep_size(tiles: Tiles, count: int, weights: Floats) -> list[dict[str, Any]]:
    """Time the scan against MIWQ at one size, for each k."""
    bits = weights.shape[1]
    scan, miwq = Scan(bits, threads=1), MIWQ(bits, threads=1)
    for index in (scan, miwq):
        fill_index(index, tiles, count)
    points = []
    for k in SEARCHED_K:
        times = time_rounds({"scan": scan, "miwq": miwq}, weights, k, TIMED_ROUNDS // 3)
        points.append({"codes": count, "bits": bits, "k": k, "scan/miwq": paired(times["scan"], times["miwq"])})
    return points


def fill_index(index: CodeIndex, tiles: Tiles, count: int) -> float:
    """Add the first `count` codes, wait for tables built in the background, and return the CPU seconds of both."""
    start = time.process_time()
    index.add_tiles(tiles[: -(-count // TILE)], count)
    if isinstance(index, MIWQ):
        index.wait_for_merge()
    return time.process_time() - start


def hit_bytes(index: CodeIndex, weights: Floats, k: int) -> bytes:
    scores, ids = index.search(weights, k)
    return scores.tobytes() + ids.tobytes()


def time_rounds(
    indexes: dict[str, CodeIndex], weights: Floats, k: int, rounds: int, seed: int = 0
) -> dict[str, Seconds]:
    """Return CPU seconds (rounds, queries) of contenders that take turns in shuffled order.

    A scan empties the cache for the next contender. So before each timed query a contender answers the one before it,
    untimed: it finds the cache as it leaves it itself.
    """
    shuffle = random.Random(seed).shuffle
    order = list(indexes)
    times = {name: np.empty((rounds, len(weights))) for name in order}
    for place in np.ndindex(rounds, len(weights)):
        shuffle(order)
        for name in order:
            indexes[name].search(weights[place[1] - 1], k)
            start = time.process_time()
            indexes[name].search(weights[place[1]], k)
            times[name][place] = time.process_time() - start
    return times


def paired(a: Seconds, b: Seconds) -> Quartiles:
    """Return how many times as long as b a took: quartiles over queries of each one's median over rounds."""
    return quartiles(np.median(a / b, axis=0))


def tables(result: dict[str, Any]) -> list[TableData | str]:
    exactness = result["exactness"]
    queries = """N: {count} | b: {bits} | weights: {weights} | k: {k} | scan: {ms[scan]:.2f} | MIWQ: {ms[miwq]:.2f} |
        Index: {ms[index]:.2f} | scan / MIWQ: {scan/miwq} |
        Index / best: {index/best[p50]:.2f} {index/best[p90]:.2f} {index/best[max]:.2f} | / scan: {index/scan:.2f} |
        tables: {on_tables}/{queries}"""
    costs = """N: {count} | b: {bits} | weights: {weights} | tables: {tables} | build: {build_seconds:.2f} |
        calibration: {calibration_seconds:.2f} | bytes: {bytes_per_code:.1f} | Index has them: {index_has_tables}"""
    title = "One query, one thread: ms, and ratios of times (median with quartiles; p50, p90, max)"
    costs_title = "Tables: CPU seconds to build and to calibrate, bytes a code beside the tiles"
    return [
        f"MIWQ after {exactness['histories']:,} random histories: {exactness['wrong_hits']} of {exactness['hits']:,} "
        f"hits of {exactness['cases']:,} queries differ from brute force; {exactness['tied_hits']:,} are ties.\n",
        format_table(title, queries, in_order(result["rows"])),
        format_table(costs_title, costs, in_order(result["tables"])),
        *(f"[dim]{count:,} codes were left out: too little memory.[/]" for count in result["skipped"]),
        *([f"Crossover: {escape(result['plot'])}"] if result["plot"] else []),
    ]


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort by size and code length, which leaves kinds and k as they are, and add the short count."""
    ordered = sorted(rows, key=lambda row: (row["codes"], row["bits"]))
    return [row | {"count": short_count(row["codes"])} for row in ordered]
