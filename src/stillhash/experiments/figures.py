"""Draw the paper's figures from runs. Every line is named where it ends, so colour is never the only clue."""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation

from stillhash.experiments.results import METHOD_STYLES, Checkpoint, Run, Variant, by_variant, grouped

# Small in inches, so that text stays readable where a page is as narrow as a phone.
FIGURE_SIZE, FIGURE_DPI = (5.8, 4.1), 190
INK, GROUND = "#24292f", "#ffffff"
LOG_SCALE_RATIO = 20  # slowest method over fastest, from which a linear axis would flatten most lines
LABEL_GAP = 0.045  # between names of lines, in heights of the axes

METHOD_LOOKS = {method: (colour, marker) for method, (_, colour, marker) in METHOD_STYLES.items()}
BOLD_METHODS = ("tally", "ohsl")
SPARE_LOOKS = list(METHOD_LOOKS.values())
LINE_DASHES = ("-", "--", ":", "-.")


class LineLook(NamedTuple):
    colour: str
    marker: str
    dash: str = "-"
    width: float = 1.5


class Line(NamedTuple):
    """One line of a chart: mean, least and largest value at each x."""

    label: str
    look: LineLook
    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


Lines = list[Line]
Looks = dict[Variant, LineLook]
Measure = Callable[[Checkpoint], float | None]


def looks(variants: Iterable[Variant]) -> Looks:
    """Give a method one colour and marker wherever it appears; its variants differ by dashes."""
    chosen = {}
    for method, group in grouped(sorted(set(variants), key=lambda v: v.sort_key), lambda v: v.method).items():
        colour, marker = METHOD_LOOKS.get(method) or SPARE_LOOKS[crc32(method.encode()) % len(SPARE_LOOKS)]
        for i, variant in enumerate(group):
            wide = 2.6 if method in BOLD_METHODS and not variant.params else 1.5
            chosen[variant] = LineLook(colour, marker, LINE_DASHES[i % len(LINE_DASHES)], wide)
    return chosen


def along(
    runs: Sequence[Run], measure: Measure, after: int = 0, axis: Callable[[Checkpoint], int] = attrgetter("rows")
) -> list[tuple[int, list[float]]]:
    """Return what the seeds of one variant measured, at each number of rows, from `after` on, where all of them did."""
    by_rows = grouped((at for run in runs for at in run.checkpoints), axis)
    values = {rows: [v for at in some if (v := measure(at)) is not None] for rows, some in sorted(by_rows.items())}
    return [(rows, some) for rows, some in values.items() if len(some) == len(runs) and rows >= after]


def along_labels(runs: Sequence[Run], measure: Measure) -> list[tuple[int, list[float]]]:
    """Return the same at each number of labelled rows."""
    return along(runs, measure, axis=lambda at: at.labelled or 0)


def curves(runs: Sequence[Run], measure: Measure, look: Looks, *, after: int = 0) -> Lines:
    """Return one line per variant against rows, from `after` rows on; a variant measured only once has no line."""
    points = {variant: along(group, measure, after) for variant, group in by_variant(runs).items()}
    return [line_of(variant.label, look[variant], some) for variant, some in points.items() if len(some) > 1]


def sweep(runs: Sequence[Run]) -> Lines:
    """Return final mAP against the swept parameter, one line per variant and code length."""
    several = len({run.variant for run in runs}) > 1
    lines = []
    for i, ((variant, bits), group) in enumerate(grouped(runs, lambda run: (run.variant, run.bits)).items()):
        if len(points := _swept_points(group)) > 1:
            label = f"{variant.label}, {bits} bits" if several else f"{bits} bits"
            dash = LINE_DASHES[i // len(SPARE_LOOKS) % len(LINE_DASHES)]
            look = LineLook(*SPARE_LOOKS[(i * 2) % len(SPARE_LOOKS)], dash, 1.8)
            lines.append(line_of(label, look, points))
    return lines


def axis_lines(runs: Sequence[Run], look: Looks) -> Lines:
    """Return final mAP against the axis of an experiment with labels, one line per variant."""
    points = {variant: _swept_points(group) for variant, group in by_variant(runs).items()}
    return [line_of(variant.label, look[variant], some) for variant, some in points.items() if len(some) > 1]


def _swept_points(runs: Iterable[Run]) -> list[tuple[float, list[float]]]:
    """Return the final mAP of the seeds of one variant at each value that the experiment varies."""
    by_value = grouped((run for run in runs if run.end.map is not None), lambda run: run.swept or 0.0)
    return [(x, [run.end.map or 0.0 for run in some]) for x, some in sorted(by_value.items())]


def line_of(label: str, look: LineLook, points: Sequence[tuple[float, list[float]]]) -> Line:
    x, values = zip(*points, strict=True)
    mean = [float(np.mean(some)) for some in values]
    return Line(label, look, list(x), mean, [min(some) for some in values], [max(some) for some in values])


def rows_chart(lines: Lines, title: str, changes: Iterable[int] = ()) -> Figure:
    """Draw mAP against rows, with upright lines where the stream changes."""
    figure, axes = _chart(title, "rows learnt", "mean average precision")
    for rows in changes:
        axes.axvline(rows, color=INK, alpha=0.55, linewidth=1, linestyle=(0, (5, 3)), zorder=1)
    _draw(axes, lines)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(_rows))
    _name(axes, lines, "{:.3f}".format)
    return figure


def time_chart(lines: Lines, title: str) -> Figure:
    """Draw seconds against rows; on logarithmic axes, where a slope is a power, if the methods lie far apart."""
    figure, axes = _chart(title, "rows", "accumulated time, s")
    ends = [line.mean[-1] for line in lines]
    if min(line.mean[0] for line in lines) > 0 and max(ends) > LOG_SCALE_RATIO * min(ends):
        axes.set(xscale="log", yscale="log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_formatter(NullFormatter())
        _draw(axes, lines)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
        _draw(axes, lines)
        axes.set(xlim=(0, None), ylim=(0, None))
    axes.xaxis.set_major_formatter(FuncFormatter(_rows))
    axes.yaxis.set_major_formatter("{x:,g}")
    _name(axes, lines, lambda value: f"{value:,.0f} s" if value >= 10 else f"{value:.2g} s")
    return figure


def sweep_chart(lines: Lines, title: str, xlabel: str, *, log: bool) -> Figure:
    """Draw final mAP against a parameter; its values are the ticks. A logarithmic axis may have 0 at its left."""
    figure, axes = _chart(title, xlabel, "mean average precision")
    values = sorted({x for line in lines for x in line.x})
    if log and values[0] > 0:
        axes.set_xscale("log")
    elif log:
        axes.set_xscale("symlog", linthresh=values[1], linscale=0.6)
    _draw(axes, lines, margin=0.03)
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.xaxis.set_minor_locator(NullLocator())
    _name(axes, lines, lambda _: "")
    return figure


def labels_chart(lines: Lines, title: str) -> Figure:
    """Draw measures against labelled rows, on a logarithmic axis with 0 at its left."""
    figure, axes = _chart(title, "labelled rows", "quality")
    values = {x for line in lines for x in line.x if x}
    least, largest = min(values, default=1), max(values, default=1)
    axes.set_xscale("symlog", linthresh=least, linscale=0.6)
    _draw(axes, lines, margin=0.03)
    axes.set_xticks([0, *(10**power for power in range(7) if least <= 10**power <= largest)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_rows))
    _name(axes, lines, "{:.3f}".format)
    return figure


def _rows(number: float, _place: int) -> str:
    return f"{number / 1e6:g}M" if number >= 1e6 else f"{number:,.0f}"


def _chart(title: str, xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=FIGURE_SIZE, dpi=FIGURE_DPI, layout="constrained", facecolor=GROUND)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(facecolor="none")
    axes.set_title(title, loc="left", weight="bold", color=INK, fontsize=10, parse_math=False)
    axes.set_xlabel(xlabel, color=INK, fontsize=9)
    axes.set_ylabel(ylabel, color=INK, fontsize=9)
    axes.tick_params(colors=INK, which="both", labelsize=8.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.grid(axis="y", color=INK, alpha=0.13, linewidth=0.8)
    return figure, axes


def _draw(axes: Axes, lines: Lines, margin: float = 0) -> None:
    for i, line in enumerate(lines):
        look = line.look
        if line.low != line.high:
            axes.fill_between(line.x, line.low, line.high, color=look.colour, alpha=0.13, linewidth=0)
        # By distance on paper, and staggered, so that close lines do not hide each other's.
        marks = (0.1 * i / len(lines), 0.1) if len(line.x) > 9 else None
        style: dict[str, Any] = {"color": look.colour, "marker": look.marker, "linewidth": look.width}
        axes.plot(line.x, line.mean, look.dash, **style, markersize=4.5, markevery=marks, zorder=2 + look.width)
    axes.margins(x=margin)


def _name(axes: Axes, lines: Lines, written: Callable[[float], str]) -> None:
    """Write names and last values to the right of the axes, each as near to the end of its line as possible."""
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # fixed from here on
    to_axes = axes.transScale + axes.transLimits
    ends = [float(to_axes.transform((line.x[-1], line.mean[-1]))[1]) for line in lines]
    order = np.argsort(ends, kind="stable")
    last, inches = max(line.x[-1] for line in lines), axes.figure.dpi_scale_trans
    marks, names = (axes.transAxes + ScaledTranslation(points / 72, 0, inches) for points in (10, 16))
    for place, i in zip(separate([ends[i] for i in order]), order, strict=True):
        line, colour = lines[i], lines[i].look.colour
        dash = "-" if line.x[-1] == last else ":"  # a line that ends early must not seem to go on
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.8, "linestyle": dash, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (line.x[-1], line.mean[-1]), (1, place), textcoords=marks, arrowprops=leader)
        axes.plot([1], [place], line.look.marker, markersize=5, color=colour, clip_on=False, transform=marks)
        text = f"{line.label}  {written(line.mean[-1])}".rstrip()
        axes.text(1, place, text, va="center", fontsize=8.5, color=INK, parse_math=False, transform=names)


def separate(places: list[float], gap: float = LABEL_GAP) -> list[float]:
    """Move rising places as little as possible until they are a gap apart; inside 0 to 1 if there is space.

    Least squares under an order is isotonic regression, here by its min-max formula.
    """
    n = len(places)
    z = np.subtract(places, gap * np.arange(n))
    best = [max(min(float(z[a:b].mean()) for b in range(i + 1, n + 1)) for a in range(i + 1)) for i in range(n)]
    highest = max(0.0, 1 - gap * (n - 1))
    return [min(max(value, 0.0), highest) + gap * i for i, value in enumerate(best)]
