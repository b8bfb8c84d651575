"""The report's part on drift: quality over time, quality of groups at the end, and alarms against changes."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stillhash.experiments import figures
from stillhash.experiments.markdown import ABSENT, Draw, Section, plain, table
from stillhash.experiments.results import Checkpoint, Run, Variant, grouped

HEARD = 10_000  # rows after a change within which an alarm is due to it
POINTS = 24  # of a line, about: single chunks are noisy

NOTE = f"""Streams that change where the upright lines are. First, how well the rows of each chunk were found among the
newest rows before the chunk was learnt; then the whole ranking of all queries, and of groups of them, over the database
so far. A monitor listens to the first of these for a fall. An alarm up to {HEARD:,} rows after a change finds it, any
other alarm is false; a change that makes no method worse is not there to be found."""


def drift(runs: Sequence[Run], look: dict[Variant, figures.Look], draw: Draw) -> Section:
    blocks: Section = []
    for (dataset, bits), some in grouped(runs, lambda run: (run.dataset, run.bits)).items():
        images = _images(f"{dataset}, {bits} bits", some, look, draw)
        tables = [_final(some), _alarms(some)]
        blocks += [f"### {plain(dataset)}, {bits} bits", *(["\n".join(images)] if images else []), *tables]
    return ["## Drift", " ".join(NOTE.split()), *blocks] if blocks else []


def _groups(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for at in run.checkpoints for name in at.groups))


def _in(group: str) -> Callable[[Checkpoint], float | None]:
    return lambda at: at.groups.get(group)


def _changes(runs: Sequence[Run]) -> list[int]:
    return sorted({change for run in runs for change in run.end.changes})


# ---- figures ----


def _short(title: str) -> str:
    """Without the words on the initial stage, for which a chart has no room; its heading has them."""
    return re.sub(", [0-9,]+ labelled initial rows", "", title)


def _images(title: str, runs: Sequence[Run], look: dict[Variant, figures.Look], draw: Draw) -> list[str]:
    charts = {"new chunks": _chunks(runs, look), "all queries": figures.curves(runs, lambda at: at.map, look)}
    charts |= {f"{name} queries": figures.curves(runs, _in(name), look) for name in _groups(runs)}
    return [
        draw(
            f"drift-{title}-{what}",
            f"{title}: {what}",
            figures.rows_chart(lines, f"{_short(title)}: {what}", _changes(runs)),
        )
        for what, lines in charts.items()
        if lines
    ]


def _chunks(runs: Sequence[Run], look: dict[Variant, figures.Look]) -> figures.Lines:
    """One line per variant; neighbouring chunks are one point, but not across a change."""
    changes, lines = _changes(runs), []
    for variant, group in grouped(runs, lambda run: run.variant).items():
        heard = grouped((pair for run in group for pair in _heard(run)), lambda pair: pair[0])
        rows = sorted(rows for rows, pairs in heard.items() if len(pairs) == len(group))
        size, points = -(-len(rows) // POINTS), []
        for stretch in grouped(rows, lambda at: sum(change < at for change in changes)).values():
            for some in (stretch[i : i + size] for i in range(0, len(stretch), size)):
                seeds = zip(*([value for _, value in heard[at]] for at in some), strict=True)
                points.append((statistics.fmean(some), [statistics.fmean(values) for values in seeds]))
        if len(points) > 1:
            lines.append(figures.line_of(variant.label, look[variant], points))
    return lines


def _heard(run: Run) -> list[tuple[int, float]]:
    return [(rows, value) for at in run.checkpoints for rows, value in at.prequential]


# ---- tables ----


def _final(runs: Sequence[Run]) -> str:
    columns: dict[str, Callable[[Checkpoint], float | None]] = {"all queries": lambda at: at.map}
    columns |= {f"{name} queries": _in(name) for name in _groups(runs)}
    cells = {}
    of = grouped(runs, lambda run: run.variant)
    for variant, group in of.items():
        for name, measure in columns.items():
            cells[variant, name] = [value for run in group if (value := measure(run.end)) is not None]
    best = {name: max((_mean(cells[variant, name]) for variant in of), default="") for name in columns}

    def cell(variant: Variant, name: str) -> str:
        values = cells[variant, name]
        mean = _mean(values)
        text = f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean
        return f"**{text}**" if mean and mean == best[name] else text or ABSENT

    rows = [[plain(variant.label), *(cell(variant, name) for name in columns)] for variant in of]
    return table(["mAP at the end", *map(plain, columns)], rows)


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.3f}" if values else ""


class Score(NamedTuple):
    false: int  # alarms that no change explains
    delays: list[int]  # rows from each change that was found to its first alarm


def score(alarms: Sequence[int], changes: Sequence[int], heard: int = HEARD) -> Score:
    """An alarm is due to the last change before it, if that is not too long ago."""
    false, found = 0, dict[int, int]()
    for alarm in sorted(alarms):
        before = max((change for change in changes if change < alarm), default=None)
        if before is None or alarm > before + heard:
            false += 1
        else:
            found.setdefault(before, alarm - before)
    return Score(false, list(found.values()))


def _alarms(runs: Sequence[Run]) -> str:
    rows = []
    for variant, group in grouped(runs, lambda run: run.variant).items():
        scores = [score(run.end.alarms, run.end.changes) for run in group]
        delays = [delay for one in scores for delay in one.delays]
        there = sum(len(run.end.changes) for run in group)
        late = f"{statistics.fmean(delays):,.0f}" if delays else ABSENT
        false = f"{statistics.fmean(one.false for one in scores):.3g}"
        rows.append([plain(variant.label), false, f"{len(delays)} of {there}", late])
    return table(["alarms", "false, a run", "changes found", "delay, rows"], rows)
