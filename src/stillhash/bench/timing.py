"""Time contenders that take turns, and share what every bench needs: goals, a temporary folder, the printed frame.

Milliseconds differ between machines and between hours of one machine, so what counts is the ratio of two contenders
that took turns in one process. Contenders on one thread are timed in CPU time, which a busy neighbour distorts
least; CPU time adds up over threads, so more than one thread is timed by the wall clock.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

import numpy as np
import threadpoolctl
from rich.console import Console

from stillhash.errors import InvalidInput
from stillhash.experiments.machine import machine
from stillhash.experiments.tables import ReportProgress, TableData, print_sections, silent
from stillhash.numeric.validation import check_integer

CODE_LENGTHS = (32, 64, 96)
CODE_BITS, TOP_K = 64, 10  # where a bench has only one of each

Contender = Callable[[int], Any]  # takes the number of the round
Times = dict[str, list[float]]  # seconds of each round


class Quartiles(TypedDict):
    """A median and its quartiles."""

    median: float
    low: float
    high: float


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold every BLAS that is loaded by now to one thread.

    Not `numeric.threads.one_thread`: that looks once at what is loaded, and SciPy, which brings a BLAS of its own, may
    have come later.
    """
    with threadpoolctl.threadpool_limits(limits=1, user_api="blas"):
        yield


@contextmanager
def temporary_folder(folder: Path | None) -> Iterator[Path]:
    """Make a folder on the disk to measure, in `folder` or the current one, and remove it at the end."""
    if folder is not None and not folder.is_dir():
        raise InvalidInput(f"folder: expected an existing folder, got {str(folder)!r}")
    with tempfile.TemporaryDirectory(prefix=".stillhash-bench-", dir=folder or Path.cwd()) as name:
        yield Path(name)


def interleaved(contenders: dict[str, Contender], repeats: int, *, wall: bool = False, seed: int = 0) -> Times:
    """Time each contender in each round: one untimed warm-up each, then rounds in shuffled order.

    The order is shuffled because a contender finds the cache as the one before it left it.
    """
    check_integer(repeats, "repeats", 1)
    clock = time.perf_counter if wall else time.process_time
    shuffle = random.Random(seed).shuffle
    order = list(contenders)
    times: Times = {name: [] for name in order}
    with one_blas_thread():
        for contender in contenders.values():
            contender(0)
        for turn in range(repeats):
            shuffle(order)
            for name in order:
                start = clock()
                contenders[name](turn)
                times[name].append(clock() - start)
    return times


def median_ms(times: Times, name: str) -> float:
    return statistics.median(times[name]) * 1e3


def ratio(times: Times, a: str, b: str) -> Quartiles:
    """Return how many times as long as b a took: the median over rounds, each round compared with itself."""
    return quartiles(np.divide(times[a], times[b]))


def quartiles(values: Any) -> Quartiles:
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {"median": median, "low": low, "high": high}


def goal(name: str, bound: str, measured: float) -> dict[str, Any]:
    """Return one goal; `bound` is a sign and a number, "<= 1.5"."""
    sign, limit = bound.split()
    met = measured <= float(limit) if sign == "<=" else measured >= float(limit)
    return {"name": name, "goal": bound, "measured": measured, "met": met}


def run_bench(bench: ModuleType, quick: bool, progress: ReportProgress = silent, **options: Any) -> dict[str, Any]:
    """Run a bench, and add the machine that its figures belong to, with the load before it."""
    here = machine()
    return {"machine": here, "quick": quick, **bench.run(quick=quick, progress=progress, **options)}


def print_bench(result: dict[str, Any], sections: Iterable[TableData | str], console: Console) -> None:
    """Print the tables of a bench, then its goals and the machine."""
    print_sections(console, sections)
    rows = []
    for one in result["goals"]:
        colour, word = ("green", "met") if one["met"] else ("red", "missed")
        rows.append((one["name"], one["goal"], f"[{colour}]{one['measured']:.3g}[/]", f"[{colour}]{word}[/]"))
    print_sections(console, [TableData("Goals", ("", "goal", "measured", " "), rows)])
    if result["quick"]:
        console.print("[dim]Quick sizes: the goals on time are meant for the full ones.[/]")
    here = result["machine"]
    load = "" if here["load"] is None else f", load {here['load']:.1f}"
    console.print(
        f"[dim]{here['cpu']}, {here['cores']} cores, lanes {here['lanes']}, numpy {here['numpy']}, "
        f"stillhash {here['stillhash']}{load}[/]",
        highlight=False,
    )
