"""Make the report's tables of labels that are missing, wrong or late, and of pre-processing; cells are Markdown."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from stillhash.experiments import figures
from stillhash.experiments.report_tables import ABSENT, TABLE_MEASURES, mean_cell, plain, quality_table
from stillhash.experiments.results import Run, Variant, grouped
from stillhash.experiments.tables import TableData

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
    by_method = grouped((run for run in runs if "map" in run.end.validation), lambda run: _split(run.variant)[0])
    for variant, group in sorted(by_method.items(), key=lambda pair: pair[0].sort_key):
        forms = grouped(group, lambda run: _split(run.variant)[1])
        chosen, *others = sorted(forms, key=lambda form: -statistics.fmean(_validation(run) for run in forms[form]))
        values = {name: _values(forms[chosen], measure) for name, measure in TABLE_MEASURES.items()}
        other = _values(forms[others[0]], TABLE_MEASURES["mAP"]) if others else []
        cells = [mean_cell(some) if some else ABSENT for some in (*values.values(), other)]
        lines.append([plain(variant.label), chosen, *cells])
        means.append({name: f"{statistics.fmean(some):.3f}" for name, some in values.items() if some})
    for column, name in enumerate(TABLE_MEASURES, 2):
        best = max((row[name] for row in means if name in row), default="")
        for line, row in zip(lines, means, strict=True):
            line[column] = f"**{line[column]}**" if row.get(name) == best else line[column]
    return TableData(None, ["", "pre-processing", *TABLE_MEASURES, "mAP, the other"], lines)


def _split(variant: Variant) -> tuple[Variant, str]:
    """Return a variant without its pre-processing, and that in words."""
    rest = tuple(pair for pair in variant.params if pair[0] not in PREPROCESSING_WORDS)
    named = {name: value for name, value in variant.params if name in PREPROCESSING_WORDS}
    words = [PREPROCESSING_WORDS[name] for name, value in named.items() if value == "true"]
    return Variant(variant.method, rest), ", ".join(words) or ("none" if named else "default")


def _validation(run: Run) -> float:
    return run.end.validation["map"]


def _values(runs: Sequence[Run], measure: figures.Measure) -> list[float]:
    return [value for run in runs if (value := measure(run.end)) is not None]
