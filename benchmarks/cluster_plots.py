"""Draw what the model of a cluster says: latency against the number of shards, and the loss of a node."""

from pathlib import Path
from typing import Any

from benchmarks.timing import Figures

FLAT, TREE, GRID = "#b45309", "#0f766e", "#e5e7eb"
LATENCY_TICKS = (5, 10, 20, 50, 100, 200)


def draw_scale(sweep: list[Figures], loss: list[Figures], plot: Path) -> None:
    """Draw both panels into one PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_sweep(left, sweep)
    _draw_loss(right, loss)
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color=GRID, linewidth=0.8)
    figure.savefig(plot, format="png")


def _draw_sweep(panel: Any, sweep: list[Figures]) -> None:
    for topology, colour in (("flat", FLAT), ("tree", TREE)):
        rows = [row for row in sweep if row["topology"] == topology]
        shards, p50 = [row["shards"] for row in rows], [row["p50"] for row in rows]
        panel.plot(shards, p50, "o-", color=colour, linewidth=2, markersize=4, label=topology)
    panel.set(xscale="log", yscale="log", xlabel="shards", ylabel="ms, p50")
    panel.set_xticks(shards, [str(count) for count in shards])
    panel.set_xticks([], minor=True)
    panel.set_yticks(LATENCY_TICKS, [str(tick) for tick in LATENCY_TICKS])
    panel.set_yticks([], minor=True)
    panel.legend(frameon=False)
    panel.set_title("One query, modelled", loc="left")


def _draw_loss(panel: Any, loss: list[Figures]) -> None:
    for row, colour, style in zip(loss, (FLAT, TREE, TREE), ("-", "-", ":"), strict=True):
        name = f"{row['replicas']} replica{'s' * (row['replicas'] > 1)}" + (", hedged" if row["hedge_ms"] else "")
        seconds = [start for start, _, _ in row["over_time"]]
        panel.plot(seconds, [rate for _, rate, _ in row["over_time"]], style, color=colour, linewidth=2, label=name)
    panel.axvline(loss[0]["back"], color="#374151", linewidth=1, linestyle="--")
    panel.annotate("node is back", (loss[0]["back"], 0), xytext=(4, 24), textcoords="offset points", color="#374151")
    panel.set(xlabel="seconds", ylabel="complete answers a second", ylim=(0, None))
    panel.legend(frameon=False, loc="center", bbox_to_anchor=(0.5, 0.45))
    panel.set_title("A node is lost after 10 s, modelled", loc="left")
