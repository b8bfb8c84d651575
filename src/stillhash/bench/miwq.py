"""When tables beat the scan: MIWQ, and the index that chooses, against the scan of the same tiles.

One query at a time, one thread. First random histories of additions, removals and merges are compared with brute
force, ties included; then at each size the answers of all contenders with each other. Ratios of single queries are
judged, even the largest, so each is the median of many rounds, each round compared with itself. That withstands
spikes and slow spells alike; by the best of a few rounds, a scan seems up to 1.5 times as slow as itself. Smaller
sizes are parts of the same tiles, and tables build themselves as they do in use.
"""

from __future__ import annotations

import random
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape

from stillhash.bench.fixtures import KINDS, made
from stillhash.bench.timing import (
    Progress,
    Spread,
    goal,
    print_frame,
    silent,
    spread,
)
from stillhash.errors import InvalidInput, MissingExtra
from stillhash.experiments.machine import machine
from stillhash.experiments.tables import print_table
from stillhash.numeric.codes import TILE, Tiles, signs, width
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.validation import Codes, Floats, check_integer
from stillhash.search import MIWQ, CodeIndex, Hits, Index, Scan
from stillhash.search.blocks import Ids
from stillhash.search.index import measure_costs

BITS = (32, 64, 96)
KS = (1, 10, 100)
ROUNDS = 9  # of all queries
SHORT, SHORT_ROUNDS = 3_000_000, 25  # below so many codes queries are short, and noise is larger beside them
SWEEP = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
LEAST = 5000  # codes; from 4096 on, MIWQ builds its tables unasked
ROOM = 150  # bytes that a code of 96 bits takes while its tables are built
GOAL_CODES = 10_000_000
SPEED_GOALS = {32: ">= 8", 64: ">= 1.5"}  # scan / MIWQ, learnt, k = 10

Allowed = NDArray[np.bool_] | None
Seconds = NDArray[np.float64]


def run(
    repeats: int = 15,
    quick: bool = False,
    progress: Progress = silent,
    *,
    codes: tuple[int, ...] = (1_000_000, 10_000_000),
    plot: Path | None = None,
    cases: int = 20_000,
) -> dict[str, Any]:
    """Compares `cases` queries with brute force, and times two queries a repeat at each number of codes.

    `plot` is where a picture of the crossover goes; it also asks for the sweep over sizes that it shows.
    """
    sizes = sorted({check_integer(count, "codes", LEAST) for count in codes})
    queries = 2 * check_integer(repeats, "repeats", 1)
    check_integer(cases, "cases", 1)
    if quick:
        sizes, queries, cases = [8000], min(queries, 4), min(cases, 300)
    if plot is not None:
        check_plot(plot)
    here = machine()
    sizes, skipped = fitting(sizes)
    sweep = [LEAST, *sizes] if quick else [count for count in SWEEP if count <= sizes[-1]]
    progress(f"comparing {cases:,} queries with brute force")
    exactness = compared(cases)
    rows, tables, crossover = [], [], []
    for bits in BITS:
        for kind in KINDS:
            progress(f"b = {bits}, {kind}: making {sizes[-1]:,} codes")
            tiles, weights = made(kind, bits, sizes[-1], queries, quick=quick)
            for count in sizes:
                progress(f"b = {bits}, {kind}, {count:,} codes: timing")
                about, found = contest(tiles, count, weights)
                tables.append({"weights": kind, **about})
                rows += [{"weights": kind, **row} for row in found]
            if plot is not None and kind == "learnt":
                for count in sweep:
                    progress(f"b = {bits}, sweep: {count:,} codes")
                    crossover += swept(tiles, count, weights[: max(4, queries // 2)])
    result = {
        "machine": here,
        "quick": quick,
        "sizes": sizes,
        "skipped": skipped,
        "exactness": exactness,
        "rows": rows,
        "tables": tables,
        "crossover": crossover,
        "plot": None if plot is None else str(plot),
    }
    if plot is not None:
        draw(crossover, plot)
    return {**result, "goals": goals_of(result)}


def goals_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Of speed-up and build, at ten million codes (quick: whatever there is); of the choice, at each size."""
    rows, found = result["rows"], result["exactness"]
    most = result["sizes"][-1] if result["quick"] else GOAL_CODES
    goals = [
        goal(f"hits unlike brute force, {found['cases']:,} queries", "<= 0", found["wrong_hits"]),
        goal("timed queries with unlike answers", "<= 0", sum(row["unlike"] for row in rows)),
    ]
    for row in rows:
        if row["codes"] == most and row["weights"] == "learnt" and row["k"] == 10 and row["bits"] in SPEED_GOALS:
            name = f"scan / MIWQ, {short(most)} x {row['bits']}, learnt, k = 10"
            goals.append(goal(name, SPEED_GOALS[row["bits"]], row["scan/miwq"]["median"]))
    for count in result["sizes"]:
        for bits in BITS:
            here = [row for row in rows if row["codes"] == count and row["bits"] == bits]
            p90 = float(np.quantile([each for row in here for each in row["each index/best"]], 0.9))
            goals.append(goal(f"Index / best, p90, {short(count)} x {bits}", "<= 1.3", p90))
            most_of_scan = max(row["index/scan"] for row in here)
            goals.append(goal(f"Index / scan, max, {short(count)} x {bits}", "<= 1.4", most_of_scan))
    build = [table["build_seconds"] for table in result["tables"] if (table["codes"], table["bits"]) == (most, 64)]
    return goals + ([goal(f"build {short(most)} x 64, seconds", "<= 15", max(build))] if build else [])


def fitting(sizes: list[int]) -> tuple[list[int], list[int]]:
    """The sizes that memory has room for, and the others."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        room = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return sizes, []
    fit = [count for count in sizes if count * ROOM <= room]
    if not fit:
        raise InvalidInput(f"codes is {sizes[0]}; there is memory for {room // ROOM}")
    return fit, sizes[len(fit) :]


# ---- exactness ----


def compared(cases: int, seed: int = 0) -> dict[str, int]:
    """How many hits differ from brute force, over so many queries of small indexes with a past."""
    rng = np.random.default_rng(seed)
    found = {"cases": 0, "histories": 0, "hits": 0, "tied_hits": 0, "wrong_hits": 0}
    while found["cases"] < cases:
        index, ids, codes = history(rng)
        found["histories"] += 1
        for _ in range(2):
            weights = asked(rng, index.bits)[: cases - found["cases"]]
            k = int(rng.choice([1, 3, 10, 100, len(ids) + 5]))
            allowed = None
            if rng.random() < 0.5:
                known = min(int(ids.max(initial=0)) + 1, 60_000)  # ids past its end are not allowed
                allowed = rng.random(known) < rng.choice([0.0, 0.05, 0.5, 0.95])
            wanted = brute_force(ids, codes, weights, k, allowed)
            got = index.search(weights, k, allowed=allowed)
            tied = (wanted.scores[:, 1:] == wanted.scores[:, :-1]) & (wanted.ids[:, 1:] >= 0)
            found["cases"] += len(weights)
            found["hits"] += int(np.count_nonzero(wanted.ids >= 0))
            found["tied_hits"] += int(np.count_nonzero(tied))
            found["wrong_hits"] += int(np.count_nonzero((wanted.scores != got.scores) | (wanted.ids != got.ids)))
    return found


def history(rng: np.random.Generator) -> tuple[MIWQ, Ids, Codes]:
    """An index after a few random writes and merges, and the rows that it must hold."""
    bits = int(rng.integers(8, 97))
    index = MIWQ(bits, tables=None if rng.random() < 0.7 else int(rng.integers(-(-bits // 12), bits + 1)), threads=1)
    ids, codes, free = np.empty(0, np.int64), np.empty((0, width(bits)), np.uint8), 0
    for step in rng.choice(["add", "add", "named", "remove", "merge", "merge"], int(rng.integers(2, 9))):
        n = int(600 ** rng.random())
        if step == "merge":
            index.merge()
        elif step == "remove":
            gone = rng.choice(np.append(ids, free), min(n, len(ids) + 1), replace=False)  # one of them was never there
            index.remove(gone)
            kept = ~np.isin(ids, gone)
            ids, codes = ids[kept], codes[kept]
        else:
            names = np.arange(free, free + n)
            if step == "named":  # anew, in the gaps that removals left, or far apart
                names = np.setdiff1d(rng.integers(0, rng.choice([free + 2 * n, 50_000, 2**40]), n), ids)
                rng.shuffle(names)
            new = some_codes(rng, len(names), bits)
            index.add(new, names if step == "named" else None)
            ids, codes = np.append(ids, names), np.concatenate([codes, new])
            free = max(free, int(names.max(initial=-1)) + 1)
    return index, ids, codes


def some_codes(rng: np.random.Generator, count: int, bits: int) -> Codes:
    """Of fair coins, or near to one code; all different, or with many duplicates."""
    ones = rng.random((count, bits)) < rng.choice([0.5, 0.1])
    codes = np.packbits(ones ^ (rng.random(bits) < 0.5), axis=1, bitorder="little")
    return codes if rng.random() < 0.6 or not count else codes[rng.integers(0, min(count, 5), count)]


def asked(rng: np.random.Generator, bits: int) -> Floats:
    """Weights of all sorts: plain, of magnitudes far apart, mostly zero, full of ties, all zero; tiny, or huge."""
    normal = rng.standard_normal((6, bits))
    normal[1] *= 10.0 ** rng.integers(-6, 7, bits)
    normal[2] *= rng.random(bits) < 0.2
    normal[3] = np.sign(normal[3])
    normal[4] = np.rint(normal[4])
    normal[5] *= rng.random() < 0.5
    weights: Floats = (normal * rng.choice([1e-25, 1, 1e25])).astype(np.float32)
    return weights


def brute_force(ids: Ids, codes: Codes, weights: Floats, k: int, allowed: Allowed = None) -> Hits:
    """The definition: every score in float64, rounded to float32, higher first, smaller id among equals."""
    if allowed is not None:
        kept = (ids < len(allowed)) & allowed[np.minimum(ids, len(allowed) - 1)]
        ids, codes = ids[kept], codes[kept]
    scores = (snap(weights) @ signs(codes, weights.shape[1]).T.astype(np.float64)).astype(np.float32)
    hits = Hits(np.full((len(weights), k), -np.inf, np.float32), np.full((len(weights), k), -1, np.int64))
    for q, row in enumerate(scores):
        order = np.lexsort((ids, -row))[:k]
        hits.scores[q, : len(order)], hits.ids[q, : len(order)] = row[order], ids[order]
    return hits


# ---- speed ----


def contest(tiles: Tiles, count: int, weights: Floats) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What tables over the first `count` codes cost, and how the contenders do for each k."""
    bits = weights.shape[1]
    scan, miwq, index = Scan(bits, threads=1), MIWQ(bits, threads=1), Index(bits, threads=1)
    _, build, _ = (filled(each, tiles, count) for each in (scan, miwq, index))
    state = miwq.state
    assert state.tables is not None, "MIWQ builds tables from LEAST codes on"
    start = time.process_time()
    measure_costs(state.blocks, state.tables, bits)
    about = {
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
    for k in KS:
        unlike = sum(len({answer(each, w, k) for each in contenders.values()}) > 1 for w in weights)
        times = in_rounds(contenders, weights, k, ROUNDS if count >= SHORT else SHORT_ROUNDS)
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
    return about, rows


def swept(tiles: Tiles, count: int, weights: Floats) -> list[dict[str, Any]]:
    """The scan against MIWQ at one size, for each k."""
    bits = weights.shape[1]
    scan, miwq = Scan(bits, threads=1), MIWQ(bits, threads=1)
    for index in (scan, miwq):
        filled(index, tiles, count)
    points = []
    for k in KS:
        times = in_rounds({"scan": scan, "miwq": miwq}, weights, k, ROUNDS // 3)
        points.append({"codes": count, "bits": bits, "k": k, "scan/miwq": paired(times["scan"], times["miwq"])})
    return points


def filled(index: CodeIndex, tiles: Tiles, count: int) -> float:
    """Adds the first `count` codes and waits for tables that are built in the background; CPU seconds of both."""
    start = time.process_time()
    index.add_tiles(tiles[: -(-count // TILE)], count)
    for thread in threading.enumerate():
        if thread.name == "stillhash-merge":
            thread.join()
    return time.process_time() - start


def answer(index: CodeIndex, weights: Floats, k: int) -> bytes:
    scores, ids = index.search(weights, k)
    return scores.tobytes() + ids.tobytes()


def in_rounds(indexes: dict[str, CodeIndex], weights: Floats, k: int, rounds: int, seed: int = 0) -> dict[str, Seconds]:
    """CPU seconds (rounds, queries) of contenders that take turns in shuffled order.

    A scan empties the cache for whoever comes next. So before each timed query a contender answers the one before it,
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


def paired(a: Seconds, b: Seconds) -> Spread:
    """How many times as long as b did a take: quartiles over queries of each one's median over rounds."""
    low, median, high = np.quantile(np.median(a / b, axis=0), [0.25, 0.5, 0.75]).tolist()
    return {"median": median, "low": low, "high": high}


# ---- showing ----


def short(count: int) -> str:
    return f"{count / 1e6:g}M" if count >= 1_000_000 else f"{count / 1e3:g}k"


def check_plot(plot: Path) -> None:
    """Before anything is measured in vain."""
    if plot.is_dir() or not plot.parent.is_dir():
        raise InvalidInput(f"plot is {str(plot)!r}; a file in a folder that exists is wanted")
    if not find_spec("matplotlib"):
        raise MissingExtra("plot needs matplotlib: pip install 'stillhash[experiments]'")


def draw(crossover: list[dict[str, Any]], plot: Path) -> None:
    """How many times as fast as the scan the tables are, over the number of codes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(KS), sharey=True)
    for panel, k in zip(panels, KS, strict=True):
        panel.axhline(1, color="#374151", linewidth=1, linestyle="--")
        for bits, colour in zip(BITS, ("#0f766e", "#b45309", "#6d28d9"), strict=True):
            line = [point for point in crossover if (point["bits"], point["k"]) == (bits, k)]
            counts = [point["codes"] for point in line]
            low, median, high = ([point["scan/miwq"][at] for point in line] for at in ("low", "median", "high"))
            panel.fill_between(counts, low, high, color=colour, alpha=0.15, linewidth=0)
            panel.plot(counts, median, "o-", color=colour, linewidth=2, markersize=4)
            panel.annotate(
                f"{bits} bits",
                (counts[-1], median[-1]),
                xytext=(7, 0),
                textcoords="offset points",
                va="center",
                color=colour,
                weight="bold",
            )
        panel.set(xscale="log", yscale="log", xlabel="codes")
        panel.set_title(f"k = {k}", loc="left")
        panel.set_xticks(counts, [short(count) for count in counts])
        panel.set_xticks([], minor=True)
        panel.set_xlim(right=counts[-1] * (counts[-1] / counts[0]) ** 0.25)  # room for the names
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#e5e7eb", linewidth=0.8)
    panels[0].set_ylabel("scan's time / tables' time")
    figure.suptitle("Above 1 the tables win: learnt codes, one query, one thread, quartiles shaded", x=0.01, ha="left")
    figure.savefig(plot, format="png")


def show(result: dict[str, Any], console: Console) -> None:
    found = result["exactness"]
    console.print(
        f"MIWQ after {found['histories']:,} random histories: {found['wrong_hits']} of {found['hits']:,} hits of "
        f"{found['cases']:,} queries differ from brute force; {found['tied_hits']:,} are ties.\n",
        highlight=False,
    )
    print_table(
        console,
        "One query, one thread: ms, and ratios of times (median with quartiles; p50, p90, max)",
        ("N", "b", "weights", "k", "scan", "MIWQ", "Index", "scan / MIWQ", "Index / best", "/ scan", "tables"),
        [
            (
                short(r["codes"]),
                f"{r['bits']}",
                r["weights"],
                f"{r['k']}",
                *(f"{r['ms'][name]:.2f}" for name in ("scan", "miwq", "index")),
                spread(r["scan/miwq"]),
                " ".join(f"{r['index/best'][at]:.2f}" for at in ("p50", "p90", "max")),
                f"{r['index/scan']:.2f}",
                f"{r['on_tables']}/{r['queries']}",
            )
            for r in in_order(result["rows"])
        ],
    )
    print_table(
        console,
        "Tables: CPU seconds to build and to calibrate, bytes a code beside the tiles",
        ("N", "b", "weights", "tables", "build", "calibration", "bytes", "Index has them"),
        [
            (
                short(t["codes"]),
                f"{t['bits']}",
                t["weights"],
                f"{t['tables']}",
                f"{t['build_seconds']:.2f}",
                f"{t['calibration_seconds']:.2f}",
                f"{t['bytes_per_code']:.1f}",
                "yes" if t["index_has_tables"] else "no",
            )
            for t in in_order(result["tables"])
        ],
    )
    for count in result["skipped"]:
        console.print(f"[dim]{count:,} codes were left out: too little memory.[/]", highlight=False)
    if result["plot"]:
        console.print(f"Crossover: {escape(result['plot'])}", highlight=False, soft_wrap=True)
    print_frame(result, console)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["codes"], row["bits"]))  # stable: kinds and k stay as they are
