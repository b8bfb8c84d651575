"""Make the report's part on drift: quality over time, quality of groups at the end, and alarms against changes."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from stillhash.experiments import figures
from stillhash.experiments.report_tables import ABSENT, mean_cell, plain
from stillhash.experiments.results import Checkpoint, Run, grouped
from stillhash.experiments.tables import TableData

MAX_ALARM_DELAY = 10_000  # rows after a change within which an alarm is due to it
CURVE_SEGMENTS = 24  # of a line, about: single chunks are noisy

SaveFigure = Callable[[str, str, Figure], str]  # name, title, figure -> Markdown
Measure = Callable[[Checkpoint], float | None]


def parts(runs: Sequence[Run], look: figures.Looks, save: SaveFigure) -> list[dict[str, Any]]:
    """Return for each dataset and code length what the template shows."""
    return [
        {
            "dataset": dataset,
            "bits": bits,
            "images": _images(f"{dataset}, {bits} bits", some, look, save),
            "quality": _final_table(some),
            "alarms": _alarm_table(some),
        }
        for (dataset, bits), some in grouped(runs, lambda run: (run.dataset, run.bits)).items()
    ]


def _measures(runs: Sequence[Run]) -> dict[str, Measure]:
    """Return the mAP of all queries, and of each group of them."""
    names = dict.fromkeys(name for run in runs for at in run.checkpoints for name in at.groups)
    measures: dict[str, Measure] = {"all queries": lambda at: at.map}
    return measures | {f"{name} queries": lambda at, name=name: at.groups.get(name) for name in names}


def _images(title: str, runs: Sequence[Run], look: figures.Looks, save: SaveFigure) -> list[str]:
    changes = sorted({change for run in runs for change in run.end.changes})
    charts = {"new chunks": _chunk_curves(runs, look, changes)}
    charts |= {name: figures.curves(runs, measure, look) for name, measure in _measures(runs).items()}
    short = re.sub(", [0-9,]+ labelled initial rows", "", title)  # a chart has no space for it; its heading has
    return [
        save(f"drift-{title}-{what}", f"{title}: {what}", figures.rows_chart(lines, f"{short}: {what}", changes))
        for what, lines in charts.items()
        if lines
    ]


def _chunk_curves(runs: Sequence[Run], look: figures.Looks, changes: list[int]) -> figures.Lines:
    """Return one line per variant; neighbouring chunks are one point, but not across a change."""
    lines = []
    for variant, group in grouped(runs, lambda run: run.variant).items():
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


def _final_table(runs: Sequence[Run]) -> TableData:
    """Return the mAP at the end; the best of a column is bold."""
    by_variant, measures = grouped(runs, lambda run: run.variant), _measures(runs)
    columns = []
    for measure in measures.values():
        seeds = [[v for run in group if (v := measure(run.end)) is not None] for group in by_variant.values()]
        means = [f"{statistics.fmean(values):.3f}" if values else "" for values in seeds]
        cells = [mean_cell(values) if values else ABSENT for values in seeds]
        columns.append(
            [f"**{cell}**" if mean and mean == max(means) else cell for cell, mean in zip(cells, means, strict=True)]
        )
    names = [plain(variant.label) for variant in by_variant]
    return TableData(None, ["mAP at the end", *map(plain, measures)], list(zip(names, *columns, strict=True)))


class AlarmScore(NamedTuple):
    false: int  # alarms that no change explains
    delays: list[int]  # rows from each detected change to its first alarm


def score_alarms(alarms: Sequence[int], changes: Sequence[int], max_delay: int = MAX_ALARM_DELAY) -> AlarmScore:
    """Attribute each alarm to the last change before it, if that is not too long ago."""
    false, delays = 0, dict[int, int]()
    for alarm in sorted(alarms):
        before = max((change for change in changes if change < alarm), default=None)
        if before is None or alarm > before + max_delay:
            false += 1
        else:
            delays.setdefault(before, alarm - before)
    return AlarmScore(false, list(delays.values()))


def _alarm_table(runs: Sequence[Run]) -> TableData:
    rows = []
    for variant, group in grouped(runs, lambda run: run.variant).items():
        scores = [score_alarms(run.end.alarms, run.end.changes) for run in group]
        delays = [delay for one in scores for delay in one.delays]
        changes = sum(len(run.end.changes) for run in group)
        false = f"{statistics.fmean(one.false for one in scores):.3g}"
        delay = f"{statistics.fmean(delays):,.0f}" if delays else ABSENT
        rows.append([plain(variant.label), false, f"{len(delays)} of {changes}", delay])
    return TableData(None, ["alarms", "false, a run", "changes found", "delay, rows"], rows)
