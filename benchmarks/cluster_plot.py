"""Draw the rates of answers around faults, one panel for each fault."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import Figures
from stillhash.errors import InvalidInput, MissingExtra

SMOOTHED_BUCKETS = 5  # of the line; the buckets themselves are dots
REPLICA_COLOURS = {1: "#b45309", 2: "#0f766e"}  # by replicas


def check_plot(plot: Path | None) -> None:
    """Refuse a plot that could not be written, before anything is measured in vain."""
    if plot is not None and (plot.is_dir() or not plot.parent.is_dir()):
        raise InvalidInput(f"plot: expected a file in an existing folder, got {str(plot)!r}")
    if plot is not None and not find_spec("matplotlib"):
        raise MissingExtra("plot needs matplotlib: pip install 'stillhash[experiments]'")


def draw_faults(faults: list[Figures], titles: Mapping[str, str], plot: Path) -> None:
    """Draw the share of the healthy rate over the seconds since each fault, with one and two replicas."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.6), dpi=100, layout="constrained")
    panels = figure.subplots(2, 3, sharex=True, sharey=True).ravel()
    for panel, (name, title) in zip(panels, titles.items(), strict=False):
        panel.axvline(0, color="#374151", linewidth=1)
        panel.axhline(1, color="#9ca3af", linewidth=0.8, linestyle="--")
        for fault in (fault for fault in faults if fault["fault"] == name):
            draw_rate(panel, fault)
        panel.set_title(title, loc="left", fontsize=11)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#e5e7eb", linewidth=0.8)
        panel.set_ylim(0, 1.75)
        panel.set_yticks([0, 0.5, 1, 1.5], ["0", "50 %", "100 %", "150 %"])
    for panel in panels[2 : len(titles)]:  # those at the bottom, and the one above the key
        panel.set_xlabel("seconds since the fault")
        panel.xaxis.set_tick_params(labelbottom=True)
    draw_key(panels[len(titles)])
    figure.suptitle("Right answers per second, as a share of the mean before the fault", x=0.01, ha="left")
    figure.savefig(plot)


def draw_rate(panel: Any, fault: Figures) -> None:
    colour, window = REPLICA_COLOURS[fault["replicas"]], np.ones(SMOOTHED_BUCKETS)
    shares = np.array(fault["rates"]) / fault["healthy"]
    smooth = np.convolve(shares, window, "same") / np.convolve(np.ones(len(shares)), window, "same")
    middles = np.array(fault["seconds"]) + (fault["seconds"][1] - fault["seconds"][0]) / 2
    panel.plot(middles, shares, ".", color=colour, markersize=2, alpha=0.35)
    panel.plot(middles, smooth, color=colour, linewidth=1.6)


def draw_key(panel: Any) -> None:
    """Use the last panel to say what the colours are."""
    panel.set_axis_off()
    for place, (replicas, colour) in enumerate(REPLICA_COLOURS.items()):
        words = "1 replica of each shard" if replicas == 1 else f"{replicas} replicas of each shard"
        panel.text(0.08, 0.75 - 0.14 * place, words, color=colour, weight="bold", transform=panel.transAxes)
    about = "dots: 100 ms, lines: mean of 500 ms\nall nodes share the cores of one machine"
    panel.text(0.08, 0.35, about, color="#4b5563", fontsize=9, transform=panel.transAxes)
