"""Time contenders that take turns, and share what every bench needs: goals, a temporary folder, the printed frame.

Milliseconds differ between machines and between hours of one machine, so what counts is the ratio of two contenders
that took turns in one process. Contenders on one thread are timed in CPU time, which a busy neighbour distorts
least; CPU time adds up over threads, so more than one thread is timed by the wall clock.
"""

import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import threadpoolctl
from rich.console import Console

from stillhash.errors import InvalidInput, MissingExtra
from stillhash.experiments.passes import machine
from stillhash.experiments.tables import ReportProgress, TableData, print_sections, silent
from stillhash.numeric.validation import check_integer
from stillhash.search import Hits

CODE_LENGTHS = (32, 64, 96)
CODE_BITS, TOP_K = 64, 10  # where a bench has only one of each
MAX_QUICK_REPEATS = 3

Contender = Callable[[int], Any]  # takes the number of the round
Contenders = dict[str, Contender]
Times = dict[str, list[float]]  # seconds of each round
Figures = dict[str, Any]  # what a bench measured, ready for JSON
Quartiles = dict[str, float]  # median, low and high
Sections = list[TableData | str]
Goal = tuple[str, str, float]  # name, bound and what was measured; a bound is a sign and a number, "<= 1.5"

# Holds BLAS and OpenMP, which FAISS uses, to one thread. Not `numeric.threads.one_thread`, which looks once at what is
# loaded: SciPy brings its own BLAS, and may come later.
one_library_thread = partial(threadpoolctl.threadpool_limits, limits=1)


@contextmanager
def temporary_folder(folder: Path | None) -> Iterator[Path]:
    """Make a folder on the disk to measure, in `folder` or the current one, and remove it at the end."""
    if folder is not None and not folder.is_dir():
        raise InvalidInput(f"folder: expected an existing folder, got {str(folder)!r}")
    with tempfile.TemporaryDirectory(prefix=".stillhash-bench-", dir=folder or Path.cwd()) as name:
        yield Path(name)


def check_plot(plot: Path | None) -> None:
    """Refuse a plot that could not be written, before anything is measured in vain."""
    if plot is not None and (plot.is_dir() or not plot.parent.is_dir()):
        raise InvalidInput(f"plot: expected a file in an existing folder, got {str(plot)!r}")
    if plot is not None and not find_spec("matplotlib"):
        raise MissingExtra("plot needs matplotlib: pip install 'stillhash[experiments]'")


def proc_bytes(text: str) -> dict[str, int]:
    """Return the sizes in the text of a file of /proc."""
    return {name: int(size) * 1024 for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def interleaved(contenders: Contenders, repeats: int, *, wall: bool = False) -> Times:
    """Time each contender in each round: one untimed warm-up each, then rounds in shuffled order."""
    clock = time.perf_counter if wall else time.process_time
    shuffle, order = random.Random(0).shuffle, list(contenders)
    times: Times = {name: [] for name in order}
    with one_library_thread():
        for contender in contenders.values():
            contender(0)
        for turn in range(repeats):
            shuffle(order)  # since a contender finds the cache as the one before it left it
            for name in order:
                start = clock()
                contenders[name](turn)
                times[name].append(clock() - start)
    return times


def compare_speed(contenders: Contenders, repeats: int, *pairs: str) -> Figures:
    """Time contenders; return the median milliseconds of each, and the ratio of each pair "a/b"."""
    times = interleaved(contenders, repeats)
    ms = {name: statistics.median(seconds) * 1e3 for name, seconds in times.items()}
    return {"ms": ms, **{pair: ratio(times, pair) for pair in pairs}}


def mean_ms(times: Times) -> dict[str, float]:
    """Return means, not medians: what is done once in many rounds counts too."""
    return {name: statistics.fmean(seconds) * 1e3 for name, seconds in times.items()}


def ratio(times: Times, pair: str) -> Quartiles:
    """Return how many times as long as b a took, for "a/b": over the rounds, each compared with itself."""
    a, b = pair.split("/")
    return quartiles(np.divide(times[a], times[b]))


def quartiles(values: Any) -> Quartiles:
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {"median": median, "low": low, "high": high}


def quantiles_ms(seconds: list[float], prefix: str = "") -> dict[str, float]:
    return {f"{prefix}{name}_ms": 1e3 * float(np.quantile(seconds, at)) for name, at in (("p50", 0.5), ("p99", 0.99))}


def hit_bytes(hits: Hits) -> list[bytes]:
    """Return the hits of each query as bytes, to compare them exactly."""
    return [scores.tobytes() + ids.tobytes() for scores, ids in zip(*hits, strict=True)]


def judge(name: str, bound: str, measured: float) -> Figures:
    """Judge one goal."""
    sign, limit = bound.split()
    met = measured <= float(limit) if sign == "<=" else measured >= float(limit)
    return {"name": name, "goal": bound, "measured": measured, "met": met}


class Bench(NamedTuple):
    """What a module measures besides its main bench, which is its own `run` and `tables`."""

    run: Callable[..., Figures]
    tables: Callable[[Figures], Sections]


def run_bench(bench: ModuleType | Bench, quick: bool, progress: ReportProgress = silent, **options: Any) -> Figures:
    """Run a bench, judge its goals, and add the machine that its figures belong to."""
    here = machine()  # with the load before the bench
    if "repeats" in options:
        repeats = check_integer(options["repeats"], "repeats", 1)
        options["repeats"] = min(repeats, MAX_QUICK_REPEATS) if quick else repeats
    result = bench.run(quick=quick, progress=progress, **options)
    return {"machine": here, "quick": quick, **result, "goals": [judge(*one) for one in result["goals"]]}


def print_bench(bench: ModuleType | Bench, result: Figures, console: Console) -> None:
    """Print the tables of a bench, then its goals and the machine."""
    rows = []
    for one in result["goals"]:
        colour, word = ("green", "met") if one["met"] else ("red", "missed")
        rows.append((one["name"], one["goal"], f"[{colour}]{one['measured']:.3g}[/]", f"[{colour}]{word}[/]"))
    print_sections(console, [*bench.tables(result), TableData("Goals", ("", "goal", "measured", " "), rows)])
    if result["quick"]:
        console.print("[dim]Quick sizes: the goals on time are meant for the full ones.[/]")
    here = result["machine"]
    about = "{cpu}, {cores} cores, lanes {lanes}, numpy {numpy}, stillhash {stillhash}".format_map(here)
    load = "" if here["load"] is None else f", load {here['load']:.1f}"
    console.print(f"[dim]{about}{load}[/]", highlight=False)
