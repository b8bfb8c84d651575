"""Make one report from result files: the paper's tables and figures, as Markdown and as one HTML page.

The Markdown is the report; the page is that Markdown rendered, with the figures in it. Nothing is measured here and
nothing is looked up elsewhere: the same files give the same report.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from matplotlib.figure import Figure

from stillhash.errors import InvalidInput
from stillhash.experiments import figures, report_drift
from stillhash.experiments.report_tables import (
    plain,
    plural,
    provenance_table,
    quality_parts,
    speed_tables,
    time_table,
)
from stillhash.experiments.results import METHOD_STYLES, Run, grouped, read_results

TITLE = "Online hashing: the experiments"
SAME_CODES = ("ohsl", "ohsl-sym", "oasis", "lego")  # Figure 8: similarities learnt over the same fixed codes

FigureMarkdown = dict[str, list[str]]  # Markdown of figures, by dataset


class FigureFiles:
    """Saves figures as PNG and SVG into a folder, each under a name of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.titles: dict[str, str] = {}  # by the name of the PNG
        self.paths: list[Path] = []

    def save(self, name: str, title: str, figure: Figure) -> str:
        """Save a figure, and return its Markdown."""
        stem = slug = re.sub("[^a-z0-9._]+", "-", name.lower())
        while f"{stem}.png" in self.titles:  # names that differ may be alike as names of files
            stem = f"{slug}-{len(self.titles)}"
        png, svg = self.folder / f"{stem}.png", self.folder / f"{stem}.svg"
        figures.save(figure, png, svg)
        self.paths += [png, svg]
        self.titles[png.name] = title
        return f"![{plain(title)}]({png.name})"

    def inline(self, name: str) -> str:
        """Return the SVG of a PNG, to be part of a page."""
        svg = (self.folder / name).with_suffix(".svg").read_text(encoding="utf-8")
        return figures.inline(svg, f"{Path(name).stem}-", html.escape(self.titles[name]))


def report(results: Path, out: Path) -> list[Path]:
    """Read every `*.jsonl` under `results`, write the report and its figures into `out`, and return the paths."""
    run_set = read_results(results)
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"out: expected a folder, got the file {str(out)!r}")
    out.mkdir(parents=True, exist_ok=True)
    saved = FigureFiles(out)
    templates = Environment(
        loader=PackageLoader("stillhash.experiments"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=lambda name: name == "report.html.j2",
    )
    templates.filters |= {"plain": plain, "plural": plural}
    context = {**run_set._asdict(), **_sections(run_set.runs, saved), **provenance_table(run_set)}
    text = templates.get_template("report.md.j2").render(title=TITLE, **context)
    text = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
    page = templates.get_template("report.html.j2").render(title=TITLE, body=_to_html(text, saved))
    pages = {out / "report.md": text, out / "report.html": page}
    for path, content in pages.items():
        path.write_text(content, encoding="utf-8")
    return [*pages, *saved.paths]


def _to_html(text: str, saved: FigureFiles) -> Markup:
    """Render Markdown as HTML that needs no other file."""

    def image(_self: Any, tokens: Sequence[Any], i: int, _options: Any, _env: Any) -> str:
        return saved.inline(str(tokens[i].attrs["src"]))

    markdown = MarkdownIt("commonmark").enable("table")
    markdown.add_render_rule("image", image)
    return Markup(markdown.render(text))


def _sections(runs: list[Run], saved: FigureFiles) -> dict[str, Any]:
    """Return the parts of each section of the template; a section without runs is empty."""
    of = grouped(runs, lambda run: run.experiment)
    table, time = of.get("table", []), of.get("time", [])
    look = figures.looks(run.variant for run in runs)
    ratio = "target length over code length, l / b"
    return {
        "methods": len({run.variant.method for run in runs}),
        "datasets": len({run.dataset for run in runs}),
        "quality": quality_parts(table),
        "curves": _curves(table, look, saved),
        "time": _time(time, look, saved),
        "step_sweep": _sweep(of.get("C", []), saved, "step", "C", log=True),
        "length_sweep": _sweep(of.get("length", []), saved, "length", ratio, log=False),
        "same_codes": _same_codes(table, look, saved),
        "absent_methods": [
            METHOD_STYLES[method][0] for method in SAME_CODES if all(run.variant.method != method for run in table)
        ],
        "speed": speed_tables(time or table),  # jobs of `table` disturb each other
        "ablation": quality_parts(of.get("ablation", [])),
        "drift": report_drift.parts(of.get("drift", []), look, saved.save),
        "max_alarm_delay": report_drift.MAX_ALARM_DELAY,
    }


def _by_size(runs: Sequence[Run]) -> dict[tuple[str, int], list[Run]]:
    return grouped(runs, lambda run: (run.dataset, run.bits))


def _curves(runs: Sequence[Run], look: figures.Looks, saved: FigureFiles) -> FigureMarkdown:
    """Draw Figures 3 and 4."""
    images: FigureMarkdown = {}
    for (dataset, bits), some in _by_size(runs).items():
        title = f"{dataset}, {bits} bits"
        if lines := figures.curves(some, lambda at: at.map, look):
            image = saved.save(f"curves-{dataset}-{bits}", title, figures.rows_chart(lines, title))
            images.setdefault(dataset, []).append(image)
    return images


def _same_codes(runs: Sequence[Run], look: figures.Looks, saved: FigureFiles) -> FigureMarkdown:
    """Draw Figure 8, where there is OHSL and another similarity over its codes."""
    images: FigureMarkdown = {}
    for (dataset, bits), some in _by_size([run for run in runs if run.variant.method in SAME_CODES]).items():
        title = f"{dataset}, {bits} bits: similarities over the same codes"
        lines = figures.curves(some, lambda at: at.map, look)
        if len(lines) > 1 and {"ohsl"} < {run.variant.method for run in some}:
            image = saved.save(f"same-codes-{dataset}-{bits}", title, figures.rows_chart(lines, title))
            images.setdefault(dataset, []).append(image)
    return images


def _time(runs: Sequence[Run], look: figures.Looks, saved: FigureFiles) -> dict[str, list[dict[str, Any]]]:
    """Draw Figure 5, with a table under each panel."""
    panels: dict[str, list[dict[str, Any]]] = {}
    for (dataset, bits), some in _by_size(runs).items():
        title = f"{dataset}, {bits} bits: time to follow the stream"
        lines = figures.curves(some, lambda at: at.total, look, after=1)
        image = saved.save(f"time-{dataset}-{bits}", title, figures.time_chart(lines, title)) if lines else ""
        panels.setdefault(dataset, []).append({"image": image, "table": time_table(some)})
    return panels


def _sweep(runs: Sequence[Run], saved: FigureFiles, name: str, axis: str, *, log: bool) -> list[str]:
    """Draw Figure 6 or 7: mAP against one parameter."""
    images = []
    for dataset, group in grouped(runs, lambda run: run.dataset).items():
        if lines := figures.sweep(group):
            labels = {run.variant.label for run in group}
            title = f"{dataset}, {labels.pop()}" if len(labels) == 1 else dataset
            chart = figures.sweep_chart(lines, title, axis, log=log)
            images.append(saved.save(f"{name}-{dataset}", f"{title}: mAP against {axis}", chart))
    return images
