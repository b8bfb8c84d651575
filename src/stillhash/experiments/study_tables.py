"""Tables of the experiments with a collection on disk (label_studies.py); cells are Markdown, plain text too."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from stillhash.experiments.figures import Measure
from stillhash.experiments.label_studies import ENCODED_AGAIN, OLD_ENCODER, RANDOM, SUGGESTED
from stillhash.experiments.report_tables import ABSENT, TABLE_MEASURES, mean_cell, plain
from stillhash.experiments.results import LABEL_STUDY_KINDS, Checkpoint, Run, by_size, grouped
from stillhash.experiments.tables import TableData

LABEL_STUDY_TEXTS = {  # heading and text, by experiment
    "late-labels": (
        "Labels that come late",
        "Items are stored without labels, in a collection with default settings, and random ones of them are labelled "
        "later, more from line to line; in the last line all labels came with the items. Float cosine, of raw features "
        "or of centred ones, whichever is better, is what there is without labels. “No relevant hit” is the share of "
        "queries without one among the first ten, “own item first” the share of stored items that are their own first "
        "hit, and “near duplicate” the share that are among the first ten hits of features at a cosine of 0.97 to "
        "theirs. mAP is of the first 100 queries.",
    ),
    "new-class": (
        "A new class among labelled items",
        "All items are stored without labels; then all but those of one class are labelled, and more and more of that "
        "class. Each class is the new one in turn. P@10 of its queries, and of all other queries.",
    ),
    "corrections": (
        "Labels that are corrected",
        "P@10 before labels are corrected and after, beside a collection that was right from the start. “Verify” is "
        "the share of collections in which nothing is wrong after it, and what was learnt equals what is computed "
        "again from what is stored. The first line is of float cosine, the last of a page that does not see which "
        "labels are stored: those predicted of queries and codes count alone.",
    ),
    "active": (
        "Labels that are asked for",
        "Items are stored without labels; in rounds of 50, those that `suggest_labels` chooses get theirs. In "
        "brackets, the gain over as many random items of the same seed, with its standard error.",
    ),
    "feedback": (
        "Votes and clicks",
        "Votes: all items have labels. Half of the queries get one vote each, on a random one of the first hundred "
        "hits and by its true labels: first each vote alone, then all of them. A similar query has a cosine of 0.97 to "
        "its query; other queries get no votes. Clicks: no item has labels. Users search from stored items, and click "
        "the first ten relevant ones of the first thirty hits; then queries that nobody clicked on are measured.",
    ),
    "align": (
        "Queries of another encoder",
        "Items and their labels are stored with the features of the old encoder. Queries of the new one are aligned by "
        "some of the images that both have encoded. Beside it are queries of the old encoder, and all encoded again "
        "by the new one. The gain is over chance, a random order.",
    ),
}
LabelMeasures = dict[str, Measure]
LATE_MEASURES: LabelMeasures = {
    **{name: TABLE_MEASURES[name] for name in ("P@10", "nDCG@10", "mAP")},
    "no relevant hit": lambda at: 1 - at.groups["a relevant hit"],
    "own item first": lambda at: at.groups.get("own item first"),
    "near duplicate": lambda at: at.groups.get("near duplicate"),
}
ACTIVE_MEASURES = ("P@10", "nDCG@10", "mAP")
CLICK_MEASURES: LabelMeasures = {name: TABLE_MEASURES[name] for name in ("P@10", "nDCG@10")}
CORRECTION_MEASURES: LabelMeasures = {
    "before": lambda at: at.groups.get("before"),
    "corrected": lambda at: at.precision_10,
    "right from the start": lambda at: at.groups.get("right"),
    "verify": lambda at: at.groups.get("verified"),
}


def study_sections(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return for each experiment of which there are runs its heading, its text and its tables, with titles."""
    of = grouped(runs, lambda run: run.experiment)
    sections = []
    for kind in LABEL_STUDY_KINDS:
        tables = [
            table._replace(title=f"{dataset}, {bits} bits{', ' if table.title else ''}{table.title or ''}")
            for (dataset, bits), some in by_size(of.get(kind, [])).items()
            for table in STUDY_TABLES[kind](some)
        ]
        heading, text = LABEL_STUDY_TEXTS[kind]
        sections += [{"heading": heading, "text": text, "tables": tables}] if tables else []
    return sections


def late_tables(runs: Sequence[Run]) -> list[TableData]:
    """Return a line for cosine, for each number of late labels, and for labels at insertion."""
    groups = grouped(runs, lambda run: (run.variant.method == "cosine", bool(run.variant.params)))
    lines = {"float cosine": [run.end for run in groups.get((True, False), [])]}
    late = grouped((at for run in groups.get((False, False), []) for at in run.checkpoints), lambda at: at.labelled)
    lines |= {f"{labels:,} late": some for labels, some in late.items()}
    inserted = [run.end for run in groups.get((False, True), [])]
    lines |= {f"{at.labelled:,} at insertion": inserted for at in inserted[:1]}
    return [TableData(None, ["labels", *LATE_MEASURES], _lines(lines, LATE_MEASURES))]


def new_class_tables(runs: Sequence[Run]) -> list[TableData]:
    """Return P@10 of queries of the new class, and of all others: a line for each class, and the mean of them."""
    measures: LabelMeasures = {"queries of the new class": attrgetter("precision_10"), "other queries": _others}
    tables = []
    for title, measure in measures.items():
        cells: dict[int, dict[float, list[float | None]]] = {}  # by class, then by labels: -1 cosine, infinity all
        for run in runs:
            columns = cells.setdefault(int(dict(run.variant.params)["new_class"]), {})
            for at in run.checkpoints:
                labels = -1 if run.variant.method == "cosine" else math.inf if at.final else at.labelled or 0
                columns.setdefault(labels, []).append(measure(at))
        counts = sorted({labels for columns in cells.values() for labels in columns})
        names = ["float cosine" if n < 0 else "all late" if n == math.inf else f"{n:,} late" for n in counts]
        rows = [[str(new), *(_cell(cells[new].get(n, [])) for n in counts)] for new in sorted(cells)]
        means = [_cell([v for columns in cells.values() for v in columns.get(n, [])], deviation=False) for n in counts]
        tables.append(TableData(f"P@10 of {title}", ["new class", *names], [*rows, ["mean", *means]]))
    return tables


def correction_tables(runs: Sequence[Run]) -> list[TableData]:
    """Return a line for cosine, and for each correction."""
    lines = grouped(runs, lambda run: plain(dict(run.variant.params).get("correction", "float cosine")))
    ends = {name: [run.end for run in some] for name, some in lines.items()}
    ordered = {name: ends[name] for name in sorted(ends, key=lambda name: name != "float cosine")}
    return [TableData(None, ["", *CORRECTION_MEASURES], _lines(ordered, CORRECTION_MEASURES))]


def active_tables(runs: Sequence[Run]) -> list[TableData]:
    """Return a line for each number of labels: random items, and chosen ones with their gain over these."""
    tables = []
    for features, some in grouped(runs, lambda run: dict(run.variant.params)["features"]).items():
        values = {
            (dict(run.variant.params)["choice"], at.labelled, run.seed): at for run in some for at in run.checkpoints
        }
        seeds, lines = sorted({run.seed for run in some}), []
        for labels in sorted({at.labelled or 0 for run in some for at in run.checkpoints}):
            cells = [f"{labels:,}"]
            for measure in ACTIVE_MEASURES:
                random, chosen = (
                    np.array([TABLE_MEASURES[measure](values[choice, labels, seed]) for seed in seeds], np.float64)
                    for choice in (RANDOM, SUGGESTED)
                )
                gains = chosen - random
                error = f" ± {gains.std(ddof=1) / math.sqrt(len(seeds)):.4f}" if len(seeds) > 1 else ""
                cells += [f"{random.mean():.3f}", f"{chosen.mean():.3f} ({gains.mean():+.4f}{error})" if labels else ""]
            lines.append(cells)
        names = [f"{measure}, {which}" for measure in ACTIVE_MEASURES for which in ("random", "chosen")]
        tables.append(TableData(f"features: {features}", ["labels", *names], lines))
    return tables


def feedback_tables(runs: Sequence[Run]) -> list[TableData]:
    """Return what votes did to their items and to the first ten hits, and a line for each number of clicks."""
    of = grouped(runs, lambda run: dict(run.variant.params)["feedback"])
    tables = []
    if votes := [run.end.groups for run in of.get("votes", [])]:
        liked, fell, disliked, rose = (
            f"{round(sum(groups[name] for groups in votes)):,}" for name in ("liked", "fell", "disliked", "rose")
        )
        cells = [f"{fell} of {liked}", f"{rose} of {disliked}"]
        tables.append(TableData("votes", ["liked items that fell", "disliked items that rose"], [cells]))
        rows = [
            [name, *(_cell([groups[f"{name} {when}"] for groups in votes]) for when in ("before", "after"))]
            for name in ("other hits", "a similar query", "other queries")
        ]
        tables.append(TableData("nDCG@10 with votes", ["", "before", "after"], rows))
    clicks = grouped((at for run in of.get("clicks", []) for at in run.checkpoints), lambda at: at.labelled or 0)
    if clicks:
        lines = {f"{queries:,}": some for queries, some in sorted(clicks.items())}
        rows = _lines(lines, CLICK_MEASURES)
        tables.append(TableData("clicks, no labels", ["queries with clicks", *CLICK_MEASURES], rows))
    return tables


def align_tables(runs: Sequence[Run]) -> list[TableData]:
    """Return a line for the old encoder, for each number of pairs, and for encoding again."""
    lines = grouped(runs, lambda run: dict(run.variant.params)["queries"])
    again = {run.seed: run.end for run in lines.get(ENCODED_AGAIN, [])}
    rows = []
    for name in sorted(lines, key=lambda name: (name == ENCODED_AGAIN, name != OLD_ENCODER, len(name), name)):
        ends = [(run.end, again[run.seed]) for run in lines[name] if run.seed in again]
        shares = [(at.map or 0) / (best.map or 1) for at, best in ends]
        gains = [((at.map or 0) - (at.chance or 0)) / ((best.map or 1) - (at.chance or 0)) for at, best in ends]
        measures = [_cell([TABLE_MEASURES[measure](at) for at, _ in ends]) for measure in ACTIVE_MEASURES]
        explained = _cell([at.groups.get("explained") for at, _ in ends])
        rows.append([name, *measures, f"{np.mean(shares):.1%}", f"{np.mean(gains):.1%}", explained])
    columns = ["", *ACTIVE_MEASURES, "mAP of encoding again", "of its gain", "variance explained"]
    return [TableData(None, columns, rows)]


STUDY_TABLES: dict[str, Callable[[Sequence[Run]], list[TableData]]] = {
    "late-labels": late_tables,
    "new-class": new_class_tables,
    "corrections": correction_tables,
    "active": active_tables,
    "feedback": feedback_tables,
    "align": align_tables,
}


def _lines(lines: Mapping[str, Sequence[Checkpoint]], measures: LabelMeasures) -> list[list[str]]:
    return [
        [name, *(_cell([measure(at) for at in some]) for measure in measures.values())]
        for name, some in lines.items()
        if some
    ]


def _cell(values: Sequence[float | None], deviation: bool = True) -> str:
    """Return the mean over seeds, with their deviation."""
    known = [value for value in values if value is not None]
    return ABSENT if not known else mean_cell(known) if deviation else mean_cell([statistics.fmean(known)])


def _others(at: Checkpoint) -> float | None:
    return at.groups.get("others")
