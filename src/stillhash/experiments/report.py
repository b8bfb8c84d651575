"""One report from many result files: the paper's tables and figures, as Markdown and as one HTML page.

The Markdown is the report; the page is that Markdown rendered, with the figures in it. Nothing is measured here and
nothing is looked up elsewhere: the same files give the same report.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from stillhash.errors import InvalidInput
from stillhash.experiments import figures, markdown
from stillhash.experiments.drift_report import drift
from stillhash.experiments.markdown import ABSENT, Draw, Section, page, plain
from stillhash.experiments.results import NAMES, PAPER, PARTS, Checkpoint, Results, Run, Variant, grouped, read

TITLE = "Online hashing: the experiments"
TIES_MATTER = 0.001  # a difference in mAP by the order of ties that is worth a table
OHSL = Variant("ohsl")
SAME_CODES = ("ohsl", "ohsl-sym", "oasis", "lego")  # Figure 8: similarities learnt over the same fixed codes

Cells = dict[tuple[Variant, int], list[float]]  # values of the seeds, by variant and code length


def report(results: Path, out: Path) -> list[Path]:
    """Reads every `*.jsonl` under `results`, writes the report and its figures into `out`, and says what it wrote."""
    found = read(results)
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"out is {str(out)!r}, a file; a folder is wanted")
    out.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, str] = {}  # SVG's name -> title
    written: list[Path] = []

    def draw(name: str, title: str, figure: Figure) -> str:
        stem = slug = re.sub("[^a-z0-9._]+", "-", name.lower())
        while f"{stem}.svg" in drawn:  # names that differ may be alike as names of files
            stem = f"{slug}-{len(drawn)}"
        png, svg = out / f"{stem}.png", out / f"{stem}.svg"
        figures.save(figure, png, svg)
        written.extend([png, svg])
        drawn[svg.name] = title
        return f"![{plain(title)}]({svg.name})"

    text = "\n\n".join(_blocks(found, draw)) + "\n"
    pages = {out / "report.md": text, out / "report.html": page(TITLE, text, out, drawn)}
    for path, content in pages.items():
        path.write_text(content, encoding="utf-8")
    return [*pages, *written]


def _blocks(found: Results, draw: Draw) -> list[str]:
    of = grouped(found.runs, lambda run: run.experiment)
    table, time = of.get("table", []), of.get("time", [])
    look = figures.looks(run.variant for run in found.runs)
    sections = [
        (
            _quality(table, "Retrieval quality (Tables 1 and 2)"),
            "Tables 1 and 2: no finished run of experiment `table` with a mAP.",
        ),
        (_curves(table, look, draw), "Figures 3 and 4: no finished run of experiment `table` with two checkpoints."),
        (_time(time, look, draw), "Figure 5: no finished run of experiment `time`."),
        (_sweep(of.get("C", []), draw, STEP), "Figure 6: no finished runs of experiment `C` at two values of C."),
        (
            _sweep(of.get("length", []), draw, LENGTH),
            "Figure 7: no finished runs of experiment `length` at two ratios.",
        ),
        (_same_codes(table, look, draw), "Figure 8: no curves of OHSL beside OHSL-sym, OASIS or LEGO."),
        (_speed(table, time), "Speed of learning: no finished run of experiment `table` or `time` that learnt."),
    ]
    blocks = [f"# {TITLE}", _summary(found)]
    blocks += [block for section, _ in sections for block in section]
    blocks += _quality(of.get("ablation", []), "What each part of Tally is worth")
    blocks += drift(of.get("drift", []), look, draw)
    if missing := [f"- {line}" for section, line in sections if not section]:
        blocks += ["## Not in this report", "\n".join(missing)]
    return blocks + _provenance(found)


def _summary(found: Results) -> str:
    methods = {run.variant.method for run in found.runs}
    datasets = {run.dataset for run in found.runs}
    return (
        f"{_count(len(found.runs), 'finished run')} of {_count(len(methods), 'method')} on "
        f"{_count(len(datasets), 'dataset')}. Tables and figures are numbered as in *Online Hashing with "
        "Similarity Learning* (Weng and Zhu, AAAI 2021)."
    )


# ---- Tables 1 and 2 ----


def _quality(runs: Sequence[Run], heading: str) -> Section:
    blocks: Section = []
    for dataset, group in grouped(runs, lambda run: run.dataset).items():
        cells = _cells(group, lambda at: at.map)
        if not cells:
            continue
        as_the_paper = len({run.variant.method for run in group}) > 1 and "initial rows" not in dataset
        known = (paper for start, paper in PAPER.items() if dataset.lower().startswith(start))
        paper = next(known, None) if as_the_paper else None
        facts = [
            f"{name}: {_values(values)}."
            for name, values in (
                ("Queries", [run.queries for run in group if run.queries is not None]),
                ("Database", [run.database for run in group if run.database is not None]),
                ("Chance", [round(run.end.chance, 3) for run in group if run.end.chance is not None]),
            )
            if values
        ]
        blocks += [
            f"### {plain(dataset)}",
            f"mAP over the whole ranking after the whole stream, {_seeds(cells)}. The best of a column is **bold**, "
            f"the second <u>underlined</u>. {' '.join(facts)}",
            _quality_table(cells, paper.map if paper else {}),
        ]
        if paper:
            blocks.append(
                f"*Columns “paper” are the paper's own Table {paper.number} ({paper.dataset}), made from other "
                "features: compare the order of methods, not the values.*"
            )
        expected = _cells(group, lambda at: at.expected_map)
        both = cells.keys() & expected.keys()
        if any(abs(statistics.fmean(cells[cell]) - statistics.fmean(expected[cell])) > TIES_MATTER for cell in both):
            blocks += [
                "The same with ties counted as every order at once; above they keep the order of the database.",
                _quality_table(expected, {}),
            ]
    return [f"## {heading}", *blocks] if blocks else []


def _cells(runs: Iterable[Run], measure: Callable[[Checkpoint], float | None]) -> Cells:
    cells: Cells = {}
    for run in runs:
        if (value := measure(run.end)) is not None:
            cells.setdefault((run.variant, run.bits), []).append(value)
    return cells


def _seeds(cells: Cells) -> str:
    most = max(map(len, cells.values()))
    if most == 1:
        return "one seed"
    fewer = "; cells of fewer seeds say so" if any(len(values) < most for values in cells.values()) else ""
    return f"mean ± standard deviation over {most} seeds{fewer}"


def _quality_table(cells: Cells, paper: dict[str, dict[int, float]]) -> str:
    lengths = sorted({bits for _, bits in cells})
    printed = [bits for bits in lengths if any(bits in row for row in paper.values())]
    variants = {variant for variant, _ in cells} | {Variant(method) for method in paper}
    most = max(map(len, cells.values()))
    # Two means that print alike share a place: nothing that is shown sets them apart.
    means = {cell: f"{statistics.fmean(values):.3f}" for cell, values in cells.items()}
    first, second = {}, {}
    for bits in lengths:
        column = sorted({mean for (_, length), mean in means.items() if length == bits}, reverse=True)
        first[bits], second[bits] = column[0], column[1] if len(column) > 1 else None

    def cell(variant: Variant, bits: int) -> str:
        if (variant, bits) not in cells:
            return ABSENT
        values, mean = cells[variant, bits], means[variant, bits]
        text = f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean
        text = f"**{text}**" if mean == first[bits] else f"<u>{text}</u>" if mean == second[bits] else text
        return text if len(values) == most else f"{text} (n = {len(values)})"

    def from_paper(variant: Variant, bits: int) -> str:
        value = None if variant.params else paper.get(variant.method, {}).get(bits)
        return ABSENT if value is None else f"*{value:.3f}*"

    head = ["", *(f"{bits} bits" for bits in lengths), *(f"*paper, {bits}*" for bits in printed)]
    rows = [
        [plain(variant.label), *(cell(variant, b) for b in lengths), *(from_paper(variant, b) for b in printed)]
        for variant in sorted(variants, key=lambda variant: variant.place)
    ]
    return markdown.table(head, rows)


# ---- Figures 3 to 8 ----


def _panels(
    runs: Sequence[Run], panel: Callable[[str, int, list[Run]], Sequence[str]], *, together: bool = False
) -> Section:
    """Per dataset a heading and what `panel` makes of each code length; `together`: images in one paragraph."""
    blocks: Section = []
    for dataset, group in grouped(runs, lambda run: run.dataset).items():
        made = [
            block for bits, some in grouped(group, lambda run: run.bits).items() for block in panel(dataset, bits, some)
        ]
        if made:
            blocks += [f"### {plain(dataset)}", *(["\n".join(made)] if together else made)]
    return blocks


def _curves(runs: Sequence[Run], look: dict[Variant, figures.Look], draw: Draw) -> Section:
    def panel(dataset: str, bits: int, some: list[Run]) -> list[str]:
        title = f"{dataset}, {bits} bits"
        lines = figures.curves(some, lambda at: at.map, look)
        return [draw(f"curves-{dataset}-{bits}", title, figures.rows_chart(lines, title))] if lines else []

    blocks = _panels(runs, panel, together=True)
    return ["## Quality while the stream runs (Figures 3 and 4)", SHADED, *blocks] if blocks else []


def _same_codes(runs: Sequence[Run], look: dict[Variant, figures.Look], draw: Draw) -> Section:
    def panel(dataset: str, bits: int, some: list[Run]) -> list[str]:
        title = f"{dataset}, {bits} bits: similarities over the same codes"
        lines = figures.curves([run for run in some if run.variant.method in SAME_CODES], lambda at: at.map, look)
        drawn = {run.variant.method for run in some} & set(SAME_CODES)
        if len(lines) < 2 or not {"ohsl"} < drawn:
            return []
        return [draw(f"same-codes-{dataset}-{bits}", title, figures.rows_chart(lines, title))]

    blocks = _panels(runs, panel, together=True)
    absent = [NAMES[method] for method in SAME_CODES if all(run.variant.method != method for run in runs)]
    note = SHADED + (f" No runs of {' and '.join(absent)}." if absent else "")
    return ["## Other similarities over the same codes (Figure 8)", note, *blocks] if blocks else []


class Sweep(NamedTuple):
    heading: str
    name: str
    axis: str
    log: bool


STEP = Sweep("The largest step C (Figure 6)", "step", "C", True)
LENGTH = Sweep("The length of target codes (Figure 7)", "length", "target length over code length, l / b", False)
SHADED = "Lines are means over seeds; shades reach from the worst seed to the best."


def _sweep(runs: Sequence[Run], draw: Draw, what: Sweep) -> Section:
    images = []
    for dataset, group in grouped(runs, lambda run: run.dataset).items():
        if lines := figures.sweep(group):
            names = {run.variant.label for run in group}
            title = f"{dataset}, {names.pop()}" if len(names) == 1 else dataset
            chart = figures.sweep_chart(lines, title, what.axis, log=what.log)
            images.append(draw(f"{what.name}-{dataset}", f"{title}: mAP against {what.axis}", chart))
    return [f"## {what.heading}", SHADED, "\n".join(images)] if images else []


class Fit(NamedTuple):
    """Least squares of seconds by rows n: a n alone, then a n + b n²; R² is the share of the variance explained."""

    linear: tuple[float]
    linear_r2: float
    quadratic: tuple[float, float]
    quadratic_r2: float


def fit(rows: ArrayLike, seconds: ArrayLike) -> Fit | None:
    """None if there are too few points to tell the two apart, or all are alike."""
    t = np.asarray(seconds, np.float64)
    n = np.asarray(rows, np.float64)
    if len(t) < 3 or not n.any() or np.ptp(t) == 0:
        return None
    scale = n.max()
    powers = np.stack([n / scale, (n / scale) ** 2], axis=1)

    def solved(columns: Any) -> tuple[Any, float]:
        found = np.linalg.lstsq(columns, t, rcond=None)[0]
        return found, 1 - float(((columns @ found - t) ** 2).sum() / ((t - t.mean()) ** 2).sum())

    (a,), straight = solved(powers[:, :1])
    (c, d), bent = solved(powers)
    return Fit((float(a / scale),), straight, (float(c / scale), float(d / scale**2)), bent)


def _time(runs: Sequence[Run], look: dict[Variant, figures.Look], draw: Draw) -> Section:
    def panel(dataset: str, bits: int, some: list[Run]) -> list[str]:
        title = f"{dataset}, {bits} bits: time to follow the stream"
        lines = figures.curves(some, lambda at: at.total, look, after=1)
        image = [draw(f"time-{dataset}-{bits}", title, figures.time_chart(lines, title))] if lines else []
        return [*image, _time_table(some)]

    blocks = _panels(runs, panel)
    note = (
        "Learning, refreshing stored codes, encoding new rows and reading raw data, added up from the start; mean over "
        "seeds. R² is of t = a n and of t = a n + b n², n the rows. “Times OHSL” compares totals at the same rows."
    )
    return ["## Accumulated time (Figure 5)", note, *blocks] if blocks else []


def _time_table(runs: Sequence[Run]) -> str:
    totals = {
        variant: {rows: statistics.fmean(values) for rows, values in figures.along(group, lambda at: at.total)}
        for variant, group in grouped(runs, lambda run: run.variant).items()
    }
    rows = []
    for variant, group in grouped(runs, lambda run: run.variant).items():
        ends = [run.end for run in group]
        length, total = ends[0].rows, statistics.fmean(at.total for at in ends)
        shares = [statistics.fmean(at.seconds[part] for at in ends) / (total or 1) for part in PARTS]
        curve = {n: seconds for n, seconds in totals[variant].items() if n}
        quality = fit(list(curve), list(curve.values()))
        ohsl = totals.get(OHSL, {}).get(length)
        rows.append(
            [
                plain(variant.label),
                f"{length:,}",
                _three(total),
                *(f"{share:.1%}" for share in shares),
                *([f"{quality.linear_r2:.4f}", f"{quality.quadratic_r2:.4f}"] if quality else [ABSENT, ABSENT]),
                _three(total / ohsl) if ohsl else ABSENT,
            ]
        )
    parts = ("learning", "refreshing", "encoding", "I/O")
    return markdown.table(["", "rows", "total, s", *parts, "R² linear", "R² quadratic", "times OHSL"], rows)


def _three(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _speed(table: Sequence[Run], time: Sequence[Run]) -> Section:
    """Rows a second of learning; from experiment `table`, whose jobs disturb each other, only if there is no `time`."""
    blocks: Section = []
    for dataset, group in grouped(time or table, lambda run: run.dataset).items():
        cells = _cells(group, lambda at: at.rows / at.seconds["learn"] if at.rows and at.seconds["learn"] else None)
        if not cells:
            continue
        lengths = sorted({bits for _, bits in cells})
        rows = [
            [
                plain(variant.label),
                *(f"{statistics.fmean(of):,.0f}" if (of := cells.get((variant, b))) else ABSENT for b in lengths),
            ]
            for variant in sorted({variant for variant, _ in cells}, key=lambda variant: variant.place)
        ]
        blocks += [f"### {plain(dataset)}", markdown.table(["", *(f"{bits} bits" for bits in lengths)], rows)]
    note = "Rows a second over the whole stream, learning alone: no refreshing, no encoding, no I/O; mean over seeds."
    return ["## Speed of learning", note, *blocks] if blocks else []


# ---- where it comes from ----


def _reading(found: Results) -> str:
    parts = [f"Read {_count(found.lines, 'line')} in {_count(found.files, 'file')}."]
    if found.torn:
        parts.append(f"{_count(found.torn, 'last line')} cut short and left out.")
    if found.replaced:
        parts.append(f"{_count(found.replaced, 'line')} replaced by a later one of the same run and rows.")
    if found.unfinished:
        parts.append(f"{_count(len(found.unfinished), 'unfinished run')} left out.")
    return " ".join(parts)


def _provenance(found: Results) -> Section:
    every = [at for run in [*found.runs, *found.unfinished] for at in run.checkpoints]
    rows = [["commit", _values([at.commit for at in every if at.commit])]]
    for attribute in ("machine", "versions"):
        said: list[Mapping[str, Any]] = [getattr(at, attribute) for at in every]
        keys = dict.fromkeys(key for one in said for key in one)
        rows += [[f"{attribute}: {plain(key)}", _values(one[key] for one in said if key in one)] for key in keys]
    blocks = ["## Where the numbers come from", _reading(found), markdown.table(["", "found"], rows, left=True)]
    if commands := dict.fromkeys(at.command for at in every if at.command):
        blocks += ["Commands:", "\n".join("    " + " ".join(command.split()) for command in commands)]
    if found.unfinished:
        lines = (
            f"- {plain(run.dataset)}, {run.experiment}, {plain(run.variant.label)}, {run.bits} bits, seed {run.seed}: "
            f"{run.end.rows:,} rows so far"
            for run in found.unfinished
        )
        blocks += ["Unfinished runs:", "\n".join(lines)]
    return blocks


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _values(values: Iterable[Any]) -> str:
    """The distinct ones; of many numbers, the range."""
    distinct = list(dict.fromkeys(json.dumps(value) if isinstance(value, dict | list) else value for value in values))
    if len(distinct) > 3 and all(isinstance(value, int | float) for value in distinct):
        distinct = [f"{_shown(min(distinct))} to {_shown(max(distinct))}"]
    return ", ".join(map(_shown, distinct)) or "not told"


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else plain(str(value))
