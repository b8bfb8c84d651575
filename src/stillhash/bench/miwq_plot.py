"""Draw the crossover: from how many codes on tables beat the scan."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stillhash.bench.timing import CODE_LENGTHS
from stillhash.errors import InvalidInput, MissingExtra

SEARCHED_K = (1, 10, 100)


def short_count(count: int) -> str:
    return f"{count / 1e6:g}M" if count >= 1_000_000 else f"{count / 1e3:g}k"


def check_plot(plot: Path) -> None:
    """Refuse a plot that could not be written, before anything is measured in vain."""
    if plot.is_dir() or not plot.parent.is_dir():
        raise InvalidInput(f"plot: expected a file in an existing folder, got {str(plot)!r}")
    if not find_spec("matplotlib"):
        raise MissingExtra("plot needs matplotlib: pip install 'stillhash[experiments]'")


def draw_crossover(crossover: list[dict[str, Any]], plot: Path) -> None:
    """Draw how many times as fast as the scan the tables are, over the number of codes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(SEARCHED_K), sharey=True)
    for panel, k in zip(panels, SEARCHED_K, strict=True):
        panel.axhline(1, color="#374151", linewidth=1, linestyle="--")
        for bits, colour in zip(CODE_LENGTHS, ("#0f766e", "#b45309", "#6d28d9"), strict=True):
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
