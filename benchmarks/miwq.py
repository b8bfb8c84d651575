"""Time MIWQ, and the index that chooses between tables and scan, against the scan of the same tiles.

One query at a time, one thread. First random histories of additions, removals and merges are compared with brute
force, ties included; then at each size the answers of all contenders with each other. Ratios of single queries are
judged, even the largest, so each is the median of many rounds, each round compared with itself. That withstands
spikes and slow spells alike; by the best of a few rounds, a scan seems up to 1.5 times as slow as itself. Smaller
sizes are parts of the same tiles, and tables build themselves as they do in use.
"""

import random
import time
from collections.abc import Iterator, Sequence
from itertools import product
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape

from benchmarks.fixtures import WEIGHT_KINDS, make_codes
from benchmarks.scan import brute_force, count_different
from benchmarks.timing import (
    CODE_LENGTHS,
    Figures,
    Goal,
    Quartiles,
    Sections,
    check_plot,
    hit_bytes,
    proc_bytes,
    quartiles,
)
from stillhash.errors import InvalidInput
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.numeric.codes import TILE, Tiles, width
from stillhash.numeric.validation import Codes, Floats, check_integer
from stillhash.search import MIWQ, Index, Scan
from stillhash.search.blocks import IdArray
from stillhash.search.code_index import CodeIndex
from stillhash.search.index import measure_costs

SEARCHED_K = (1, 10, 100)
TIMED_ROUNDS = 9  # of all queries
SHORT_QUERY_CODES, SHORT_QUERY_ROUNDS = 3_000_000, 25  # below so many codes queries are short, and noise larger
SWEEP_CODES = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
MIN_MIWQ_CODES = 5000  # from 4096 on, MIWQ builds its tables by itself
BYTES_PER_CODE = 150  # that a code of 96 bits takes while its tables are built
GOAL_CODES = 10_000_000
MIWQ_GOALS = {32: ">= 8", 64: ">= 1.5"}  # scan / MIWQ, learnt, k = 10

Seconds = NDArray[np.float64]


def run(
    quick: bool,
    progress: ReportProgress,
    repeats: int = 15,
    codes: Sequence[int] = (1_000_000, 10_000_000),
    cases: int = 20_000,
    plot: Path | None = None,
) -> Figures:
    """Compare `cases` queries with brute force, and time two queries a repeat at each number of codes.

    `plot` is where a picture of the crossover goes; with it, the sweep over sizes that it shows is timed too.
    """
    sizes = sorted({check_integer(count, "codes", MIN_MIWQ_CODES) for count in codes})
    check_integer(cases, "cases", 1)
    if quick:
        sizes, cases = [8000], min(cases, 300)
    check_plot(plot)
    sizes, skipped = fit_in_memory(sizes)
    sweep = [MIN_MIWQ_CODES, *sizes] if quick else [count for count in SWEEP_CODES if count <= sizes[-1]]
    progress(f"comparing {cases:,} queries with brute force")
    exactness = compare_histories(cases)
    rows, tables, crossover = [], [], []
    for bits, kind in product(CODE_LENGTHS, WEIGHT_KINDS):
        progress(f"b = {bits}, {kind}: making {sizes[-1]:,} codes")
        tiles, weights = make_codes(kind, bits, sizes[-1], 2 * repeats, quick=quick)
        for count in sizes:
            progress(f"b = {bits}, {kind}, {count:,} codes: timing")
            costs, timed = contest(tiles, count, weights)
            tables.append({"weights": kind, **costs})
            rows += [{"weights": kind, **row} for row in timed]
        for count in sweep if plot is not None and kind == "learnt" else ():
            progress(f"b = {bits}, sweep: {count:,} codes")
            crossover += sweep_size(tiles, count, weights[: max(4, repeats)])
    if plot is not None:
        draw_crossover(crossover, plot)
    goals = goals_of(rows, tables, sizes, sizes[-1] if quick else GOAL_CODES)
    exact_goal = (f"hits unlike brute force, {exactness['cases']:,} queries", "<= 0", exactness["wrong_hits"])
    about = {"sizes": sizes, "skipped": skipped, "plot": None if plot is None else str(plot), "exactness": exactness}
    return {**about, "rows": rows, "tables": tables, "crossover": crossover, "goals": [exact_goal, *goals]}


def goals_of(rows: list[Figures], tables: list[Figures], sizes: list[int], most: int) -> Iterator[Goal]:
    """Set goals: of speed-up and build at `most` codes, of the choice at each size."""
    yield "timed queries with unlike answers", "<= 0", sum(row["unlike"] for row in rows)
    for row in rows:
        if (row["codes"], row["weights"], row["k"]) == (most, "learnt", 10) and row["bits"] in MIWQ_GOALS:
            name = f"scan / MIWQ, {short_count(most)} x {row['bits']}, learnt, k = 10"
            yield name, MIWQ_GOALS[row["bits"]], row["scan/miwq"]["median"]
    for count, bits in product(sizes, CODE_LENGTHS):
        here = [row for row in rows if (row["codes"], row["bits"]) == (count, bits)]
        p90 = float(np.quantile([each for row in here for each in row["each index/best"]], 0.9))
        yield f"Index / best, p90, {short_count(count)} x {bits}", "<= 1.3", p90
        yield f"Index / scan, max, {short_count(count)} x {bits}", "<= 1.4", max(row["index/scan"] for row in here)
    if build := [table["build_seconds"] for table in tables if (table["codes"], table["bits"]) == (most, 64)]:
        yield f"build {short_count(most)} x 64, seconds", "<= 15", max(build)


def fit_in_memory(sizes: list[int]) -> tuple[list[int], list[int]]:
    """Split the sizes into those that fit in memory and the others."""
    meminfo = Path("/proc/meminfo")
    available = proc_bytes(meminfo.read_text(encoding="utf-8") if meminfo.is_file() else "").get("MemAvailable")
    if available is None:
        return sizes, []
    fit = [count for count in sizes if count * BYTES_PER_CODE <= available]
    if not fit:
        most = available // BYTES_PER_CODE
        raise InvalidInput(f"codes: expected at most {most} by the memory available, got {sizes[0]}")
    return fit, sizes[len(fit) :]


def contest(tiles: Tiles, count: int, weights: Floats) -> tuple[Figures, list[Figures]]:
    """Measure what tables over the first `count` codes cost, and time the contenders for each k."""
    bits = weights.shape[1]
    scan, miwq, index = Scan(bits, threads=1), MIWQ(bits, threads=1), Index(bits, threads=1)
    _, build, _ = (fill_index(each, tiles, count) for each in (scan, miwq, index))
    blocks, tables = miwq.state.blocks, miwq.state.tables
    assert tables is not None, "MIWQ builds tables from MIN_MIWQ_CODES codes on"
    start = time.process_time()
    measure_costs(blocks, tables, bits)
    seconds = {"build_seconds": build, "calibration_seconds": time.process_time() - start}
    size = {"tables": len(tables.parts), "bytes_per_code": tables.nbytes / count}
    costs = {"codes": count, "bits": bits, **size, **seconds, "index_has_tables": index.planner.costs is not None}
    contenders = {"scan": scan, "miwq": miwq, "index": index}
    rounds = TIMED_ROUNDS if count >= SHORT_QUERY_CODES else SHORT_QUERY_ROUNDS
    rows = []
    for k in SEARCHED_K:
        answers = [[hit_bytes(each.search(w, k)) for w in weights] for each in contenders.values()]
        unlike = sum(not a == b == c for a, b, c in zip(*answers, strict=True))
        times = time_rounds(contenders, weights, k, rounds)
        over = np.median(times["index"] / np.minimum(times["scan"], times["miwq"]), axis=0)
        plans = [index.explain_plan(w, k)[0] for w in weights]
        row = {
            "ms": {name: 1e3 * float(np.median(seconds)) for name, seconds in times.items()},
            "scan/miwq": paired(times),
            "index/best": dict(zip(("p50", "p90", "max"), np.quantile(over, [0.5, 0.9, 1]).tolist(), strict=True)),
            "index/scan": float(np.median(times["index"] / times["scan"], axis=0).max()),
            "on_tables": sum(plan["path"] == "tables" for plan in plans),
            "why": sorted({plan["why"] for plan in plans}),
            "each index/best": over.tolist(),
        }
        about = {"codes": count, "bits": bits, "k": k, "queries": len(weights)}
        rows.append({**about, **row, "unlike": unlike, "exact": unlike == 0})
    return costs, rows


def sweep_size(tiles: Tiles, count: int, weights: Floats) -> list[Figures]:
    """Time the scan against MIWQ at one size, for each k."""
    bits = weights.shape[1]
    indexes: dict[str, CodeIndex] = {"scan": Scan(bits, threads=1), "miwq": MIWQ(bits, threads=1)}
    for index in indexes.values():
        fill_index(index, tiles, count)
    times = {k: time_rounds(indexes, weights, k, TIMED_ROUNDS // 3) for k in SEARCHED_K}
    return [{"codes": count, "bits": bits, "k": k, "scan/miwq": paired(times[k])} for k in SEARCHED_K]


def fill_index(index: CodeIndex, tiles: Tiles, count: int) -> float:
    """Add the first `count` codes, wait for tables built in the background, and return the CPU seconds of both."""
    start = time.process_time()
    index.add_tiles(tiles[: -(-count // TILE)], count)
    if isinstance(index, MIWQ):
        index.wait_for_merge()
    return time.process_time() - start


def time_rounds(indexes: dict[str, CodeIndex], weights: Floats, k: int, rounds: int) -> dict[str, Seconds]:
    """Return CPU seconds (rounds, queries) of contenders that take turns in shuffled order.

    A scan empties the cache for the next contender. So before each timed query a contender answers the one before it,
    untimed: it finds the cache as it leaves it itself.
    """
    shuffle, order = random.Random(0).shuffle, list(indexes)
    times = {name: np.empty((rounds, len(weights))) for name in order}
    for place in np.ndindex(rounds, len(weights)):
        shuffle(order)
        for name in order:
            indexes[name].search(weights[place[1] - 1], k)
            start = time.process_time()
            indexes[name].search(weights[place[1]], k)
            times[name][place] = time.process_time() - start
    return times


def paired(times: dict[str, Seconds]) -> Quartiles:
    """Return how many times as long as MIWQ the scan took: quartiles over queries of each one's median over rounds."""
    return quartiles(np.median(times["scan"] / times["miwq"], axis=0))


def tables(result: Figures) -> Sections:
    exactness = result["exactness"]
    rows, builds = (
        [row | {"count": short_count(row["codes"])} for row in sorted(result[name], key=itemgetter("codes", "bits"))]
        for name in ("rows", "tables")
    )
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
        format_table(title, queries, rows),
        format_table(costs_title, costs, builds),
        *(f"[dim]{count:,} codes were left out: too little memory.[/]" for count in result["skipped"]),
        *([f"Crossover: {escape(result['plot'])}"] if result["plot"] else []),
    ]


def short_count(count: int) -> str:
    return f"{count / 1e6:g}M" if count >= 1_000_000 else f"{count / 1e3:g}k"


def draw_crossover(crossover: list[Figures], plot: Path) -> None:
    """Draw how many times as fast as the scan the tables are, over the number of codes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), dpi=150, layout="constrained")
    log = {"xscale": "log", "yscale": "log", "xlabel": "codes"}
    panels = figure.subplots(1, len(SEARCHED_K), sharey=True, subplot_kw=log)
    for panel, k in zip(panels, SEARCHED_K, strict=True):
        panel.axhline(1, color="#374151", linewidth=1, linestyle="--")
        for bits, colour in zip(CODE_LENGTHS, ("#0f766e", "#b45309", "#6d28d9"), strict=True):
            line = [point for point in crossover if (point["bits"], point["k"]) == (bits, k)]
            counts = [point["codes"] for point in line]
            low, median, high = ([point["scan/miwq"][at] for point in line] for at in ("low", "median", "high"))
            panel.fill_between(counts, low, high, color=colour, alpha=0.15, linewidth=0)
            panel.plot(counts, median, "o-", color=colour, linewidth=2, markersize=4)
            style = {"textcoords": "offset points", "va": "center", "color": colour, "weight": "bold"}
            panel.annotate(f"{bits} bits", (counts[-1], median[-1]), xytext=(7, 0), **style)
        panel.set_title(f"k = {k}", loc="left")
        panel.set_xticks(counts, [short_count(count) for count in counts])
        panel.set_xticks([], minor=True)
        panel.set_xlim(right=counts[-1] * (counts[-1] / counts[0]) ** 0.25)  # space for the names
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#e5e7eb", linewidth=0.8)
    panels[0].set_ylabel("scan's time / tables' time")
    figure.suptitle("Above 1 the tables win: learnt codes, one query, one thread, quartiles shaded", x=0.01, ha="left")
    figure.savefig(plot, format="png")


# ---- random histories ----


def compare_histories(cases: int, seed: int = 0) -> dict[str, int]:
    """Count hits that differ from brute force, over so many queries of small indexes after random writes."""
    rng = np.random.default_rng(seed)
    counts = {"cases": 0, "histories": 0, "hits": 0, "tied_hits": 0, "wrong_hits": 0}
    while counts["cases"] < cases:
        index, ids, codes = random_history(rng)
        counts["histories"] += 1
        for _ in range(2):
            weights = random_weights(rng, index.bits)[: cases - counts["cases"]]
            if not len(weights):
                break
            k = int(rng.choice([1, 3, 10, 100, len(ids) + 5]))
            allowed = None
            if rng.random() < 0.5:
                known = min(int(ids.max(initial=0)) + 1, 60_000)  # ids past its end are not allowed
                allowed = rng.random(known) < rng.choice([0.0, 0.05, 0.5, 0.95])
            expected = brute_force(ids, codes, weights, k, allowed)
            hits = index.search(weights, k, allowed=allowed)
            tied = (expected.scores[:, 1:] == expected.scores[:, :-1]) & (expected.ids[:, 1:] >= 0)
            counts["cases"] += len(weights)
            counts["hits"] += int(np.count_nonzero(expected.ids >= 0))
            counts["tied_hits"] += int(np.count_nonzero(tied))
            counts["wrong_hits"] += count_different(hits, expected)
    return counts


def random_history(rng: np.random.Generator) -> tuple[MIWQ, IdArray, Codes]:
    """Return an index after a few random writes and merges, and the rows that it must hold."""
    bits = int(rng.integers(8, 97))
    index = MIWQ(bits, tables=None if rng.random() < 0.7 else int(rng.integers(-(-bits // 12), bits + 1)), threads=1)
    ids, codes, free = np.empty(0, np.int64), np.empty((0, width(bits)), np.uint8), 0
    for step in rng.choice(["add", "add", "named", "remove", "merge", "merge"], int(rng.integers(2, 9))):
        n = int(600 ** rng.random())
        if step == "merge":
            index.merge()
        elif step == "remove":
            removed = rng.choice(np.append(ids, free), min(n, len(ids) + 1), replace=False)  # one never existed
            index.remove(removed)
            rest = ~np.isin(ids, removed)
            ids, codes = ids[rest], codes[rest]
        else:
            names = np.arange(free, free + n)
            if step == "named":  # again, in the gaps that removals left, or far apart
                names = np.setdiff1d(rng.integers(0, rng.choice([free + 2 * n, 50_000, 2**40]), n), ids)
                rng.shuffle(names)
            new = random_codes(rng, len(names), bits)
            index.add(new, names if step == "named" else None)
            ids, codes = np.append(ids, names), np.concatenate([codes, new])
            free = max(free, int(names.max(initial=-1)) + 1)
    return index, ids, codes


def random_codes(rng: np.random.Generator, count: int, bits: int) -> Codes:
    """Make codes of fair coins or near to one code, all different or with many duplicates."""
    ones = rng.random((count, bits)) < rng.choice([0.5, 0.1])
    codes = np.packbits(ones ^ (rng.random(bits) < 0.5), axis=1, bitorder="little")
    return codes if rng.random() < 0.6 or not count else codes[rng.integers(0, min(count, 5), count)]


def random_weights(rng: np.random.Generator, bits: int) -> Floats:
    """Make weights of all sorts: plain, of magnitudes far apart, mostly zero, full of ties, all zero; tiny, or huge."""
    normal = rng.standard_normal((6, bits))
    normal[1] *= 10.0 ** rng.integers(-6, 7, bits)
    normal[2] *= rng.random(bits) < 0.2
    normal[3] = np.sign(normal[3])
    normal[4] = np.rint(normal[4])
    normal[5] *= rng.random() < 0.5
    return np.asarray((normal * rng.choice([1e-25, 1, 1e25])).astype(np.float32))
