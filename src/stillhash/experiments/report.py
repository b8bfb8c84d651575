"""Make one report from result files: the paper's tables and figures, as Markdown and as one HTML page.

The Markdown is the report; the page is that Markdown rendered, with the figures in it. Nothing is measured here and
nothing is looked up elsewhere: the same files give the same report.
"""

import html
import re
import statistics
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markdown_it import MarkdownIt
from markupsafe import Markup
from matplotlib.figure import Figure

from stillhash.errors import InvalidInput
from stillhash.experiments import figures, report_tables, study_tables
from stillhash.experiments.results import METHOD_STYLES, Run, by_size, by_variant, grouped, read_results

SAME_CODES = ("ohsl", "ohsl-sym", "oasis", "lego")  # Figure 8: similarities learnt over the same fixed codes
CHART_MEASURES = ("P@10", "nDCG@10", "mAP")  # against labelled rows
CURVE_SEGMENTS = 24  # of a line of chunks, about: single chunks are noisy


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
        figure.savefig(png, format="png")
        # The same figure gives the same bytes: no date, and ids that depend on the name of the file alone.
        with mpl.rc_context({"svg.hashsalt": stem, "svg.fonttype": "none"}):
            figure.savefig(svg, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        self.paths += [png, svg]
        self.titles[png.name] = title
        return f"![{report_tables.plain(title)}]({png.name})"

    def inline(self, name: str) -> str:
        """Return a PNG's figure as part of a page: ids of its own, no ground, and the ink of the page's text."""
        svg, stem = (self.folder / name).with_suffix(".svg").read_text(encoding="utf-8"), Path(name).stem
        box = re.search(r'viewBox="[^"]+"', svg)
        body = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index(">", svg.index("<svg")) + 1 :], flags=re.DOTALL)
        body = body.replace(figures.INK, "currentColor").replace(f"fill: {figures.GROUND}", "fill: none")
        body = re.sub(r'\bid="', f'id="{stem}-', body).replace("url(#", f"url(#{stem}-")
        body = re.sub(r'\bxlink:href="#', f'href="#{stem}-', body)
        title = html.escape(self.titles[name])
        return f'<svg {box[0] if box else ""} role="img" aria-label="{title}">{body.rstrip()}'


def report(results: Path, out: Path) -> list[Path]:
    """Read every `*.jsonl` under `results`, write the report and its figures into `out`, and return the paths."""
    run_set = read_results(results)
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"out: expected a folder, got the file {str(out)!r}")
    out.mkdir(parents=True, exist_ok=True)
    saved = FigureFiles(out)
    loader = PackageLoader("stillhash.experiments")
    templates = Environment(
        loader=loader, autoescape=select_autoescape(), trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    templates.filters |= {"plain": report_tables.plain, "plural": report_tables.plural}
    templates.globals["title"] = "Online hashing: the experiments"
    context = {**run_set._asdict(), **_sections(run_set.runs, saved)}
    context["provenance"] = report_tables.provenance_table(run_set.runs)
    text = re.sub(r"\n{3,}", "\n\n", templates.get_template("report.md.j2").render(context)).strip() + "\n"
    body = MarkdownIt("commonmark").enable("table").render(text)
    body = re.sub(r'<img src="([^"]+)"[^>]*>', lambda image: saved.inline(image[1]), body)
    page = templates.get_template("report.html").render(body=Markup(body)) + "\n"
    pages = {out / "report.md": text, out / "report.html": page}
    for path, content in pages.items():
        path.write_text(content, encoding="utf-8")
    return [*pages, *saved.paths]


def _sections(runs: list[Run], saved: FigureFiles) -> dict[str, Any]:
    """Return the parts of each section of the template; a section without runs is empty."""
    counts = {"methods": len({run.variant.method for run in runs}), "datasets": len({run.dataset for run in runs})}
    studies = study_tables.study_sections(runs)
    runs = [run for run in runs if run.experiment not in study_tables.STUDY_TABLES]  # they have no figures
    of = grouped(runs, lambda run: run.experiment)
    table, time = of.get("table", []), of.get("time", [])
    look = figures.looks(run.variant for run in runs)
    similarities = by_size(run for run in table if run.variant.method in SAME_CODES).values()
    compared = [some for some in similarities if {"ohsl"} < {run.variant.method for run in some}]
    same_codes, known = list(chain.from_iterable(compared)), {run.variant.method for run in table}
    ratio = "target length over code length, l / b"
    return {
        **counts,
        "label_studies": studies,
        "quality": report_tables.quality_parts(table),
        "curves": _curves(table, look, saved, "curves"),
        "time": _time(time, look, saved),
        "step_sweep": _sweep(of.get("C", []), saved, "step", "C", log=True),
        "length_sweep": _sweep(of.get("length", []), saved, "length", ratio, log=False),
        "same_codes": _curves(same_codes, look, saved, "same-codes", ": similarities over the same codes", least=2),
        "absent_methods": [METHOD_STYLES[method][0] for method in SAME_CODES if method not in known],
        "speed": report_tables.speed_tables(time or table),  # jobs of `table` disturb each other
        "ablation": report_tables.quality_parts(of.get("ablation", [])),
        "labels": _labels(of.get("few-labels", []), saved),
        "label_axes": [
            {"about": axis, "parts": _label_axis(of[kind], axis, look, saved)}
            for kind, axis in report_tables.AXIS_TEXTS.items()
            if kind in of
        ]
        + [{"about": axis, "parts": _texts(of[kind])} for kind, axis in report_tables.TEXT_AXES.items() if kind in of],
        "preprocessing": [
            {"dataset": dataset, "bits": bits, "seeds": _seeds(some), "table": report_tables.preprocessing_table(some)}
            for (dataset, bits), some in by_size(of.get("preprocessing", [])).items()
        ],
        "drift": [
            {
                "dataset": dataset,
                "bits": bits,
                "images": _drift_images(f"{dataset}, {bits} bits", some, look, saved),
                "quality": report_tables.group_table(some),
                "alarms": report_tables.alarm_table(some),
            }
            for (dataset, bits), some in by_size(of.get("drift", [])).items()
        ],
        "max_alarm_delay": report_tables.MAX_ALARM_DELAY,
    }


def _curves(
    runs: Iterable[Run], look: figures.Looks, saved: FigureFiles, name: str, about: str = "", least: int = 1
) -> dict[str, list[str]]:
    """Draw Figures 3 and 4, or 8: mAP against rows, by dataset, where there are `least` lines."""
    images: dict[str, list[str]] = {}
    for (dataset, bits), some in by_size(runs).items():
        title = f"{dataset}, {bits} bits{about}"
        lines = figures.curves(some, lambda at: at.map, look)
        if len(lines) >= least:
            image = saved.save(f"{name}-{dataset}-{bits}", title, figures.rows_chart(lines, title))
            images.setdefault(dataset, []).append(image)
    return images


def _time(runs: Iterable[Run], look: figures.Looks, saved: FigureFiles) -> dict[str, list[dict[str, Any]]]:
    """Draw Figure 5, with a table under each panel."""
    panels: dict[str, list[dict[str, Any]]] = {}
    for (dataset, bits), some in by_size(runs).items():
        title = f"{dataset}, {bits} bits: time to follow the stream"
        lines = figures.curves(some, lambda at: at.total, look, after=1)
        image = saved.save(f"time-{dataset}-{bits}", title, figures.time_chart(lines, title)) if lines else ""
        panels.setdefault(dataset, []).append({"image": image, "table": report_tables.time_table(some)})
    return panels


def _sweep(runs: Iterable[Run], saved: FigureFiles, name: str, axis: str, *, log: bool) -> list[str]:
    """Draw Figure 6 or 7: mAP against one parameter."""
    images = []
    for dataset, group in grouped(runs, lambda run: run.dataset).items():
        if lines := figures.sweep(group):
            labels = {run.variant.label for run in group}
            title = f"{dataset}, {labels.pop()}" if len(labels) == 1 else dataset
            chart = figures.sweep_chart(lines, title, axis, log=log)
            images.append(saved.save(f"{name}-{dataset}", f"{title}: mAP against {axis}", chart))
    return images


def _labels(runs: Iterable[Run], saved: FigureFiles) -> list[dict[str, Any]]:
    """Draw the first hits and the whole ranking against labelled rows, with a table under each panel."""
    parts = []
    for (dataset, bits, variant), some in grouped(runs, lambda run: (run.dataset, run.bits, run.variant)).items():
        title = f"{dataset}, {bits} bits, {variant.label}"
        measured = [(name, figures.along_labels(some, report_tables.TABLE_MEASURES[name])) for name in CHART_MEASURES]
        lines = [
            figures.line_of(name, figures.LineLook(*figures.SPARE_LOOKS[i * 3], width=2), points)
            for i, (name, points) in enumerate(measured)
            if len(points) > 1
        ]
        name = f"labels-{dataset}-{bits}-{variant.label}"
        image = saved.save(name, title, figures.labels_chart(lines, title)) if lines else ""
        parts.append({"title": title, "seeds": len(some), "image": image, "table": report_tables.label_table(some)})
    return parts


def _label_axis(
    runs: Iterable[Run], axis: report_tables.LabelAxis, look: figures.Looks, saved: FigureFiles
) -> list[dict[str, Any]]:
    """Draw mAP against an axis of labels, with tables under each panel."""
    parts = []
    for (dataset, bits), some in by_size(runs).items():
        title = f"{dataset}, {bits} bits"
        lines, name = figures.axis_lines(some, look), f"{title}: mAP against {axis.name}"
        chart = figures.sweep_chart(lines, title, axis.name, log=axis.log) if lines else None
        image = saved.save(f"{axis.heading}-{title}", name, chart) if chart else ""
        tables = report_tables.axis_tables(some, axis.name)
        parts.append({"title": title, "seeds": _seeds(some), "image": image, "tables": tables})
    return parts


def _texts(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return the tables of each corpus; rankings that learn nothing have one seed."""
    return [
        {"title": dataset, "seeds": _seeds(some), "image": "", "tables": report_tables.text_tables(some)}
        for dataset, some in grouped(runs, lambda run: run.dataset).items()
    ]


def _seeds(runs: Iterable[Run]) -> list[int]:
    """Return how many seeds each variant has, at each value that the experiment varies."""
    return [len(some) for some in grouped(runs, lambda run: (run.variant, run.bits, run.swept)).values()]


def _drift_images(title: str, runs: Sequence[Run], look: figures.Looks, saved: FigureFiles) -> list[str]:
    """Draw the quality over time: of chunks before they were learnt, of all queries and of groups of them."""
    changes = sorted({change for run in runs for change in run.end.changes})
    charts = {"new chunks": _chunk_curves(runs, look, changes)}
    charts |= {name: figures.curves(runs, get, look) for name, get in report_tables.group_measures(runs).items()}
    short = re.sub(", [0-9,]+ labelled initial rows", "", title)  # a chart has no space for it; its heading has
    return [
        saved.save(f"drift-{title}-{what}", f"{title}: {what}", figures.rows_chart(lines, f"{short}: {what}", changes))
        for what, lines in charts.items()
        if lines
    ]


def _chunk_curves(runs: Sequence[Run], look: figures.Looks, changes: list[int]) -> figures.Lines:
    """Return one line per variant; neighbouring chunks are one point, but not across a change."""
    lines = []
    for variant, group in by_variant(runs).items():
        pairs = (pair for run in group for at in run.checkpoints for pair in at.prequential)
        by_rows = grouped(pairs, lambda pair: pair[0])
        rows = sorted(rows for rows, some in by_rows.items() if len(some) == len(group))
        size, points = -(-len(rows) // CURVE_SEGMENTS), []
        for stretch in grouped(rows, lambda at: sum(change < at for change in changes)).values():
            for some in (stretch[i : i + size] for i in range(0, len(stretch), size)):
                seeds = zip(*([value for _, value in by_rows[at]] for at in some), strict=True)
                points.append((statistics.fmean(some), [statistics.fmean(values) for values in seeds]))
        if len(points) > 1:
            lines.append(figures.line_of(variant.label, look[variant], points))
    return lines
