"""Make the report's tables, but for those of labels of stored items; cells are Markdown."""

import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from stillhash.experiments import figures
from stillhash.experiments.metrics import MEASURE_NAMES
from stillhash.experiments.results import PAPER_TABLES, TIME_PARTS, Run, Variant, by_variant, grouped
from stillhash.experiments.tables import TableData

ABSENT = "—"
TIES_MATTER = 0.001  # a difference in mAP by the order of ties that is worth a table
MAX_ALARM_DELAY = 10_000  # rows after a change within which an alarm is due to it
# How to get each measure of a checkpoint, by its name in tables.
TABLE_MEASURES: dict[str, figures.Measure] = {name: attrgetter(field) for field, name in MEASURE_NAMES.items()}

Cells = Mapping[tuple[Variant, Any], list[float]]  # values of the seeds, by variant and code length, or another number


def plain(text: str) -> str:
    """Escape what Markdown or HTML would see as marks."""
    text = re.sub(r"([\\`*\[\]<>|&~])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)


def plural(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def mean_cell(values: Sequence[float]) -> str:
    """Return the mean, with the deviation of several seeds."""
    mean = f"{statistics.fmean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean


def quality_parts(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return for each dataset what the template shows: tables of the measures, facts, the paper's table, ties."""
    parts = []
    for dataset, group in grouped(runs, lambda run: run.dataset).items():
        if not (cells := _cells(group, lambda at: at.map)):
            continue
        as_paper = not any(other in dataset for other in (", label", "initial rows"))  # all labels, 300 initial rows
        comparable = len({run.variant.method for run in group}) > 1 and as_paper
        papers = [paper for start, paper in PAPER_TABLES.items() if dataset.lower().startswith(start)]
        paper = papers[0] if papers and comparable else None
        facts: dict[str, list[Any]] = {
            "Queries": [run.queries for run in group if run.queries is not None],
            "Database": [run.database for run in group if run.database is not None],
            "Chance": [round(run.end.chance, 3) for run in group if run.end.chance is not None],
        }
        expected = _cells(group, lambda at: at.expected_map)
        both = cells.keys() & expected.keys()
        ties = any(abs(statistics.fmean(cells[cell]) - statistics.fmean(expected[cell])) > TIES_MATTER for cell in both)
        tables = {
            "table": quality_table(cells, paper.map if paper else {}),
            "expected": quality_table(expected, {}) if ties else None,
            "others": {
                name: quality_table(some, {})
                for name, measure in TABLE_MEASURES.items()
                if name != "mAP" and (some := _cells(group, measure))
            },
        }
        texts = [f"{name}: {_values(values)}." for name, values in facts.items() if values]
        seeds = [len(values) for values in cells.values()]
        parts.append({"dataset": dataset, "seeds": seeds, "facts": texts, "paper": paper, **tables})
    return parts


def _cells(runs: Iterable[Run], measure: figures.Measure) -> Cells:
    cells: dict[tuple[Variant, int], list[float]] = {}
    for run in runs:
        if (value := measure(run.end)) is not None:
            cells.setdefault((run.variant, run.bits), []).append(value)
    return cells


def quality_table(cells: Cells, paper: Mapping[str, Mapping[int, float]], heading: str = "{} bits") -> TableData:
    """Return a line for each variant and a column for each length; `heading` is the format of theirs."""
    lengths = sorted({bits for _, bits in cells})
    printed = [bits for bits in lengths if any(bits in row for row in paper.values())]
    most = max(map(len, cells.values()))
    # Two means that print alike share a place: nothing that is shown sets them apart.
    means = {cell: f"{statistics.fmean(values):.3f}" for cell, values in cells.items()}
    best = {b: sorted({mean for (_, bits), mean in means.items() if bits == b}, reverse=True) for b in lengths}
    rows = []
    for variant in sorted({variant for variant, _ in cells} | set(map(Variant, paper)), key=lambda v: v.sort_key):
        row = [plain(variant.label)]
        for bits in lengths:
            values, mean = cells.get((variant, bits)), means.get((variant, bits))
            text = mean_cell(values) if values else ABSENT
            text = f"**{text}**" if mean == best[bits][0] else f"<u>{text}</u>" if mean in best[bits][1:2] else text
            row.append(text if not values or len(values) == most else f"{text} (n = {len(values)})")
        for bits in printed:
            value = None if variant.params else paper.get(variant.method, {}).get(bits)
            row.append(ABSENT if value is None else f"*{value:.3f}*")
        rows.append(row)
    return TableData(None, ["", *map(heading.format, lengths), *(f"*paper, {b}*" for b in printed)], rows)


def label_table(runs: Sequence[Run]) -> TableData:
    """Return the measures of one variant at each number of labelled rows, with their change against none."""
    columns = {
        name: {labels: statistics.fmean(values) for labels, values in figures.along_labels(runs, measure)}
        for name, measure in TABLE_MEASURES.items()
    }
    counts = sorted({labels for means in columns.values() for labels in means})
    rows = [[f"{labels:,}", *(_change(means, labels) for means in columns.values())] for labels in counts]
    return TableData(None, ["labelled rows", *columns], rows)


def _change(means: Mapping[int, float], labels: int) -> str:
    if labels not in means:
        return ABSENT
    change = f" ({means[labels] - means[0]:+.3f})" if labels and 0 in means else ""
    return f"{means[labels]:.3f}{change}"


class TimeFit(NamedTuple):
    """Least squares of seconds by rows n: a n alone, then a n + b n²; R² is the share of the variance explained."""

    linear: tuple[float]
    linear_r2: float
    quadratic: tuple[float, float]
    quadratic_r2: float


def fit_time(rows: ArrayLike, seconds: ArrayLike) -> TimeFit | None:
    """Fit both curves; None if there are too few points to tell the two apart, or all are alike."""
    t, n = np.asarray(seconds, np.float64), np.asarray(rows, np.float64)
    if len(t) < 3 or not n.any() or np.ptp(t) == 0:
        return None
    scale = n.max()
    powers = np.stack([n / scale, (n / scale) ** 2], axis=1)
    solutions = [np.linalg.lstsq(powers[:, :count], t, rcond=None)[0] for count in (1, 2)]
    residues = [powers[:, : len(solution)] @ solution - t for solution in solutions]
    r2 = [1 - float((residue**2).sum() / ((t - t.mean()) ** 2).sum()) for residue in residues]
    (a,), (c, d) = solutions
    return TimeFit((float(a / scale),), r2[0], (float(c / scale), float(d / scale**2)), r2[1])


def time_table(runs: Sequence[Run]) -> TableData:
    variants = by_variant(runs)
    totals = {
        variant: {rows: statistics.fmean(values) for rows, values in figures.along(group, lambda at: at.total)}
        for variant, group in variants.items()
    }
    rows = []
    for variant, group in variants.items():
        ends = [run.end for run in group]
        length, total = ends[0].rows, statistics.fmean(at.total for at in ends)
        shares = [statistics.fmean(at.seconds[part] for at in ends) / (total or 1) for part in TIME_PARTS]
        curve = {n: seconds for n, seconds in totals[variant].items() if n}
        fit = fit_time(list(curve), list(curve.values()))
        ohsl = totals.get(Variant("ohsl"), {}).get(length)
        fits = [f"{fit.linear_r2:.4f}", f"{fit.quadratic_r2:.4f}"] if fit else [ABSENT, ABSENT]
        sizes = [plain(variant.label), f"{length:,}", _three_digits(total), *(f"{share:.1%}" for share in shares)]
        rows.append([*sizes, *fits, _three_digits(total / ohsl) if ohsl else ABSENT])
    parts = ("learning", "refreshing", "encoding", "I/O")
    return TableData(None, ["", "rows", "total, s", *parts, "R² linear", "R² quadratic", "times OHSL"], rows)


def _three_digits(value: float) -> str:
    """Write three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def speed_tables(runs: Sequence[Run]) -> dict[str, TableData]:
    """Return rows a second of learning, by dataset."""
    tables = {}
    for dataset, group in grouped(runs, lambda run: run.dataset).items():
        cells = _cells(group, lambda at: at.rows / at.seconds["learn"] if at.rows and at.seconds["learn"] else None)
        texts = {cell: f"{statistics.fmean(values):,.0f}" for cell, values in cells.items()}
        lengths = sorted({bits for _, bits in texts})
        rows = [
            [plain(variant.label), *(texts.get((variant, bits), ABSENT) for bits in lengths)]
            for variant in sorted({variant for variant, _ in texts}, key=lambda v: v.sort_key)
        ]
        if rows:
            tables[dataset] = TableData(None, ["", *(f"{bits} bits" for bits in lengths)], rows)
    return tables


def group_measures(runs: Sequence[Run]) -> dict[str, figures.Measure]:
    """Return how to get the mAP of all queries, and of each group of them."""
    names = dict.fromkeys(name for run in runs for at in run.checkpoints for name in at.groups)
    measures: dict[str, figures.Measure] = {"all queries": lambda at: at.map}
    return measures | {f"{name} queries": lambda at, name=name: at.groups.get(name) for name in names}


def group_table(runs: Sequence[Run]) -> TableData:
    """Return the measures at the end, and the mAP of groups of queries; the best of a column is bold."""
    groups = [(f"mAP, {name}", measure) for name, measure in group_measures(runs).items()][1:]  # not of all queries
    variants, columns = by_variant(runs), dict[str, list[str]]()
    for name, measure in [*TABLE_MEASURES.items(), *groups]:
        seeds = [[v for run in group if (v := measure(run.end)) is not None] for group in variants.values()]
        means = [f"{statistics.fmean(values):.3f}" if values else "" for values in seeds]
        cells = [mean_cell(values) if values else ABSENT for values in seeds]
        pairs = zip(cells, means, strict=True)
        if any(means) or name == "mAP":
            columns[plain(name)] = [f"**{cell}**" if mean and mean == max(means) else cell for cell, mean in pairs]
    names = [plain(variant.label) for variant in variants]
    return TableData(None, ["at the end", *columns], list(zip(names, *columns.values(), strict=True)))


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


def alarm_table(runs: Sequence[Run]) -> TableData:
    rows = []
    for variant, group in by_variant(runs).items():
        scores = [score_alarms(run.end.alarms, run.end.changes) for run in group]
        delays = [delay for one in scores for delay in one.delays]
        changes = sum(len(run.end.changes) for run in group)
        false = f"{statistics.fmean(one.false for one in scores):.3g}"
        delay = f"{statistics.fmean(delays):,.0f}" if delays else ABSENT
        rows.append([plain(variant.label), false, f"{len(delays)} of {changes}", delay])
    return TableData(None, ["alarms", "false, a run", "changes found", "delay, rows"], rows)


def provenance_table(runs: Sequence[Run]) -> TableData:
    """Return the commits, machines and versions of all checkpoints."""
    checkpoints = [at for run in runs for at in run.checkpoints]
    rows = [["commit", _values([at.commit for at in checkpoints if at.commit])]]
    for attribute in ("machine", "versions"):
        objects: list[Mapping[str, Any]] = [getattr(at, attribute) for at in checkpoints]
        keys = dict.fromkeys(key for one in objects for key in one)
        rows += [[f"{attribute}: {plain(key)}", _values(one[key] for one in objects if key in one)] for key in keys]
    return TableData(None, ["", "value"], rows)


def _values(values: Iterable[Any]) -> str:
    """List the distinct values; of many numbers, the range."""
    distinct = list(dict.fromkeys(json.dumps(value) if isinstance(value, dict | list) else value for value in values))
    if len(distinct) > 3 and all(isinstance(value, int | float) for value in distinct):
        distinct = [f"{_value(min(distinct))} to {_value(max(distinct))}"]
    return ", ".join(map(_value, distinct)) or "not recorded"


def _value(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else plain(str(value))


# ---- labels that are missing, wrong or late, and pre-processing ----

AXIS_MEASURES = ("mAP", "P@10", "nDCG@10")
PREPROCESSING_WORDS = {"center": "centred", "unit_norm": "unit norm"}  # by parameter


class LabelAxis(NamedTuple):
    """How the report shows one experiment with labels."""

    heading: str
    text: str
    name: str  # of the axis, in tables and figures
    log: bool  # whether a figure has a logarithmic axis


AXIS_TEXTS = {  # by experiment
    "labelled-share": LabelAxis(
        "Quality by share of labelled rows",
        "This share of the rows is inserted with labels: rows drawn by the seed, the same for all methods. The others "
        "have none, neither for learning nor for codes. Rows of a labelled initial stage have labels too, except with "
        "a share of 0.",
        "labelled share",
        log=True,
    ),
    "label-noise": LabelAxis(
        "Quality by label noise",
        "This share of the rows, the initial stage included, has the labels of another row: rows drawn by the seed, "
        "the same for all methods. Quality is judged by the true labels.",
        "label noise",
        log=False,
    ),
    "label-delay": LabelAxis(
        "Quality by label delay",
        "Rows are encoded without labels; these arrive so many chunks of 1,000 rows later, and are then learnt with "
        "the codes that are stored. Labels of the initial stage are known from the start. After the last chunk all "
        "labels that are left arrive.",
        "delay, chunks",
        log=True,
    ),
}


TEXT_AXES = {  # by experiment
    "text-insertion": LabelAxis(
        "Texts: labels known when they are stored",
        "So many texts, drawn by the seed, are stored with their labels, all others without.",
        "labels",
        log=True,
    ),
    "text-late": LabelAxis(
        "Texts: labels that come after all are stored",
        "All texts are stored without labels; then so many of them, drawn by the seed, get theirs.",
        "labels",
        log=True,
    ),
}


def axis_tables(runs: Sequence[Run], name: str) -> dict[str, TableData]:
    """Return a table of each measure: a line for each variant, a column for each value of the axis."""
    tables = {}
    by_value = grouped(runs, lambda run: run.swept or 0.0)
    for measure in AXIS_MEASURES:
        cells: dict[tuple[Variant, float], list[float]] = {}
        for run in runs:
            if (value := TABLE_MEASURES[measure](run.end)) is not None:
                cells.setdefault((run.variant, run.swept or 0.0), []).append(value)
        if cells:
            _, (_, *columns), lines = quality_table(cells, {}, "{:g}")
            counts = [_labelled_rows(by_value[x]) for x in sorted({x for _, x in cells})]
            tables[measure] = TableData(None, [name, *columns], [["*labelled rows*", *counts], *lines])
    return tables


def text_tables(runs: Sequence[Run]) -> dict[str, TableData]:
    """Return a table of each measure: a line for each method and length, a column for each number of labels.

    Rankings that learn nothing are the same in all columns.
    """
    counts = sorted({at.labelled or 0 for run in runs for at in run.checkpoints})
    tables = {}
    for measure in AXIS_MEASURES:
        cells: dict[tuple[Variant, int], list[float]] = {}
        for run in runs:
            bits = (("bits", str(run.bits)),) if run.bits else ()
            variant = run.variant._replace(params=(*bits, *run.variant.params))
            for at in run.checkpoints:
                if (value := TABLE_MEASURES[measure](at)) is not None:
                    for count in [at.labelled or 0] if run.bits else counts:
                        cells.setdefault((variant, count), []).append(value)
        if cells:
            tables[measure] = quality_table(cells, {}, "{:,}")
    return tables


def _labelled_rows(runs: Sequence[Run]) -> str:
    """Return how many rows get labels, the mean over seeds."""
    counts = [run.end.labelled_rows for run in runs if run.end.labelled_rows is not None]
    return f"{statistics.fmean(counts):,.0f}" if counts else ABSENT


def preprocessing_table(runs: Sequence[Run]) -> TableData:
    """Return the figures of each method with the pre-processing that is better for the queries set apart.

    The figures are of the other queries. The last column has the mAP of the next best pre-processing.
    """
    lines: list[list[str]] = []
    means: list[dict[str, str]] = []
    by_method = grouped(
        (run for run in runs if "map" in run.end.validation), lambda run: _split_variant(run.variant)[0]
    )
    for variant, group in sorted(by_method.items(), key=lambda pair: pair[0].sort_key):
        forms = grouped(group, lambda run: _split_variant(run.variant)[1])
        chosen, *others = sorted(forms, key=lambda form: -statistics.fmean(_validation(run) for run in forms[form]))
        values = {name: _measured(forms[chosen], measure) for name, measure in TABLE_MEASURES.items()}
        other = _measured(forms[others[0]], TABLE_MEASURES["mAP"]) if others else []
        cells = [mean_cell(some) if some else ABSENT for some in (*values.values(), other)]
        lines.append([plain(variant.label), chosen, *cells])
        means.append({name: f"{statistics.fmean(some):.3f}" for name, some in values.items() if some})
    for column, name in enumerate(TABLE_MEASURES, 2):
        best = max((row[name] for row in means if name in row), default="")
        for line, row in zip(lines, means, strict=True):
            line[column] = f"**{line[column]}**" if row.get(name) == best else line[column]
    return TableData(None, ["", "pre-processing", *TABLE_MEASURES, "mAP, the other"], lines)


def _split_variant(variant: Variant) -> tuple[Variant, str]:
    """Return a variant without its pre-processing, and that in words."""
    rest = tuple(pair for pair in variant.params if pair[0] not in PREPROCESSING_WORDS)
    named = {name: value for name, value in variant.params if name in PREPROCESSING_WORDS}
    words = [PREPROCESSING_WORDS[name] for name, value in named.items() if value == "true"]
    return Variant(variant.method, rest), ", ".join(words) or ("none" if named else "default")


def _validation(run: Run) -> float:
    return run.end.validation["map"]


def _measured(runs: Sequence[Run], measure: figures.Measure) -> list[float]:
    return [value for run in runs if (value := measure(run.end)) is not None]
