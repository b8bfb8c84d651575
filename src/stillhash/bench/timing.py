"""Contenders side by side, and the frame that every bench shares: the machine, the goals, the tables.

Milliseconds differ between machines and between hours of one machine, so what counts is the ratio of two contenders
that took turns in one process. Contenders on one thread are timed in CPU time, which a busy neighbour distorts
least; CPU time adds up over threads, so more than one thread is timed by the clock on the wall.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypedDict

import numpy as np
import threadpoolctl
from rich.console import Console

from stillhash.experiments.tables import print_table
from stillhash.numeric.validation import check_integer

Contender = Callable[[int], Any]  # hears the number of the round
Times = dict[str, list[float]]  # seconds of each round
Progress = Callable[[str], None]


class Spread(TypedDict):
    """A median and its quartiles."""

    median: float
    low: float
    high: float


def silent(_: str) -> None:
    """Progress that nobody hears."""


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Holds every BLAS that is loaded by now to one thread.

    Not `numeric.threads.one_thread`: that looks once at what is loaded, and SciPy, which brings a BLAS of its own, may
    have come later.
    """
    with threadpoolctl.threadpool_limits(limits=1, user_api="blas"):
        yield


def interleaved(contenders: dict[str, Contender], repeats: int, *, wall: bool = False, seed: int = 0) -> Times:
    """Seconds of each contender in each round: one untimed warm-up each, then rounds in shuffled order.

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


def ratio(times: Times, a: str, b: str) -> Spread:
    """How many times as long as b did a take: the median over rounds, each round compared with itself."""
    low, median, high = np.quantile(np.divide(times[a], times[b]), [0.25, 0.5, 0.75]).tolist()
    return {"median": median, "low": low, "high": high}


def goal(name: str, bound: str, measured: float) -> dict[str, Any]:
    """One goal; `bound` is a sign and a number, "<= 1.5"."""
    sign, limit = bound.split()
    met = measured <= float(limit) if sign == "<=" else measured >= float(limit)
    return {"name": name, "goal": bound, "measured": measured, "met": met}


# ---- showing ----


def spread(value: Spread) -> str:
    return f"{value['median']:.2f} [dim]\\[{value['low']:.2f}, {value['high']:.2f}][/]"


def print_frame(result: dict[str, Any], console: Console) -> None:
    """Goals and machine: how every bench ends."""
    rows = []
    for found in result["goals"]:
        colour, word = ("green", "met") if found["met"] else ("red", "missed")
        rows.append((found["name"], found["goal"], f"[{colour}]{found['measured']:.3g}[/]", f"[{colour}]{word}[/]"))
    print_table(console, "Goals", ("", "goal", "measured", ""), rows)
    if result["quick"]:
        console.print("[dim]Quick sizes: the goals on time are meant for the full ones.[/]")
    here = result["machine"]
    load = "" if here["load"] is None else f", load {here['load']:.1f}"
    console.print(
        f"[dim]{here['cpu']}, {here['cores']} cores, lanes {here['lanes']}, numpy {here['numpy']}, "
        f"stillhash {here['stillhash']}{load}[/]",
        highlight=False,
    )
